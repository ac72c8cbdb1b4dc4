"""OffsetCommit (API key 8): store a group's offsets.

Versions 2 to 10, in the compact encoding from 8 on.

What changed:
   3  response adds throttle_time_ms
   5  request drops retention_time_ms
   6  request adds committed_leader_epoch
   7  request adds group_instance_id
  10  request adds topic_id, drops name; response adds topic_id, drops name
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, NULLABLE_STRING, STRING, UUID, Uuid


class OffsetCommitRequestPartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    committed_offset: int = field(INT64, means=Meaning.OFFSET)
    committed_leader_epoch: int = field(
        INT32, means=Meaning.LEADER_EPOCH, versions="6+", default=-1
    )
    committed_metadata: str | None = field(NULLABLE_STRING)


class OffsetCommitRequestTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC, versions="0-9")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="10+")
    partitions: list[OffsetCommitRequestPartition] = field(array(OffsetCommitRequestPartition))


class OffsetCommitRequest(Message, api_key=8, versions="2-10", flexible="8+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    generation_id_or_member_epoch: int = field(INT32, means=Meaning.GENERATION, default=-1)
    member_id: str = field(STRING, means=Meaning.MEMBER)
    group_instance_id: str | None = field(
        NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, versions="7+", default=None
    )
    retention_time_ms: int = field(INT64, versions="2-4", default=-1)
    topics: list[OffsetCommitRequestTopic] = field(array(OffsetCommitRequestTopic))


class OffsetCommitResponsePartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)


class OffsetCommitResponseTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC, versions="0-9")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="10+")
    partitions: list[OffsetCommitResponsePartition] = field(array(OffsetCommitResponsePartition))


class OffsetCommitResponse(Message, api_key=8, versions="2-10", flexible="8+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="4+", versions="3+")
    topics: list[OffsetCommitResponseTopic] = field(array(OffsetCommitResponseTopic))
