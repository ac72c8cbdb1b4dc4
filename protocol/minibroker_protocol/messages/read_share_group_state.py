"""ReadShareGroupState (API key 84): read a share partition's state.

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT16, INT32, INT64, NULLABLE_STRING, STRING, UUID, Uuid


class PartitionData(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)


class ReadStateData(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[PartitionData] = field(array(PartitionData))


class ReadShareGroupStateRequest(Message, api_key=84, versions="0", flexible="0+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    topics: list[ReadStateData] = field(array(ReadStateData))


class StateBatch(Struct):
    first_offset: int = field(INT64, means=Meaning.OFFSET)
    last_offset: int = field(INT64, means=Meaning.OFFSET)
    delivery_state: int = field(INT8)
    delivery_count: int = field(INT16)


class PartitionResult(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    state_epoch: int = field(INT32)
    start_offset: int = field(INT64, means=Meaning.OFFSET)
    state_batches: list[StateBatch] = field(array(StateBatch))


class ReadStateResult(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[PartitionResult] = field(array(PartitionResult))


class ReadShareGroupStateResponse(Message, api_key=84, versions="0", flexible="0+"):
    results: list[ReadStateResult] = field(array(ReadStateResult))
