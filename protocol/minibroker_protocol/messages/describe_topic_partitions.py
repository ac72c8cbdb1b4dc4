"""DescribeTopicPartitions (API key 75): topics' partitions, page by page (KIP-966).

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, NULLABLE_STRING, STRING, UUID, Uuid


class TopicRequest(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)


class Cursor(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partition_index: int = field(INT32, means=Meaning.PARTITION)


class DescribeTopicPartitionsRequest(Message, api_key=75, versions="0", flexible="0+"):
    topics: list[TopicRequest] = field(array(TopicRequest))
    response_partition_limit: int = field(INT32, default=2000)
    cursor: Cursor | None = field(Cursor, nullable="0+", default=None)


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, default=-1)
    replica_nodes: list[int] = field(array(INT32), means=Meaning.BROKER)
    isr_nodes: list[int] = field(array(INT32), means=Meaning.BROKER)
    eligible_leader_replicas: list[int] | None = field(
        array(INT32), means=Meaning.BROKER, nullable="0+", default=None
    )
    last_known_elr: list[int] | None = field(
        array(INT32), means=Meaning.BROKER, nullable="0+", default=None
    )
    offline_replicas: list[int] = field(array(INT32), means=Meaning.BROKER)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    name: str | None = field(NULLABLE_STRING, means=Meaning.TOPIC)
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    is_internal: bool = field(BOOLEAN)
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(
        array(DescribeTopicPartitionsResponsePartition)
    )
    topic_authorized_operations: int = field(INT32, default=-0x80000000)


class DescribeTopicPartitionsResponse(Message, api_key=75, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    topics: list[DescribeTopicPartitionsResponseTopic] = field(
        array(DescribeTopicPartitionsResponseTopic)
    )
    next_cursor: Cursor | None = field(Cursor, nullable="0+", default=None)
