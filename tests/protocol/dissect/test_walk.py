"""Walks over a construct tree: which values become nodes, and where a walk stops."""

from __future__ import annotations

import construct as cs
import pytest

from minibroker_protocol import compiler
from minibroker_protocol.dissect.tree import Node
from minibroker_protocol.dissect.walk import Broken, Walker
from minibroker_protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
)
from minibroker_protocol.messages.fetch import EpochEndOffset, PartitionData
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.schema import Message, construct_for, field


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
