"""DescribeProducers (API key 61): which producers write to partitions.

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, INT64, NULLABLE_STRING, STRING


class TopicRequest(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partition_indexes: list[int] = field(array(INT32), means=Meaning.PARTITION)


class DescribeProducersRequest(Message, api_key=61, versions="0", flexible="0+"):
    topics: list[TopicRequest] = field(array(TopicRequest))


class ProducerState(Struct):
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID)
    producer_epoch: int = field(INT32, means=Meaning.PRODUCER_EPOCH)
    last_sequence: int = field(INT32, default=-1)
    last_timestamp: int = field(INT64, default=-1)
    coordinator_epoch: int = field(INT32)
    current_txn_start_offset: int = field(INT64, means=Meaning.OFFSET, default=-1)


class PartitionResponse(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE, default=None)
    active_producers: list[ProducerState] = field(array(ProducerState))


class TopicResponse(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[PartitionResponse] = field(array(PartitionResponse))


class DescribeProducersResponse(Message, api_key=61, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    topics: list[TopicResponse] = field(array(TopicResponse))
