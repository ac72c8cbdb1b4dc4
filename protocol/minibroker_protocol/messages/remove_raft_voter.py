"""RemoveRaftVoter (API key 81): make a voter an observer (KIP-853).

Version 0, in the compact encoding.
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, UUID, Uuid


class RemoveRaftVoterRequest(Message, api_key=81, versions="0", flexible="0+"):
    cluster_id: str | None = field(NULLABLE_STRING, means=Meaning.CLUSTER)
    voter_id: int = field(INT32, means=Meaning.BROKER)
    voter_directory_id: Uuid = field(UUID)


class RemoveRaftVoterResponse(Message, api_key=81, versions="0", flexible="0+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(NULLABLE_STRING, means=Meaning.MESSAGE)
