"""Produce (API key 0): append record batches to partitions.

Versions 3 to 13, in the compact encoding from 9 on.

What changed:
   5  response adds log_start_offset
   8  response adds record_errors, error_message
  10  response adds current_leader, node_endpoints
  13  request adds topic_id, drops name; response adds topic_id, drops name
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    INT16,
    INT32,
    INT64,
    NULLABLE_RECORDS,
    NULLABLE_STRING,
    STRING,
    UUID,
    Records,
    Uuid,
)


class PartitionProduceData(Struct):
    index: int = field(INT32, means=Meaning.PARTITION)
    records: Records | None = field(NULLABLE_RECORDS)


class TopicProduceData(Struct):
    name: str = field(STRING, means=Meaning.TOPIC, versions="0-12")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="13+")
    partition_data: list[PartitionProduceData] = field(array(PartitionProduceData))


class ProduceRequest(Message, api_key=0, versions="3-13", flexible="9+"):
    transactional_id: str | None = field(
        NULLABLE_STRING, means=Meaning.TRANSACTIONAL_ID, default=None
    )
    acks: int = field(INT16)
    timeout_ms: int = field(INT32)
    topic_data: list[TopicProduceData] = field(array(TopicProduceData))


class BatchIndexAndErrorMessage(Struct):
    batch_index: int = field(INT32)
    batch_index_error_message: str | None = field(
        NULLABLE_STRING, means=Meaning.MESSAGE, default=None
    )


class LeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32, means=Meaning.BROKER, default=-1)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, default=-1)


class PartitionProduceResponse(Struct):
    index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    base_offset: int = field(INT64, means=Meaning.BASE_OFFSET)
    log_append_time_ms: int = field(INT64, default=-1)
    log_start_offset: int = field(INT64, means=Meaning.OFFSET, versions="5+", default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = field(
        array(BatchIndexAndErrorMessage), versions="8+"
    )
    error_message: str | None = field(
        NULLABLE_STRING, means=Meaning.MESSAGE, versions="8+", default=None
    )
    current_leader: LeaderIdAndEpoch | None = field(
        LeaderIdAndEpoch, tagged="10+", tag=0, default=None
    )


class TopicProduceResponse(Struct):
    name: str = field(STRING, means=Meaning.TOPIC, versions="0-12")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="13+")
    partition_responses: list[PartitionProduceResponse] = field(array(PartitionProduceResponse))


class NodeEndpoint(Struct):
    node_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.HOST)
    port: int = field(INT32, means=Meaning.PORT)
    rack: str | None = field(NULLABLE_STRING, default=None)


class ProduceResponse(Message, api_key=0, versions="3-13", flexible="9+"):
    responses: list[TopicProduceResponse] = field(array(TopicProduceResponse))
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="6+")
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), tagged="10+", tag=0)
