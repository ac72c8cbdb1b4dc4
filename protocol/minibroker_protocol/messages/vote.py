"""Vote (API key 52): ask for a vote in a KRaft election.

Versions 0 to 2, all in the compact encoding.

What changed:
  1  request adds replica_directory_id, voter_directory_id, voter_id; response adds
     node_endpoints
  2  request adds pre_vote
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    BOOLEAN,
    INT16,
    INT32,
    INT64,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID,
    Uuid,
)


class VoteRequestPartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    replica_epoch: int = field(INT32)
    replica_id: int = field(INT32, means=Meaning.BROKER)
    replica_directory_id: Uuid = field(UUID, versions="1+")
    voter_directory_id: Uuid = field(UUID, versions="1+")
    last_offset_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    last_offset: int = field(INT64, means=Meaning.OFFSET)
    pre_vote: bool = field(BOOLEAN, versions="2+")


class VoteRequestTopicData(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[VoteRequestPartitionData] = field(array(VoteRequestPartitionData))


class VoteRequest(Message, api_key=52, versions="0-2", flexible="0+"):
    cluster_id: str | None = field(NULLABLE_STRING, means=Meaning.CLUSTER, default=None)
    voter_id: int = field(INT32, means=Meaning.BROKER, versions="1+", default=-1)
    topics: list[VoteRequestTopicData] = field(array(VoteRequestTopicData))


class VoteResponsePartitionData(Struct):
    partition_index: int = field(INT32, means=Meaning.PARTITION)
    error_code: int = field(INT16, means=Meaning.ERROR)
    leader_id: int = field(INT32, means=Meaning.BROKER)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    vote_granted: bool = field(BOOLEAN)


class VoteResponseTopicData(Struct):
    topic_name: str = field(STRING, means=Meaning.TOPIC)
    partitions: list[VoteResponsePartitionData] = field(array(VoteResponsePartitionData))


class NodeEndpoint(Struct):
    node_id: int = field(INT32, means=Meaning.BROKER)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class VoteResponse(Message, api_key=52, versions="0-2", flexible="0+"):
    error_code: int = field(INT16, means=Meaning.ERROR)
    topics: list[VoteResponseTopicData] = field(array(VoteResponseTopicData))
    node_endpoints: list[NodeEndpoint] = field(array(NodeEndpoint), tagged="1+", tag=0)
