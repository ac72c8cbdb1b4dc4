"""DeleteRecords (API key 21): move the start of partitions' logs forward.

Versions 0 to 2, in the compact encoding from 2 on.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, STRING


class DeleteRecordsPartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    offset: int = field(INT64, means=Meaning.OFFSET)


class DeleteRecordsTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[DeleteRecordsPartition] = field(array(DeleteRecordsPartition))


class DeleteRecordsRequest(Message, api_key=21, versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsTopic] = field(array(DeleteRecordsTopic))
    timeout_ms: int = field(INT32)


class DeleteRecordsPartitionResult(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    low_watermark: int = field(INT64, means=Meaning.OFFSET)
    error_code: int = field(INT16, means=Meaning.ERROR)


class DeleteRecordsTopicResult(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[DeleteRecordsPartitionResult] = field(array(DeleteRecordsPartitionResult))


class DeleteRecordsResponse(Message, api_key=21, versions="0-2", flexible="2+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    topics: list[DeleteRecordsTopicResult] = field(array(DeleteRecordsTopicResult))
