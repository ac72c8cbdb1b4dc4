"""TxnOffsetCommit (API key 28): store a group's offsets when a transaction commits.

Versions 0 to 6, in the compact encoding from 3 on.

What changed:
  2  request adds committed_leader_epoch
  3  request adds generation_id_or_member_epoch, member_id, group_instance_id
  6  topic_id replaces name
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, NULLABLE_STRING, STRING, UUID, Uuid


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    committed_offset: int = field(INT64, means=Meaning.OFFSET)
    committed_leader_epoch: int = field(
        INT32, means=Meaning.LEADER_EPOCH, versions="2+", default=-1
    )
    committed_metadata: str | None = field(NULLABLE_STRING)


class TxnOffsetCommitRequestTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC, versions="0-5")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="6+")
    partitions: list[TxnOffsetCommitRequestPartition] = field(
        array(TxnOffsetCommitRequestPartition)
    )


class TxnOffsetCommitRequest(Message, api_key=28, versions="0-6", flexible="3+"):
    transactional_id: str = field(STRING, means=Meaning.TRANSACTIONAL_ID)
    group_id: str = field(STRING, means=Meaning.GROUP)
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID)
    producer_epoch: int = field(INT16, means=Meaning.PRODUCER_EPOCH)
    generation_id_or_member_epoch: int = field(
        INT32, means=Meaning.GENERATION, versions="3+", default=-1
    )
    member_id: str = field(STRING, means=Meaning.MEMBER, versions="3+")
    group_instance_id: str | None = field(
        NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, versions="3+", default=None
    )
    topics: list[TxnOffsetCommitRequestTopic] = field(array(TxnOffsetCommitRequestTopic))


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)


class TxnOffsetCommitResponseTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC, versions="0-5")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="6+")
    partitions: list[TxnOffsetCommitResponsePartition] = field(
        array(TxnOffsetCommitResponsePartition)
    )


class TxnOffsetCommitResponse(Message, api_key=28, versions="0-6", flexible="3+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    topics: list[TxnOffsetCommitResponseTopic] = field(array(TxnOffsetCommitResponseTopic))
