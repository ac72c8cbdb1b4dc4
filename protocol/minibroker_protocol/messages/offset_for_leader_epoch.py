"""OffsetForLeaderEpoch (API key 23): where a leader's epoch ended.

Versions 2 to 4, in the compact encoding from 4 on.

What changed:
  3  request adds replica_id
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, STRING


class OffsetForLeaderPartition(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    current_leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, default=-1)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)


class OffsetForLeaderTopic(Struct):
    topic: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[OffsetForLeaderPartition] = field(array(OffsetForLeaderPartition))


class OffsetForLeaderEpochRequest(Message, api_key=23, versions="2-4", flexible="4+"):
    replica_id: int = field(INT32, means=Meaning.BROKER, versions="3+", default=-2)
    topics: list[OffsetForLeaderTopic] = field(array(OffsetForLeaderTopic))


class EpochEndOffset(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    partition: int = field(INT32, means=Meaning.PARTITION)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, default=-1)
    end_offset: int = field(INT64, means=Meaning.OFFSET, default=-1)


class OffsetForLeaderTopicResult(Struct):
    topic: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[EpochEndOffset] = field(array(EpochEndOffset))


class OffsetForLeaderEpochResponse(Message, api_key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    topics: list[OffsetForLeaderTopicResult] = field(array(OffsetForLeaderTopicResult))
