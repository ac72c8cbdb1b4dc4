"""Heartbeat (API key 12): stay a member of a classic group.

Versions 0 to 4, in the compact encoding from 4 on.

What changed:
  1  response adds throttle_time_ms
  3  request adds group_instance_id
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING


class HeartbeatRequest(Message, api_key=12, versions="0-4", flexible="4+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    generation_id: int = field(INT32, means=Meaning.GENERATION)
    member_id: str = field(STRING, means=Meaning.MEMBER)
    group_instance_id: str | None = field(
        NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, versions="3+", default=None
    )


class HeartbeatResponse(Message, api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="2+", versions="1+")
    error_code: int = field(INT16, means=Meaning.ERROR)
