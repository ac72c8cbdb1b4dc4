"""ReadShareGroupStateSummary (API key 87): read a share partition's offsets.

Versions 0 to 1, all in the compact encoding.

What changed:
  1  response adds delivery_complete_count
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, NULLABLE_STRING, STRING, UUID, Uuid


class PartitionData(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)


class ReadStateSummaryData(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[PartitionData] = field(array(PartitionData))


class ReadShareGroupStateSummaryRequest(Message, api_key=87, versions="0-1", flexible="0+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    topics: list[ReadStateSummaryData] = field(array(ReadStateSummaryData))


class PartitionResult(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    state_epoch: int = field(INT32)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    start_offset: int = field(INT64, means=Meaning.OFFSET)
    delivery_complete_count: int = field(INT32, versions="1+", default=-1)


class ReadStateSummaryResult(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[PartitionResult] = field(array(PartitionResult))


class ReadShareGroupStateSummaryResponse(Message, api_key=87, versions="0-1", flexible="0+"):
    results: list[ReadStateSummaryResult] = field(array(ReadStateSummaryResult))
