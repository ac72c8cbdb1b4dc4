"""Whole frames taken apart, whatever state they are in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import construct as cs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol import compiler, framing, records, wire
from minibroker_protocol.compression import Compression
from minibroker_protocol.dissect import (
    Broken,
    Direction,
    Dissection,
    Node,
    Walker,
    api_named,
    describe,
    dissect,
    dissect_segment,
    frames,
    is_segment,
    lines,
    moment,
    preview,
    read_batches,
    render,
)
from minibroker_protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from minibroker_protocol.messages.fetch import EpochEndOffset, PartitionData
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.metadata import MetadataResponse, MetadataResponseTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Message, construct_for, field

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
    return joined(framing.request_frame(wire.RequestHeader(0, 9, 7, "me"), body))


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
            header = wire.encode_request_header(wire.RequestHeader(key, version, 1, "me"))
            direction = Direction.REQUEST
        else:
            header = wire.encode_response_header(key, version, 1)
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


# ----------------------------------------------------- Dissections are trees, and are shown as text


TREE = Node("root", 0, children=[Node("a", 0, children=[Node("x", 0)]), Node("x", 1, text="later")])


def test_walk_yields_nodes_in_byte_order() -> None:
    assert [node.name for node in TREE.walk()] == ["root", "a", "x", "x"]


def test_find_returns_first_node_of_name() -> None:
    assert TREE.find("x").text == ""
    assert TREE.find("root") is TREE
    with pytest.raises(KeyError, match="y"):
        TREE.find("y")


DATA = bytes(range(20))
SHOWN_TREE = Node(
    "frame",
    0,
    20,
    0,
    text="20 bytes",
    children=[
        Node("size", 0, 4, 4, text="66051"),
        Node("body", 4, 20, 4, children=[Node("name", 4, 20, 20, text="'x'")]),
        Node("record 0", None, text="compressed"),
        Node("rest", 20, 20, 20, error="the bytes end here"),
    ],
)


def test_render_shows_offsets_bytes_and_tree_in_columns() -> None:
    assert render(Dissection(DATA, SHOWN_TREE, "something is wrong")) == (
        " 0                          frame: 20 bytes\n"
        " 0  00 01 02 03             ├ size: 66051\n"
        " 4                          ├ body\n"
        " 4  04 05 06 07 08 09 … 16  │ └ name: 'x'\n"
        "                            ├ record 0: compressed\n"
        "20                          └ rest  ✗ the bytes end here\n"
        "\n"
        "✗ something is wrong\n"
    )


def test_lines_are_split_into_parts_for_colouring() -> None:
    first, size, *_ = lines(Dissection(DATA, SHOWN_TREE))
    assert (first.branch, first.name) == ("", "frame")
    assert size == ("0", "00 01 02 03", "├ ", "size", "66051", "")


def test_render_without_problem_has_no_trailing_line() -> None:
    assert not render(Dissection(DATA, Node("frame", 0, 20, 0))).endswith("\n\n")


# ------------------------------------------------- Values, record batches and messages become nodes


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("error_code", 0, "0 NONE"),
        ("error_code", 3, "3 UNKNOWN_TOPIC_OR_PARTITION"),
        ("error_code", 9999, "9999 error 9999"),
        ("api_key", 3, "3 METADATA"),
        ("request_api_key", 999, "999 unknown"),
        ("acks", -1, "-1 all"),
        ("isolation_level", 1, "1 read committed"),
        ("key_type", 0, "0 group"),
        ("resource_type", 2, "2 topic"),
        ("timestamp", -2, "-2 earliest"),
        ("timestamp", -99, "-99"),
        ("base_timestamp", 1_700_000_000_000, "1700000000000 2023-11-14 22:13:20.000Z"),
        ("partition_index", 7, "7"),
        ("is_internal", True, "true"),
        ("is_internal", False, "false"),
        ("rack", None, "null"),
        ("name", "orders", "'orders'"),
        ("name", "x" * 100, f"'{'x' * 60}'… (100 characters)"),
        ("topic_id", bytes(16), "AAAAAAAAAAAAAAAAAAAAAA"),
        ("auth_bytes", b"", "empty"),
        ("auth_bytes", b"\0user", "5 bytes"),
        ("auth_bytes", b"\xff", "1 bytes"),
        ("value", 1.5, "1.5"),
    ],
)
def test_values_are_described_by_field_name(name: str, value: Any, text: str) -> None:
    assert describe(name, value) == text


def test_printable_bytes_are_previewed_as_text() -> None:
    assert preview(b"hello") == "'hello'"
    assert preview(b"x" * 61) == f"'{'x' * 60}'… (61 bytes)"


@pytest.mark.parametrize("value", [-1, 0, 2**62])
def test_invalid_timestamp_has_no_date(value: int) -> None:
    assert moment(value) == ""


RECORDS = [
    records.Record(0, 1_700_000_000_000, b"k", b"v", (("h", b"x"), ("n", None))),
    records.Record(1, 1_700_000_000_000, None, None),
]


def opened(data: bytes, start: int = 0) -> Node:
    parent = Node("records", start)
    read_batches(bytes(start) + data, start, start + len(data), parent)
    return parent


def test_header_fields_and_records_have_offsets() -> None:
    batch = records.build_batch(RECORDS)
    (node,) = opened(batch, start=5).children
    assert (node.start, node.end) == (5, 5 + len(batch))
    place = 5
    for child in node.children:
        assert child.start == place
        assert child.end is not None
        place = child.end
    assert place == 5 + len(batch)
    assert node.find("attributes").text == "0x0000 none, create time"
    assert (
        node.find("record 0").text == "key 'k', value 'v', 2023-11-14 22:13:20.000Z, h='x', n=null"
    )
    assert node.find("record 1").text.startswith("key null, value null")


@pytest.mark.parametrize("codec", [c for c in Compression if c is not Compression.NONE])
def test_compressed_records_have_no_offsets(codec: Compression) -> None:
    (node,) = opened(records.build_batch(RECORDS, compression=codec)).children
    assert codec.name.lower() in node.find("attributes").text
    assert node.find("record 1").start is None


def test_consecutive_batches_have_their_own_nodes() -> None:
    one = records.build_batch(RECORDS)
    nodes = opened(one + one).children
    assert [node.start for node in nodes] == [0, len(one)]


def test_wrong_checksum_is_reported() -> None:
    batch = bytearray(records.build_batch(RECORDS))
    assert opened(bytes(batch)).find("crc").text.endswith("right")
    batch[17] ^= 1
    assert opened(bytes(batch)).find("crc").text.endswith("WRONG")


def test_corrupt_batch_has_error_at_its_node() -> None:
    batch = records.build_batch(RECORDS)
    assert "cut off" in (opened(batch[:-1]).find("batch").error or "")
    assert opened(b"short").find("batch").error
    lying = bytearray(batch)
    lying[61] = 0x7E  # the first record claims to be longer than the batch
    assert opened(bytes(lying)).find("batch").error
    unclear = bytearray(batch)
    unclear[22] |= 7  # a codec that does not exist
    node = opened(bytes(unclear)).find("batch")
    assert node.error
    assert "codec 7" in node.find("attributes").text


class OnePartition(Message, versions="12", flexible="12+"):
    partition: PartitionData = field(PartitionData)


def walk(message: Message, version: int) -> Node:
    root = Node("root", 0)
    Walker(compiler.encode(message, version)).members(construct_for(type(message), version), root)
    return root


def test_nullable_struct_includes_its_marker_byte() -> None:
    absent = walk(DescribeTopicPartitionsRequest(), 0).find("cursor")
    there = walk(DescribeTopicPartitionsRequest(cursor=Cursor(topic_name="t")), 0).find("cursor")
    assert (absent.text, absent.children) == ("null", [])
    assert there.find("topic_name").value == "t"
    assert there.start is not None
    assert there.own_end == there.start + 1


def test_known_tagged_field_is_dissected() -> None:
    partition = PartitionData(diverging_epoch=EpochEndOffset(epoch=3, end_offset=9))
    root = walk(OnePartition(partition=partition), 12)
    entry = root.find("tag 0")
    assert entry.text == "diverging_epoch, 13 bytes"
    assert entry.find("end_offset").value == 9


def test_null_and_empty_arrays_have_different_texts() -> None:
    null, empty = PartitionData(aborted_transactions=None), PartitionData()
    for partition, text in ((null, "null"), (empty, "empty")):
        assert walk(OnePartition(partition=partition), 12).find("aborted_transactions").text == text


def joined_with(metadata: bytes) -> Node:
    protocol = JoinGroupRequestProtocol(name="range", metadata=metadata)
    return walk(JoinGroupRequest(protocol_type="consumer", protocols=[protocol]), 5)


@pytest.mark.parametrize("version", [0, 3, 9])
def test_consumer_subscription_of_future_version_is_dissected(version: int) -> None:
    known = min(version, 3)
    inner = compiler.encode(ConsumerProtocolSubscription(topics=["a", "b"]), known)
    more = b"new" if version > known else b""
    root = joined_with(version.to_bytes(2, "big") + inner + more)
    assert root.find("topics").text == "['a', 'b']"
    later = [node.text for node in root.walk() if node.name == "later fields"]
    assert later == (["3 bytes"] if more else [])


@pytest.mark.parametrize("metadata", [b"\0", b"\xff\xff\0\0", b"\0\0\0\0\0\7", bytes(99)])
def test_metadata_without_valid_subscription_is_shown_as_bytes(metadata: bytes) -> None:
    assert joined_with(metadata).find("metadata").children == []


def test_failed_read_keeps_earlier_nodes_and_error() -> None:
    root = Node("root", 0)
    walker = Walker(b"\0\1\0")
    walker.read("first", cs.Int16sb, root)
    with pytest.raises(Broken):
        walker.read("second", cs.Int16sb, root)
    assert [(node.name, node.value, node.error) for node in root.children] == [
        ("first", 1, None),
        ("second", None, "the bytes end here"),
    ]
    assert (root.children[1].start, root.children[1].end) == (2, 3)
