"""FetchSnapshot (API key 59): read a KRaft snapshot in pieces.

Versions 0 to 1, all in the compact encoding.

What changed:
  1  request adds replica_directory_id; response adds node_endpoints
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    RECORDS,
    STRING,
    UINT16,
    UUID,
    RecordsOut,
    Uuid,
)


class SnapshotId(Struct):
    end_offset: int = field(INT64, means=Meaning.OFFSET)
    epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)


class FetchSnapshotRequestPartitionSnapshot(Struct):
    partition: int = field(INT32, means=Meaning.PARTITION)
    current_leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    snapshot_id: SnapshotId = field(SnapshotId)
    position: int = field(INT64)
    replica_directory_id: Uuid = field(UUID, tagged="1+", tag=0)


class FetchSnapshotRequestTopicSnapshot(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = field(
        array(FetchSnapshotRequestPartitionSnapshot)
    )


class FetchSnapshotRequest(Message, api_key=59, versions="0-1", flexible="0+"):
    cluster_id: str | None = field(
        NULLABLE_STRING, means=Meaning.CLUSTER, tagged="0+", tag=0, default=None
    )
    replica_id: int = field(INT32, means=Meaning.BROKER, default=-1)
    max_bytes: int = field(INT32, default=0x7FFFFFFF)
    topics: list[FetchSnapshotRequestTopicSnapshot] = field(
        array(FetchSnapshotRequestTopicSnapshot)
    )


class LeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)


class FetchSnapshotResponsePartitionSnapshot(Struct):
    index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    snapshot_id: SnapshotId = field(SnapshotId)
    current_leader: LeaderIdAndEpoch | None = field(
        LeaderIdAndEpoch, tagged="0+", tag=0, default=None
    )
    size: int = field(INT64)
    position: int = field(INT64)
    unaligned_records: RecordsOut = field(RECORDS)


class FetchSnapshotResponseTopicSnapshot(Struct):
    name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = field(
        array(FetchSnapshotResponsePartitionSnapshot)
    )


class NodeEndpoint(Struct):
    node_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class FetchSnapshotResponse(Message, api_key=59, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    topics: list[FetchSnapshotResponseTopicSnapshot] = field(
        array(FetchSnapshotResponseTopicSnapshot)
    )
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), tagged="1+", tag=0)
