"""WriteShareGroupState (API key 85): store a share partition's state.

Versions 0 to 1, all in the compact encoding.

What changed:
  1  request adds delivery_complete_count
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT16, INT32, INT64, NULLABLE_STRING, STRING, UUID, Uuid


class StateBatch(Struct):
    first_offset: int = field(INT64, means=Meaning.OFFSET)
    last_offset: int = field(INT64, means=Meaning.OFFSET)
    delivery_state: int = field(INT8)
    delivery_count: int = field(INT16)


class PartitionData(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    state_epoch: int = field(INT32)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    start_offset: int = field(INT64, means=Meaning.OFFSET)
    delivery_complete_count: int = field(INT32, versions="1+", default=-1)
    state_batches: list[StateBatch] = field(array(StateBatch))


class WriteStateData(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[PartitionData] = field(array(PartitionData))


class WriteShareGroupStateRequest(Message, api_key=85, versions="0-1", flexible="0+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    topics: list[WriteStateData] = field(array(WriteStateData))


class PartitionResult(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)


class WriteStateResult(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[PartitionResult] = field(array(PartitionResult))


class WriteShareGroupStateResponse(Message, api_key=85, versions="0-1", flexible="0+"):
    results: list[WriteStateResult] = field(array(WriteStateResult))
