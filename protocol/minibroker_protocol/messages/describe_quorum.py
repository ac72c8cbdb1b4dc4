"""DescribeQuorum (API key 55): state of the KRaft quorum.

Versions 0 to 2, all in the compact encoding.

What changed:
  1  response adds last_fetch_timestamp, last_caught_up_timestamp
  2  response adds replica_directory_id, error_message, nodes
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID,
    Uuid,
)


class DescribeQuorumRequestPartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)


class DescribeQuorumRequestTopicData(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[DescribeQuorumRequestPartitionData] = field(
        array(DescribeQuorumRequestPartitionData)
    )


class DescribeQuorumRequest(Message, api_key=55, versions="0-2", flexible="0+"):
    topics: list[DescribeQuorumRequestTopicData] = field(array(DescribeQuorumRequestTopicData))


class ReplicaState(Struct):
    replica_id: int = field(INT32, means=Meaning.BROKER)
    replica_directory_id: Uuid = field(UUID, versions="2+")
    log_end_offset: int = field(INT64, means=Meaning.OFFSET)
    last_fetch_timestamp: int = field(INT64, versions="1+", default=-1)
    last_caught_up_timestamp: int = field(INT64, versions="1+", default=-1)


class DescribeQuorumResponsePartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, versions="2+")
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    high_watermark: int = field(INT64, means=Meaning.OFFSET)
    current_voters: list[ReplicaState] = field(array(ReplicaState))
    observers: list[ReplicaState] = field(array(ReplicaState))


class DescribeQuorumResponseTopicData(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[DescribeQuorumResponsePartitionData] = field(
        array(DescribeQuorumResponsePartitionData)
    )


class Listener(Struct):
    name: str = field(STRING)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class Node(Struct):
    node_id: int = field(INT32, means=Meaning.BROKER)
    listeners: list[Listener] = field(array(Listener))


class DescribeQuorumResponse(Message, api_key=55, versions="0-2", flexible="0+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, versions="2+")
    topics: list[DescribeQuorumResponseTopicData] = field(array(DescribeQuorumResponseTopicData))
    nodes: list[Node] = field(array(Node), versions="2+")
