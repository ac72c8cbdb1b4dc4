"""OffsetFetch (API key 9): read a group's stored offsets.

Versions 1 to 10, in the compact encoding from 6 on.

What changed:
   2  response adds error_code
   3  response adds throttle_time_ms
   5  response adds committed_leader_epoch
   7  request adds require_stable
   8  request adds groups, drops group_id, topics; response adds groups, drops topics,
      error_code
   9  request adds member_id, member_epoch
  10  request adds topic_id, drops name; response adds topic_id, drops name
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    BOOLEAN,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UUID,
    Uuid,
)


class OffsetFetchRequestTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partition_indexes: list[int] = field(array(INT32), means=Meaning.PARTITION)


class OffsetFetchRequestTopics(Struct):
    name: str = field(STRING, means=Meaning.TOPIC, versions="8-9")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="10+")
    partition_indexes: list[int] = field(array(INT32), means=Meaning.PARTITION)


class OffsetFetchRequestGroup(Struct):
    group_id: str = field(STRING, means=Meaning.GROUP)
    member_id: str | None = field(
        NULLABLE_STRING, means=Meaning.MEMBER, versions="9+", default=None
    )
    member_epoch: int = field(INT32, means=Meaning.MEMBER_EPOCH, versions="9+", default=-1)
    topics: list[OffsetFetchRequestTopics] | None = field(
        array(OffsetFetchRequestTopics), nullable="0+"
    )


class OffsetFetchRequest(Message, api_key=9, versions="1-10", flexible="6+"):
    group_id: str = field(STRING, means=Meaning.GROUP, versions="0-7")
    topics: list[OffsetFetchRequestTopic] | None = field(
        array(OffsetFetchRequestTopic), versions="0-7", nullable="2-7"
    )
    groups: list[OffsetFetchRequestGroup] = field(array(OffsetFetchRequestGroup), versions="8+")
    require_stable: bool = field(BOOLEAN, versions="7+")


class OffsetFetchResponsePartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    committed_offset: int = field(INT64, means=Meaning.OFFSET)
    committed_leader_epoch: int = field(
        INT32, means=Meaning.LEADER_EPOCH, versions="5+", default=-1
    )
    metadata: str | None = field(NULLABLE_STRING)
    error_code: int = field(INT16, means=Meaning.ERROR)


class OffsetFetchResponseTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[OffsetFetchResponsePartition] = field(array(OffsetFetchResponsePartition))


class OffsetFetchResponsePartitions(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    committed_offset: int = field(INT64, means=Meaning.OFFSET)
    committed_leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, default=-1)
    metadata: str | None = field(NULLABLE_STRING)
    error_code: int = field(INT16, means=Meaning.ERROR)


class OffsetFetchResponseTopics(Struct):
    name: str = field(STRING, means=Meaning.TOPIC, versions="8-9")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="10+")
    partitions: list[OffsetFetchResponsePartitions] = field(array(OffsetFetchResponsePartitions))


class OffsetFetchResponseGroup(Struct):
    group_id: str = field(STRING, means=Meaning.GROUP)
    topics: list[OffsetFetchResponseTopics] = field(array(OffsetFetchResponseTopics))
    error_code: int = field(INT16, means=Meaning.ERROR)


class OffsetFetchResponse(Message, api_key=9, versions="1-10", flexible="6+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="4+", versions="3+")
    topics: list[OffsetFetchResponseTopic] = field(array(OffsetFetchResponseTopic), versions="0-7")
    error_code: int = field(INT16, means=Meaning.ERROR, versions="2-7")
    groups: list[OffsetFetchResponseGroup] = field(array(OffsetFetchResponseGroup), versions="8+")
