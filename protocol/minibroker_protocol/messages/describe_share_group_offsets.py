"""DescribeShareGroupOffsets (API key 90): describe the offsets of a share group.

Versions 0 to 1, all in the compact encoding.

What changed:
  1  response adds lag
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, NULLABLE_STRING, STRING, UUID, Uuid


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: str = field(STRING, means=Meaning.GROUP)
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field(
        array(DescribeShareGroupOffsetsRequestTopic), nullable="0+"
    )


class DescribeShareGroupOffsetsRequest(Message, api_key=90, versions="0-1", flexible="0+"):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = field(
        array(DescribeShareGroupOffsetsRequestGroup)
    )


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    start_offset: int = field(INT64, means=Meaning.OFFSET)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    lag: int = field(INT64, versions="1+", default=-1)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field(
        array(DescribeShareGroupOffsetsResponsePartition)
    )


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: str = field(STRING, means=Meaning.GROUP)
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field(
        array(DescribeShareGroupOffsetsResponseTopic)
    )
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)


class DescribeShareGroupOffsetsResponse(Message, api_key=90, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field(
        array(DescribeShareGroupOffsetsResponseGroup)
    )
