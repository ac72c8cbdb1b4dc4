"""UpdateRaftVoter (API key 82): change a voter's endpoints (KIP-853).

Version 0, in the compact encoding.
"""

from __future__ import annotations

from protocol.schema import Message, Struct, array, field
from protocol.types import INT16, INT32, NULLABLE_STRING, STRING, UINT16, UUID, Uuid


class Listener(Struct):
    name: str = field(STRING)
    host: str = field(STRING)
    port: int = field(UINT16)


class KRaftVersionFeature(Struct):
    min_supported_version: int = field(INT16)
    max_supported_version: int = field(INT16)


class UpdateRaftVoterRequest(Message, api_key=82, versions="0", flexible="0+"):
    cluster_id: str | None = field(NULLABLE_STRING)
    current_leader_epoch: int = field(INT32)
    voter_id: int = field(INT32)
    voter_directory_id: Uuid = field(UUID)
    listeners: list[Listener] = field(array(Listener))
    kraft_version_feature: KRaftVersionFeature = field(KRaftVersionFeature)


class CurrentLeader(Struct):
    leader_id: int = field(INT32, default=-1)
    leader_epoch: int = field(INT32, default=-1)
    host: str = field(STRING)
    port: int = field(INT32)


class UpdateRaftVoterResponse(Message, api_key=82, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32)
    error_code: int = field(INT16)
    current_leader: CurrentLeader | None = field(CurrentLeader, tagged="0+", tag=0, default=None)
