"""Whole frames taken apart, whatever state they are in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol import compiler, framing, headers, records
from minibroker_protocol.dissect import (
    Direction,
    Dissection,
    Node,
    api_named,
    dissect,
    dissect_segment,
    frames,
    is_segment,
    render,
)
from minibroker_protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Message

SEGMENT = build_batch([Record(timestamp=1, value=b"a")] * 2) + build_batch(
    [Record(timestamp=2, value=b"b")], base_offset=2
)
BODIES = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=5)


def joined(chunks: list[Any]) -> bytes:
    return b"".join(bytes(chunk) for chunk in chunks)


def produce_frame() -> bytes:
    batch = records.build_batch([records.Record(0, 1_700_000_000_000, b"k", b"v")])
    partition = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(name="orders", partition_data=[partition])
    body = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    return joined(framing.request_frame(headers.RequestHeader(0, 9, 7, "me"), body))


def metadata_response() -> bytes:
    body = MetadataResponse(topics=[MetadataResponseTopic(error_code=3, name="t")])
    return joined(framing.response_frame(ApiKey.METADATA, 12, 9, body))


def assert_every_byte_once(dissection: Dissection) -> None:
    """Own bytes of the nodes, in their order, are the frame without gap or overlap."""
    position = 0
    for node in dissection.root.walk():
        if node.start is None or node.own_end is None:
            continue
        assert node.start == position, (node.name, node.start, position)
        assert node.end is not None
        assert node.start <= node.own_end <= node.end
        position = node.own_end
    assert position == len(dissection.data)


@pytest.mark.parametrize("prefixed", [True, False])
def test_request_is_dissected_with_or_without_size_prefix(prefixed: bool) -> None:
    frame = produce_frame()[0 if prefixed else 4 :]
    dissection = dissect(frame)
    assert dissection.problem is None
    assert dissection.root.find("ProduceRequest").text == "version 9"
    assert dissection.root.find("name").value == "orders"
    assert dissection.root.find("record 0").value.value == b"v"
    assert_every_byte_once(dissection)


@pytest.mark.parametrize("prefixed", [True, False])
@pytest.mark.parametrize("direction", [Direction.AUTO, "response"])
def test_response_is_dissected_with_api_and_version(
    prefixed: bool, direction: Direction | str
) -> None:
    frame = metadata_response()[0 if prefixed else 4 :]
    dissection = dissect(frame, direction=direction, api_key=ApiKey.METADATA, version=12)
    assert dissection.problem is None
    assert dissection.root.find("error_code").text == "3 UNKNOWN_TOPIC_OR_PARTITION"
    assert_every_byte_once(dissection)


def test_response_without_api_has_explained_problem() -> None:
    problem = dissect(metadata_response(), direction="response").problem
    assert problem == "a response doesn't say what it answers: its API and version are needed"


def test_truncated_frame_shows_decoded_part_and_missing_bytes() -> None:
    frame = produce_frame()
    cut = dissect(frame[:40])
    assert cut.problem is not None
    assert cut.problem.startswith("ProduceRequest.topic_data[0].partition_data[0].records: ")
    assert cut.root.find("ProduceRequest").text.endswith(f"{len(frame) - 40} bytes missing")
    assert cut.root.find("name").value == "orders"
    assert cut.root.find("index").error is None


def test_batches_of_truncated_frame_are_dissected() -> None:
    cut = dissect(produce_frame()[:-5])
    assert cut.root.find("producer_id").value == -1
    assert "cut off" in (cut.root.find("batch").error or "")


@pytest.mark.parametrize("length", range(len(produce_frame())))
def test_every_truncation_yields_tree_and_problem(length: int) -> None:
    for start in (0, 4):
        cut = dissect(produce_frame()[start : start + length])
        if start + length < len(produce_frame()):
            assert cut.problem
        assert render(cut)


def test_trailing_bytes_are_reported() -> None:
    dissection = dissect(produce_frame() + b"xyz")
    assert dissection.problem == "3 bytes follow the message"
    assert dissection.root.find("bytes left over").start == len(produce_frame())


def test_wrong_frame_size_is_reported() -> None:
    frame = metadata_response()
    lying = (len(frame) + 5).to_bytes(4, "big") + frame[4:]
    dissection = dissect(lying, direction="response", api_key=3, version=12)
    assert dissection.problem == f"the size says {len(frame) + 5} bytes, {len(frame) - 4} are here"


@pytest.mark.parametrize(
    ("key", "version", "problem"),
    [(999, 0, "no API has the key 999"), (3, 99, "MetadataRequest has versions 0-13, not 99")],
)
def test_undeclared_api_or_version_is_reported(key: int, version: int, problem: str) -> None:
    frame = key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(7)
    dissection = dissect(len(frame).to_bytes(4, "big") + frame)
    assert dissection.problem == problem


def test_unknown_tagged_fields_are_shown() -> None:
    body = MetadataResponse(unknown_tagged_fields={99: b"later"})
    frame = joined(framing.response_frame(ApiKey.METADATA, 12, 9, body))
    dissection = dissect(frame, api_key=3, version=12)
    assert dissection.root.find("tag 99").text == "unknown, 5 bytes"
    assert_every_byte_once(dissection)


@given(st.binary(max_size=80))
def test_random_bytes_yield_tree(data: bytes) -> None:
    for direction in Direction:
        dissection = dissect(data, direction=direction, api_key=ApiKey.FETCH, version=12)
        assert isinstance(dissection.root, Node)
        assert render(dissection)


MESSAGES = [cls for key in ApiKey for cls in (schema(key).request, schema(key).response)]


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_every_byte_of_every_message_belongs_to_one_node(
    cls: type[Message],
    draw_message: Callable[[type[Message]], st.SearchStrategy[Any]],
    project_message: Callable[[Message, int], Message],
) -> None:
    key = cls.__api_key__
    assert key is not None

    @given(st.data())
    def check(data: st.DataObject) -> None:
        version = data.draw(st.integers(cls.__versions__.low, cls.__versions__.high))
        message = project_message(data.draw(draw_message(cls)), version)
        if cls is schema(key).request:
            header = headers.encode_request_header(headers.RequestHeader(key, version, 1, "me"))
            direction = Direction.REQUEST
        else:
            header = headers.encode_response_header(key, version, 1)
            direction = Direction.RESPONSE
        frame = joined(framing.frame(header, [compiler.encode(message, version)]))
        dissection = dissect(frame, direction=direction, api_key=key, version=version)
        if any(node.error for node in dissection.root.walk()):
            # Random records are no batches; everything else must be explained.
            assert "batch" in {node.name for node in dissection.root.walk() if node.error}
        else:
            assert dissection.problem is None
            assert_every_byte_once(dissection)

    check()


@pytest.mark.parametrize("name", ["metadata", "Metadata", "METADATA", "3"])
def test_api_is_found_by_any_spelling(name: str) -> None:
    assert api_named(name) is ApiKey.METADATA


def test_api_name_of_several_words_is_found_and_unknown_one_rejected() -> None:
    assert api_named("list-offsets") is api_named("ListOffsets") is ApiKey.LIST_OFFSETS
    with pytest.raises(ValueError, match="no API is called 'nonsense'"):
        api_named("nonsense")


@given(bodies=BODIES)
def test_consecutive_frames_are_split(bodies: list[bytes]) -> None:
    wanted = [len(body).to_bytes(4, "big") + body for body in bodies]
    assert frames(b"".join(wanted)) == wanted


@given(data=st.binary(max_size=40))
def test_split_frames_contain_all_bytes(data: bytes) -> None:
    assert b"".join(frames(data)) == data


def test_frame_without_size_prefix_is_one_frame() -> None:
    data = bytes.fromhex("00120003000000070003666f6f000261023100")
    assert frames(data) == [data]


def test_segment_is_recognized_by_its_first_batch() -> None:
    assert is_segment(SEGMENT)
    assert is_segment(SEGMENT[:70])
    assert not is_segment(SEGMENT[:60])
    assert not is_segment(b"\x00" + SEGMENT)
    assert not is_segment(SEGMENT[:17] + b"\x00\x00\x00\x00" + SEGMENT[21:])


def test_segment_shows_every_batch_and_record() -> None:
    result = dissect_segment(SEGMENT)
    assert result.problem is None
    names = [node.name for node in result.root.walk()]
    assert names.count("batch") == 2
    assert [name for name in names if name.startswith("record ")] == [
        "record 0",
        "record 1",
        "record 2",
    ]


@pytest.mark.parametrize("cut", [1, 30])
def test_truncated_segment_has_problem_with_offset(cut: int) -> None:
    result = dissect_segment(SEGMENT[:-cut])
    assert result.problem is not None
    assert "at byte" in result.problem
