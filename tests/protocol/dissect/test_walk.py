"""Values, record batches and messages become nodes."""

from __future__ import annotations

from typing import Any

import construct as cs
import pytest

from minibroker_protocol import compiler, records
from minibroker_protocol.compression import Compression
from minibroker_protocol.dissect.tree import Node
from minibroker_protocol.dissect.walk import Broken, Walker, describe, moment, preview, read_batches
from minibroker_protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from minibroker_protocol.messages.fetch import EpochEndOffset, PartitionData
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.schema import Message, construct_for, field


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
