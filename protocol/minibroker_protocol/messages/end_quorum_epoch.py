"""EndQuorumEpoch (API key 54): give up KRaft leadership.

Versions 0 to 1, in the compact encoding from 1 on.

What changed:
  1  request adds preferred_candidates, leader_endpoints, drops preferred_successors; response
     adds node_endpoints
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING, UINT16, UUID, Uuid


class ReplicaInfo(Struct):
    candidate_id: int = field(INT32, means=Meaning.BROKER)
    candidate_directory_id: Uuid = field(UUID)


class EndQuorumEpochRequestPartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    preferred_candidates: list[ReplicaInfo] = field(array(ReplicaInfo), versions="1+")
    preferred_successors: list[int] = field(array(INT32), means=Meaning.BROKER, versions="0")


class EndQuorumEpochRequestTopicData(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[EndQuorumEpochRequestPartitionData] = field(
        array(EndQuorumEpochRequestPartitionData)
    )


class LeaderEndpoint(Struct):
    name: str = field(STRING)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class EndQuorumEpochRequest(Message, api_key=54, versions="0-1", flexible="1+"):
    cluster_id: str | None = field(NULLABLE_STRING, means=Meaning.CLUSTER, default=None)
    topics: list[EndQuorumEpochRequestTopicData] = field(array(EndQuorumEpochRequestTopicData))
    leader_endpoints: list[LeaderEndpoint] = field(array(LeaderEndpoint), versions="1+")


class EndQuorumEpochResponsePartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)


class EndQuorumEpochResponseTopicData(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[EndQuorumEpochResponsePartitionData] = field(
        array(EndQuorumEpochResponsePartitionData)
    )


class NodeEndpoint(Struct):
    node_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class EndQuorumEpochResponse(Message, api_key=54, versions="0-1", flexible="1+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    topics: list[EndQuorumEpochResponseTopicData] = field(array(EndQuorumEpochResponseTopicData))
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), tagged="1+", tag=0)
