"""AlterPartitionReassignments (API key 45): move partitions between brokers.

Versions 0 to 1, all in the compact encoding.

What changed:
  1  request adds allow_replication_factor_change; response adds allow_replication_factor_change
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, INT16, INT32, NULLABLE_STRING, STRING


class ReassignablePartition(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    replicas: list[int] | None = field(
        array(INT32), means=Meaning.BROKER, nullable="0+", default=None
    )


class ReassignableTopic(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[ReassignablePartition] = field(array(ReassignablePartition))


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions="0-1", flexible="0+"):
    timeout_ms: int = field(INT32, default=60000)
    allow_replication_factor_change: bool = field(BOOLEAN, versions="1+", default=True)
    topics: list[ReassignableTopic] = field(array(ReassignableTopic))


class ReassignablePartitionResponse(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)


class ReassignableTopicResponse(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[ReassignablePartitionResponse] = field(array(ReassignablePartitionResponse))


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    allow_replication_factor_change: bool = field(BOOLEAN, versions="1+", default=True)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
    responses: list[ReassignableTopicResponse] = field(array(ReassignableTopicResponse))
