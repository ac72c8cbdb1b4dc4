"""Fetch (API key 1): read record batches from partitions.

Versions 4 to 18, in the compact encoding from 12 on.

What changed:
   5  request adds log_start_offset; response adds log_start_offset
   7  request adds session_id, session_epoch, forgotten_topics_data; response adds error_code,
      session_id
   9  request adds current_leader_epoch
  11  request adds rack_id; response adds preferred_read_replica
  12  request adds last_fetched_epoch, cluster_id; response adds diverging_epoch,
      current_leader, snapshot_id
  13  request adds topic_id, drops topic; response adds topic_id, drops topic
  15  request adds replica_state, drops replica_id
  16  response adds node_endpoints
  17  request adds replica_directory_id
  18  request adds high_watermark
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_RECORDS,
    NULLABLE_STRING,
    STRING,
    UUID,
    RecordsOut,
    Uuid,
)


class ReplicaState(Struct):
    replica_id: int = field(INT32, means=Meaning.BROKER, default=-1)
    replica_epoch: int = field(INT64, default=-1)


class FetchPartition(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    current_leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, versions="9+", default=-1)
    fetch_offset: int = field(INT64, means=Meaning.OFFSET)
    last_fetched_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, versions="12+", default=-1)
    log_start_offset: int = field(INT64, means=Meaning.OFFSET, versions="5+", default=-1)
    partition_max_bytes: int = field(INT32)
    replica_directory_id: Uuid = field(UUID, tagged="17+", tag=0)
    high_watermark: int = field(
        INT64, means=Meaning.OFFSET, tagged="18+", tag=1, default=0x7FFFFFFFFFFFFFFF
    )


class FetchTopic(Struct):
    topic: str = field(STRING, means=Meaning.TOPIC, versions="0-12")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="13+")
    partitions: list[FetchPartition] = field(array(FetchPartition))


class ForgottenTopic(Struct):
    topic: str = field(STRING, means=Meaning.TOPIC, versions="7-12")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="13+")
    partitions: list[int] = field(array(INT32), means=Meaning.PARTITION)


class FetchRequest(Message, api_key=1, versions="4-18", flexible="12+"):
    cluster_id: str | None = field(
        NULLABLE_STRING, means=Meaning.CLUSTER, tagged="12+", tag=0, default=None
    )
    replica_id: int = field(INT32, means=Meaning.BROKER, versions="0-14", default=-1)
    replica_state: ReplicaState | None = field(ReplicaState, tagged="15+", tag=1, default=None)
    max_wait_ms: int = field(INT32)
    min_bytes: int = field(INT32)
    max_bytes: int = field(INT32, default=0x7FFFFFFF)
    isolation_level: int = field(INT8)
    session_id: int = field(INT32, means=Meaning.SESSION, versions="7+")
    session_epoch: int = field(INT32, versions="7+", default=-1)
    topics: list[FetchTopic] = field(array(FetchTopic))
    forgotten_topics_data: list[ForgottenTopic] = field(
        array(ForgottenTopic), means=Meaning.FORGOTTEN, versions="7+"
    )
    rack_id: str = field(STRING, versions="11+")


class EpochEndOffset(Struct):
    epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, default=-1)
    end_offset: int = field(INT64, means=Meaning.OFFSET, default=-1)


class LeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32, means=Meaning.BROKER, default=-1)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, default=-1)


class SnapshotId(Struct):
    end_offset: int = field(INT64, means=Meaning.OFFSET, default=-1)
    epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, default=-1)


class AbortedTransaction(Struct):
    producer_id: int = field(INT64, means=Meaning.PRODUCER_ID)
    first_offset: int = field(INT64, means=Meaning.OFFSET)


class PartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    high_watermark: int = field(INT64, means=Meaning.OFFSET)
    last_stable_offset: int = field(INT64, means=Meaning.OFFSET, default=-1)
    log_start_offset: int = field(INT64, means=Meaning.OFFSET, versions="5+", default=-1)
    diverging_epoch: EpochEndOffset | None = field(
        EpochEndOffset, tagged="12+", tag=0, default=None
    )
    current_leader: LeaderIdAndEpoch | None = field(
        LeaderIdAndEpoch, tagged="12+", tag=1, default=None
    )
    snapshot_id: SnapshotId | None = field(SnapshotId, tagged="12+", tag=2, default=None)
    aborted_transactions: list[AbortedTransaction] | None = field(
        array(AbortedTransaction), nullable="0+"
    )
    preferred_read_replica: int = field(INT32, means=Meaning.BROKER, versions="11+", default=-1)
    records: RecordsOut | None = field(NULLABLE_RECORDS)


class FetchableTopicResponse(Struct):
    topic: str = field(STRING, means=Meaning.TOPIC, versions="0-12")
    topic_id: Uuid = field(UUID, means=Meaning.TOPIC_ID, versions="13+")
    partitions: list[PartitionData] = field(array(PartitionData))


class NodeEndpoint(Struct):
    node_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.HOST)
    port: int = field(INT32, means=Meaning.PORT)
    rack: str | None = field(NULLABLE_STRING, default=None)


class FetchResponse(Message, api_key=1, versions="4-18", flexible="12+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="8+")
    error_code: int = field(INT16, means=Meaning.ERROR, versions="7+")
    session_id: int = field(INT32, means=Meaning.SESSION, versions="7+")
    responses: list[FetchableTopicResponse] = field(array(FetchableTopicResponse))
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), tagged="16+", tag=0)
