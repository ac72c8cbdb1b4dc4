"""ElectLeaders (API key 43): elect the leaders of partitions.

Versions 0 to 2, in the compact encoding from 2 on.

What changed:
  1  request adds election_type; response adds error_code
"""

from __future__ import annotations

from protocol.schema import Message, Struct, array, field
from protocol.types import INT8, INT16, INT32, NULLABLE_STRING, STRING


class TopicPartitions(Struct):
    topic: str = field(STRING)
    partitions: list[int] = field(array(INT32))


class ElectLeadersRequest(Message, api_key=43, versions="0-2", flexible="2+"):
    election_type: int = field(INT8, versions="1+")
    topic_partitions: list[TopicPartitions] | None = field(array(TopicPartitions), nullable="0+")
    timeout_ms: int = field(INT32, default=60000)


class PartitionResult(Struct):
    partition_id: int = field(INT32)
    error_code: int = field(INT16)
    error_message: str | None = field(NULLABLE_STRING)


class ReplicaElectionResult(Struct):
    topic: str = field(STRING)
    partition_result: list[PartitionResult] = field(array(PartitionResult))


class ElectLeadersResponse(Message, api_key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16, versions="1+")
    replica_election_results: list[ReplicaElectionResult] = field(array(ReplicaElectionResult))
