"""ConsumerGroupHeartbeat (API key 68): membership of a consumer group (KIP-848).

Versions 0 to 1, all in the compact encoding.

What changed:
  1  request adds subscribed_topic_regex
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING, UUID, Uuid


class TopicPartitions(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions="0-1", flexible="0+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    member_id: str = field(STRING, means=Meaning.MEMBER)
    member_epoch: int = field(INT32, means=Meaning.MEMBER_EPOCH)
    instance_id: str | None = field(NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, default=None)
    rack_id: str | None = field(NULLABLE_STRING, default=None)
    rebalance_timeout_ms: int = field(INT32, default=-1)
    subscribed_topic_names: list[str] | None = field(
        array(STRING), means=Meaning.TOPIC, nullable="0+", default=None
    )
    subscribed_topic_regex: str | None = field(
        NULLABLE_STRING, means=Meaning.TOPIC_PATTERN, versions="1+", default=None
    )
    server_assignor: str | None = field(NULLABLE_STRING, default=None)
    topic_partitions: list[TopicPartitions] | None = field(
        array(TopicPartitions), nullable="0+", default=None
    )


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field(array(TopicPartitions))


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    member_id: str | None = field(NULLABLE_STRING, means=Meaning.MEMBER, default=None)
    member_epoch: int = field(INT32, means=Meaning.MEMBER_EPOCH)
    heartbeat_interval_ms: int = field(INT32)
    assignment: Assignment | None = field(Assignment, nullable="0+", default=None)
