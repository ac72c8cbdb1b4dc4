"""FetchSnapshot (API key 59): read a KRaft snapshot in pieces.

Versions 0 to 1, all in the compact encoding.

What changed:
  1  request adds replica_directory_id; response adds node_endpoints
"""

from __future__ import annotations

from protocol.schema import Message, Struct, array, field
from protocol.types import (
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
    end_offset: int = field(INT64)
    epoch: int = field(INT32)


class FetchSnapshotRequestPartitionSnapshot(Struct):
    partition: int = field(INT32)
    current_leader_epoch: int = field(INT32)
    snapshot_id: SnapshotId = field(SnapshotId)
    position: int = field(INT64)
    replica_directory_id: Uuid = field(UUID, tagged="1+", tag=0)


class FetchSnapshotRequestTopicSnapshot(Struct):
    name: str = field(STRING)
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = field(
        array(FetchSnapshotRequestPartitionSnapshot)
    )


class FetchSnapshotRequest(Message, api_key=59, versions="0-1", flexible="0+"):
    cluster_id: str | None = field(NULLABLE_STRING, tagged="0+", tag=0, default=None)
    replica_id: int = field(INT32, default=-1)
    max_bytes: int = field(INT32, default=0x7FFFFFFF)
    topics: list[FetchSnapshotRequestTopicSnapshot] = field(
        array(FetchSnapshotRequestTopicSnapshot)
    )


class LeaderIdAndEpoch(Struct):
    leader_id: int = field(INT32)
    leader_epoch: int = field(INT32)


class FetchSnapshotResponsePartitionSnapshot(Struct):
    index: int = field(INT32)
    error_code: int = field(INT16)
    snapshot_id: SnapshotId = field(SnapshotId)
    current_leader: LeaderIdAndEpoch | None = field(
        LeaderIdAndEpoch, tagged="0+", tag=0, default=None
    )
    size: int = field(INT64)
    position: int = field(INT64)
    unaligned_records: RecordsOut = field(RECORDS)


class FetchSnapshotResponseTopicSnapshot(Struct):
    name: str = field(STRING)
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = field(
        array(FetchSnapshotResponsePartitionSnapshot)
    )


class NodeEndpoint(Struct):
    node_id: int = field(INT32)
    host: str = field(STRING)
    port: int = field(UINT16)


class FetchSnapshotResponse(Message, api_key=59, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    topics: list[FetchSnapshotResponseTopicSnapshot] = field(
        array(FetchSnapshotResponseTopicSnapshot)
    )
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), tagged="1+", tag=0)
