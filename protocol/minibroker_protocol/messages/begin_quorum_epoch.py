"""BeginQuorumEpoch (API key 53): announce a new leader to KRaft voters.

Versions 0 to 1, in the compact encoding from 1 on.

What changed:
  1  request adds voter_directory_id, voter_id, leader_endpoints; response adds node_endpoints
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING, UINT16, UUID, Uuid


class BeginQuorumEpochRequestPartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    voter_directory_id: Uuid = field(UUID, versions="1+")
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)


class BeginQuorumEpochRequestTopicData(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[BeginQuorumEpochRequestPartitionData] = field(
        array(BeginQuorumEpochRequestPartitionData)
    )


class LeaderEndpoint(Struct):
    name: str = field(STRING)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class BeginQuorumEpochRequest(Message, api_key=53, versions="0-1", flexible="1+"):
    cluster_id: str | None = field(NULLABLE_STRING, means=Meaning.CLUSTER, default=None)
    voter_id: int = field(INT32, means=Meaning.BROKER, versions="1+", default=-1)
    topics: list[BeginQuorumEpochRequestTopicData] = field(array(BeginQuorumEpochRequestTopicData))
    leader_endpoints: list[LeaderEndpoint] = field(array(LeaderEndpoint), versions="1+")


class BeginQuorumEpochResponsePartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)


class BeginQuorumEpochResponseTopicData(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[BeginQuorumEpochResponsePartitionData] = field(
        array(BeginQuorumEpochResponsePartitionData)
    )


class NodeEndpoint(Struct):
    node_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class BeginQuorumEpochResponse(Message, api_key=53, versions="0-1", flexible="1+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    topics: list[BeginQuorumEpochResponseTopicData] = field(
        array(BeginQuorumEpochResponseTopicData)
    )
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), tagged="1+", tag=0)
