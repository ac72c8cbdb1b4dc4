"""Codecs of single messages compared with the general ones, for every version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.groups.records import OffsetCommitKey, OffsetCommitValue
from minibroker_protocol import compiler
from minibroker_protocol.compiler.single import (
    LIST_MAX,
    Shape,
    leaves,
    single_decoder,
    single_encoder,
    versioned_encoder,
)
from minibroker_protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker_protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from minibroker_protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker_protocol.registry import schema
from minibroker_protocol.schema import Array, Kind, Message, Struct
from minibroker_protocol.types import Type
from minibroker_protocol.wire import encode_response_header

SINGLES = frozenset({"topic_data", "partition_data", "topics", "responses", "partition_responses"})
SINGLES |= {"groups", "coordinators", "coordinator_keys"}
SHAPE = Shape(SINGLES, frozenset({"partitions", "partition_indexes"}))
MESSAGES = [
    ProduceRequest,
    ProduceResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
]
Draw = Callable[[type[Message]], st.SearchStrategy[Any]]
Project = Callable[[Message, int], Message]


def versions_of(cls: type[Message]) -> range:
    return range(cls.__versions__.low, cls.__versions__.high + 1)


def make_single(message: Struct, version: int) -> None:
    """Give ``message`` the shape of a single one: one element, and nothing optional."""
    message.unknown_tagged_fields = None
    for item in message.__fields__:
        value, kind = getattr(message, item.name), item.kind
        if isinstance(kind, Array):
            if item.name in SHAPE.lists:
                value = value or []
            elif item.name in SINGLES:
                value = value[:1] if value else [made(kind.element)]
            else:
                value = value and []
            for each in value or ():
                if isinstance(each, Struct):
                    make_single(each, version)
            setattr(message, item.name, value)
        elif item.tagged.has(version) or isinstance(kind, type):
            setattr(message, item.name, item.make_default())


def made(kind: Kind) -> Any:
    """A default value of a kind."""
    return kind.default if isinstance(kind, Type) else kind()  # type: ignore[operator]


def values_of(message: Struct) -> list[Any]:
    """The leaves of a message of this shape, as objects have them; those of an array that the
    version lacks have their defaults.
    """
    found: list[Any] = []
    for item in message.__fields__:
        value, kind = getattr(message, item.name), item.kind
        if isinstance(kind, Array) and item.name in SHAPE.lists:
            found.append(
                tuple(
                    tuple(values_of(each)) if isinstance(each, Struct) else each for each in value
                )
            )
        elif isinstance(kind, Array) and item.name in SINGLES:
            each = value[0] if value else made(kind.element)
            found += values_of(each) if isinstance(each, Struct) else [each]
        elif item.name in {leaf.name for leaf in leaves(type(message), Shape())}:
            found.append(tuple(value) if isinstance(value, list) else value)
    return found


def plain(read: Any) -> Any:
    """Leaves with tuples for lists."""
    return tuple(map(plain, read)) if isinstance(read, (list, tuple)) else read


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_single_codec_matches_general_codec_in_every_version(
    cls: type[Message], draw_message: Draw, project_message: Project
) -> None:
    @given(draw_message(cls))
    def check(message: Any) -> None:
        for version in versions_of(cls):
            make_single(message, version)
            kept = project_message(message, version)
            data = compiler.encode(kept, version)
            read = single_decoder(cls, version, SHAPE)(b"before" + data, 6)
            assert plain(read) == tuple(values_of(kept))
            if cls.__name__.endswith("Response"):
                key = cls.__api_key__
                assert key is not None
                tagged = bool(schema(key).response_header_version(version))
                encode = single_encoder(cls, version, SHAPE, tagged_header=tagged)
                body = encode_response_header(key, version, 77) + data
                assert encode(77, *values_of(kept)) == len(body).to_bytes(4, "big") + body

    check()


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_single_decoder_reads_other_shapes_as_none(
    cls: type[Message], draw_message: Draw, project_message: Project
) -> None:
    @given(draw_message(cls))
    def check(message: Any) -> None:
        for version in versions_of(cls):
            kept = project_message(message, version)
            read = single_decoder(cls, version, SHAPE)(compiler.encode(kept, version), 0)
            make_single(message, version)
            if read is not None:
                assert kept == project_message(message, version)
                assert plain(read) == tuple(values_of(kept))

    check()


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_single_decoder_reads_damaged_bytes_as_none_or_as_the_general_decoder(
    cls: type[Message],
) -> None:
    @given(st.data(), st.binary(max_size=80))
    def check(data: st.DataObject, raw: bytes) -> None:
        version = data.draw(st.sampled_from(versions_of(cls)))
        read = single_decoder(cls, version, SHAPE)(raw, 0)
        if read is not None:
            assert plain(read) == tuple(values_of(compiler.decode(cls, version, raw)))

    check()


def test_single_decoder_reads_every_cut_of_a_request_as_none() -> None:
    request = HeartbeatRequest(group_id="group", generation_id=7, member_id="member")
    data = compiler.encode(request, 4)
    decode = single_decoder(HeartbeatRequest, 4, SHAPE)
    assert decode(data, 0) == ("group", 7, "member", None)
    assert all(decode(data[:size], 0) is None for size in range(len(data)))


@pytest.mark.parametrize("version", [1, 6, 8])
def test_single_decoder_reads_a_list_of_more_than_the_limit_as_none(version: int) -> None:
    decode = single_decoder(OffsetFetchRequest, version, SHAPE)
    for count in (0, 1, LIST_MAX, LIST_MAX + 1, 200):
        indexes = list(range(count))
        request = OffsetFetchRequest(
            group_id="g",
            topics=[OffsetFetchRequestTopic(name="t", partition_indexes=indexes)],
            groups=[
                OffsetFetchRequestGroup(
                    group_id="g",
                    topics=[OffsetFetchRequestTopics(name="t", partition_indexes=indexes)],
                )
            ],
        )
        read = decode(compiler.encode(request, version), 0)
        assert (read is None) == (count > LIST_MAX)
        assert read is None or indexes in read


@given(st.text(max_size=40), st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**63 - 1))
def test_versioned_encoder_writes_the_version_and_the_message(
    text: str, number: int, offset: int
) -> None:
    key = OffsetCommitKey(group=text, topic=text[::-1], partition=number)
    value = OffsetCommitValue(
        offset=offset, leader_epoch=number, metadata=text, commit_timestamp=number
    )
    for message, versions in ((key, (0, 1)), (value, range(5))):
        for version in versions:
            encode = versioned_encoder(type(message), version)
            expected = version.to_bytes(2, "big") + compiler.encode(message, version)
            assert encode(*values_of(message)) == expected
