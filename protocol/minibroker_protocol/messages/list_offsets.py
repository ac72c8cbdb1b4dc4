"""ListOffsets (API key 2): find offsets by timestamp, or a partition's ends.

Versions 1 to 11, in the compact encoding from 6 on.

What changed:
   2  request adds isolation_level; response adds throttle_time_ms
   4  request adds current_leader_epoch; response adds leader_epoch
  10  request adds timeout_ms
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT16, INT32, INT64, STRING


class ListOffsetsPartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    current_leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, versions="4+", default=-1)
    timestamp: int = field(INT64)


class ListOffsetsTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[ListOffsetsPartition] = field(array(ListOffsetsPartition))


class ListOffsetsRequest(Message, api_key=2, versions="1-11", flexible="6+"):
    replica_id: int = field(INT32, means=Meaning.BROKER)
    isolation_level: int = field(INT8, versions="2+")
    topics: list[ListOffsetsTopic] = field(array(ListOffsetsTopic))
    timeout_ms: int = field(INT32, versions="10+")


class ListOffsetsPartitionResponse(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    timestamp: int = field(INT64, default=-1)
    offset: int = field(INT64, means=Meaning.OFFSET, default=-1)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, versions="4+", default=-1)


class ListOffsetsTopicResponse(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[ListOffsetsPartitionResponse] = field(array(ListOffsetsPartitionResponse))


class ListOffsetsResponse(Message, api_key=2, versions="1-11", flexible="6+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="3+", versions="2+")
    topics: list[ListOffsetsTopicResponse] = field(array(ListOffsetsTopicResponse))
