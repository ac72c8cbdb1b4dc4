"""DescribeQuorum: the controller is a quorum of one."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.describe_quorum import API
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)


def about(name: str, *indexes: int) -> DescribeQuorumRequestTopicData:
    partitions = [DescribeQuorumRequestPartitionData(partition_index=index) for index in indexes]
    return DescribeQuorumRequestTopicData(topic_name=name, partitions=partitions)


METADATA = about("__cluster_metadata", 0)


@pytest.mark.parametrize("version", range(3))
async def test_controller_leads_the_metadata_log(apis: Any, version: int) -> None:
    response = await apis.ask(API, DescribeQuorumRequest(topics=[METADATA]), version)
    image = apis.cluster.image
    assert response.error_code == ErrorCode.NONE
    [partition] = response.topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.NONE, 1)
    assert (partition.leader_epoch, partition.high_watermark) == (
        image.controller_epoch,
        image.number,
    )
    [voter] = partition.current_voters
    assert (voter.replica_id, voter.log_end_offset) == (1, image.number)
    assert partition.observers == []
    if version >= 2:
        assert voter.replica_directory_id == bytes(range(16))
        [node] = response.nodes
        [listener] = node.listeners
        assert (node.node_id, listener.name, listener.port) == (1, "PLAINTEXT", 9092)


@pytest.mark.parametrize(
    "topics",
    [
        [about("__cluster_metadata", 1)],
        [about("__cluster_metadata", 0, 0)],
        [about("t", 0)],
        [METADATA, METADATA],
        [METADATA, about("t")],
    ],
)
async def test_other_partition_is_unknown(apis: Any, topics: Any) -> None:
    response = await apis.ask(API, DescribeQuorumRequest(topics=topics), 2)
    assert [topic.topic_name for topic in response.topics] == [one.topic_name for one in topics]
    errors = {partition.error_code for topic in response.topics for partition in topic.partitions}
    assert errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


async def test_no_partition_is_described_if_none_is_requested(apis: Any) -> None:
    response = await apis.ask(API, DescribeQuorumRequest(topics=[]), 2)
    assert (response.error_code, response.topics) == (ErrorCode.NONE, [])
