"""ConsumerGroupDescribe (API key 69): state and members of consumer groups (KIP-848).

Versions 0 to 1, all in the compact encoding.

What changed:
  1  response adds member_type
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    BOOLEAN,
    INT8,
    INT16,
    INT32,
    NULLABLE_STRING,
    STRING,
    UUID,
    Uuid,
)


class ConsumerGroupDescribeRequest(Message, api_key=69, versions="0-1", flexible="0+"):
    group_ids: list[str] = field(array(STRING), means=Meaning.GROUP)
    include_authorized_operations: bool = field(BOOLEAN)


class TopicPartitions(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class Assignment(Struct):
    topic_partitions: list[TopicPartitions] = field(array(TopicPartitions))


class Member(Struct):
    member_id: str = field(STRING, means=Meaning.MEMBER)
    instance_id: str | None = field(NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, default=None)
    rack_id: str | None = field(NULLABLE_STRING, default=None)
    member_epoch: int = field(INT32, means=Meaning.MEMBER_EPOCH)
    client_id: str = field(STRING, means=Meaning.CLIENT_ID)
    client_host: str = field(STRING, means=Meaning.CLIENT_HOST)
    subscribed_topic_names: list[str] = field(array(STRING), means=Meaning.TOPIC)
    subscribed_topic_regex: str | None = field(
        NULLABLE_STRING, means=Meaning.TOPIC_PATTERN, default=None
    )
    assignment: Assignment = field(Assignment)
    target_assignment: Assignment = field(Assignment)
    member_type: int = field(INT8, versions="1+", default=-1)


class DescribedGroup(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    group_id: str = field(STRING, means=Meaning.GROUP)
    group_state: str = field(STRING)
    group_epoch: int = field(INT32)
    assignment_epoch: int = field(INT32)
    assignor_name: str = field(STRING)
    members: list[Member] = field(array(Member))
    authorized_operations: int = field(INT32, default=-0x80000000)


class ConsumerGroupDescribeResponse(Message, api_key=69, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    groups: list[DescribedGroup] = field(array(DescribedGroup))
