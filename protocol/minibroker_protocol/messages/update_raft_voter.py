"""UpdateRaftVoter (API key 82): change a voter's endpoints (KIP-853).

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING, UINT16, UUID, Uuid


class Listener(Struct):
    name: str = field(STRING)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class KRaftVersionFeature(Struct):
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class UpdateRaftVoterRequest(Message, api_key=82, versions="0", flexible="0+"):
    cluster_id: str | None = field(NULLABLE_STRING, means=Meaning.CLUSTER)
    current_leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH)
    voter_id: int = field(INT32, means=Meaning.BROKER)
    voter_directory_id: Uuid = field(UUID)
    listeners: list[Listener] = field(array(Listener))
    kraft_version_feature: KRaftVersionFeature = field(KRaftVersionFeature)


class CurrentLeader(Struct):
    leader_id: int = field(INT32, means=Meaning.BROKER, default=-1)
    leader_epoch: int = field(INT32, means=Meaning.LEADER_EPOCH, default=-1)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(INT32, means=Meaning.PEER_PORT)


class UpdateRaftVoterResponse(Message, api_key=82, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    current_leader: CurrentLeader | None = field(CurrentLeader, tagged="0+", tag=0, default=None)
