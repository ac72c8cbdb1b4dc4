"""TxnOffsetCommit (API key 28): store a group's offsets when a transaction commits.

Versions 0 to 6, in the compact encoding from 3 on.

What changed:
  2  request adds committed_leader_epoch
  3  request adds generation_id_or_member_epoch, member_id, group_instance_id
  6  topic_id replaces name
"""

from __future__ import annotations

from protocol.schema import Message, Struct, array, field
from protocol.types import INT16, INT32, INT64, NULLABLE_STRING, STRING, UUID, Uuid


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = field(INT32)
    committed_offset: int = field(INT64)
    committed_leader_epoch: int = field(INT32, versions="2+", default=-1)
    committed_metadata: str | None = field(NULLABLE_STRING)


class TxnOffsetCommitRequestTopic(Struct):
    name: str = field(STRING, versions="0-5")
    topic_id: Uuid = field(UUID, versions="6+")
    partitions: list[TxnOffsetCommitRequestPartition] = field(
        array(TxnOffsetCommitRequestPartition)
    )


class TxnOffsetCommitRequest(Message, api_key=28, versions="0-6", flexible="3+"):
    transactional_id: str = field(STRING)
    group_id: str = field(STRING)
    producer_id: int = field(INT64)
    producer_epoch: int = field(INT16)
    generation_id_or_member_epoch: int = field(INT32, versions="3+", default=-1)
    member_id: str = field(STRING, versions="3+")
    group_instance_id: str | None = field(NULLABLE_STRING, versions="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = field(array(TxnOffsetCommitRequestTopic))


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = field(INT32)
    error_code: int = field(INT16)


class TxnOffsetCommitResponseTopic(Struct):
    name: str = field(STRING, versions="0-5")
    topic_id: Uuid = field(UUID, versions="6+")
    partitions: list[TxnOffsetCommitResponsePartition] = field(
        array(TxnOffsetCommitResponsePartition)
    )


class TxnOffsetCommitResponse(Message, api_key=28, versions="0-6", flexible="3+"):
    throttle_time_ms: int = field(INT32)
    topics: list[TxnOffsetCommitResponseTopic] = field(array(TxnOffsetCommitResponseTopic))
