"""ShareGroupHeartbeat (API key 76): membership of a share group (KIP-932).

Version 1, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING, UUID, Uuid


class ShareGroupHeartbeatRequest(Message, api_key=76, versions="1", flexible="0+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    member_id: str = field(STRING, means=Meaning.MEMBER)
    member_epoch: int = field(INT32, means=Meaning.MEMBER_EPOCH)
    rack_id: str | None = field(NULLABLE_STRING, default=None)
    subscribed_topic_names: list[str] | None = field(
        array(STRING), means=Meaning.TOPIC, nullable="0+", default=None
    )


class TopicPartitions(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field(array(TopicPartitions))


class ShareGroupHeartbeatResponse(Message, api_key=76, versions="1", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    member_id: str | None = field(NULLABLE_STRING, means=Meaning.MEMBER, default=None)
    member_epoch: int = field(INT32, means=Meaning.MEMBER_EPOCH)
    heartbeat_interval_ms: int = field(INT32)
    assignment: Assignment | None = field(Assignment, nullable="0+", default=None)
