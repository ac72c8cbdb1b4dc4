"""InitializeShareGroupState (API key 83): start a share partition's state.

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, NULLABLE_STRING, STRING, UUID, Uuid


class PartitionData(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    state_epoch: int = field(INT32)
    start_offset: int = field(INT64, means=Meaning.OFFSET)


class InitializeStateData(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[PartitionData] = field(array(PartitionData))


class InitializeShareGroupStateRequest(Message, api_key=83, versions="0", flexible="0+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    topics: list[InitializeStateData] = field(array(InitializeStateData))


class PartitionResult(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)


class InitializeStateResult(Struct):
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID)
    partitions: list[PartitionResult] = field(array(PartitionResult))


class InitializeShareGroupStateResponse(Message, api_key=83, versions="0", flexible="0+"):
    results: list[InitializeStateResult] = field(array(InitializeStateResult))
