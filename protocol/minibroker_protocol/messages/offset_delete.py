"""OffsetDelete (API key 47): forget a group's offsets of some partitions.

Version 0, not in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, STRING


class OffsetDeleteRequestPartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)


class OffsetDeleteRequestTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[OffsetDeleteRequestPartition] = field(array(OffsetDeleteRequestPartition))


class OffsetDeleteRequest(Message, api_key=47, versions="0"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    topics: list[OffsetDeleteRequestTopic] = field(array(OffsetDeleteRequestTopic))


class OffsetDeleteResponsePartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)


class OffsetDeleteResponseTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[OffsetDeleteResponsePartition] = field(array(OffsetDeleteResponsePartition))


class OffsetDeleteResponse(Message, api_key=47, versions="0"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    topics: list[OffsetDeleteResponseTopic] = field(array(OffsetDeleteResponseTopic))
