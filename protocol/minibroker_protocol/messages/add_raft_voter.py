"""AddRaftVoter (API key 80): make a controller a voter (KIP-853).

Versions 0 to 1, all in the compact encoding.

What changed:
  1  request adds ack_when_committed
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import (
    BOOLEAN,
    INT16,
    INT32,
    NULLABLE_STRING,
    STRING,
    UINT16,
    UUID,
    Uuid,
)


class Listener(Struct):
    name: str = field(STRING)
    host: str = field(STRING, means=Meaning.PEER_HOST)
    port: int = field(UINT16, means=Meaning.PEER_PORT)


class AddRaftVoterRequest(Message, api_key=80, versions="0-1", flexible="0+"):
    cluster_id: str | None = field(NULLABLE_STRING, means=Meaning.CLUSTER)
    timeout_ms: int = field(INT32)
    voter_id: int = field(INT32, means=Meaning.BROKER)
    voter_directory_id: Uuid = field(UUID)
    listeners: list[Listener] = field(array(Listener))
    ack_when_committed: bool = field(BOOLEAN, versions="1+", default=True)


class AddRaftVoterResponse(Message, api_key=80, versions="0-1", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
