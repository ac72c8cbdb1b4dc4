"""Codecs of single messages compared with the general ones, for every version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import compiler
from protocol.compiler.single import leaves, single_decoder, single_encoder
from protocol.headers import encode_response_header
from protocol.messages.fetch import FetchRequest, FetchResponse
from protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from protocol.messages.produce import ProduceRequest, ProduceResponse
from protocol.registry import schema
from protocol.schema import Array, Message, Struct

SINGLES = frozenset({"topic_data", "partition_data", "topics", "partitions", "responses"})
SINGLES |= {"partition_responses"}
MESSAGES = [
    ProduceRequest,
    ProduceResponse,
    FetchRequest,
    FetchResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
]
Draw = Callable[[type[Message]], st.SearchStrategy[Any]]
Project = Callable[[Message, int], Message]


def versions_of(cls: type[Message]) -> range:
    return range(cls.__versions__.low, cls.__versions__.high + 1)


def make_single(message: Struct, version: int) -> None:
    """Give ``message`` the shape of a single one: one element, and nothing optional."""
    message.unknown_tagged_fields = None
    for item in message.__fields__:
        value = getattr(message, item.name)
        if isinstance(item.kind, Array):
            if item.name in SINGLES:
                value = value[:1] or [item.kind.element()]  # type: ignore[operator]
                make_single(value[0], version)
            else:
                value = value and []
            setattr(message, item.name, value)
        elif item.tagged.has(version) or isinstance(item.kind, type):
            setattr(message, item.name, item.make_default())


def values_of(message: Struct) -> list[Any]:
    """The leaves of a message of this shape, as objects have them."""
    found: list[Any] = []
    for item in message.__fields__:
        value = getattr(message, item.name)
        if isinstance(item.kind, Array) and item.name in SINGLES:
            found += values_of(value[0])
        elif item.name in {leaf.name for leaf in leaves(type(message), frozenset())}:
            found.append(tuple(value) if isinstance(value, list) else value)
    return found


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
            assert single_decoder(cls, version, SINGLES)(b"before" + data, 6) == tuple(
                values_of(kept)
            )
            if cls.__name__.endswith("Response"):
                key = cls.__api_key__
                assert key is not None
                tagged = bool(schema(key).response_header_version(version))
                encode = single_encoder(cls, version, SINGLES, tagged_header=tagged)
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
            read = single_decoder(cls, version, SINGLES)(compiler.encode(kept, version), 0)
            make_single(message, version)
            if read is not None:
                assert kept == project_message(message, version)
                assert read == tuple(values_of(kept))

    check()


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_single_decoder_reads_damaged_bytes_as_none_or_as_the_general_decoder(
    cls: type[Message],
) -> None:
    @given(st.data(), st.binary(max_size=80))
    def check(data: st.DataObject, raw: bytes) -> None:
        version = data.draw(st.sampled_from(versions_of(cls)))
        read = single_decoder(cls, version, SINGLES)(raw, 0)
        if read is not None:
            assert read == tuple(values_of(compiler.decode(cls, version, raw)))

    check()


def test_single_decoder_reads_every_cut_of_a_request_as_none() -> None:
    request = HeartbeatRequest(group_id="group", generation_id=7, member_id="member")
    data = compiler.encode(request, 4)
    decode = single_decoder(HeartbeatRequest, 4, SINGLES)
    assert decode(data, 0) == ("group", 7, "member", None)
    assert all(decode(data[:size], 0) is None for size in range(len(data)))
