"""JoinGroup (API key 11): enter a classic group and wait for its next generation.

Versions 0 to 9, in the compact encoding from 6 on.

What changed:
  1  request adds rebalance_timeout_ms
  2  response adds throttle_time_ms
  5  request adds group_instance_id; response adds group_instance_id
  7  response adds protocol_type
  8  request adds reason
  9  response adds skip_assignment
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, BYTES, INT16, INT32, NULLABLE_STRING, STRING


class JoinGroupRequestProtocol(Struct):
    name: str = field(STRING)
    metadata: bytes = field(BYTES)


class JoinGroupRequest(Message, api_key=11, versions="0-9", flexible="6+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    session_timeout_ms: int = field(INT32)
    rebalance_timeout_ms: int = field(INT32, versions="1+", default=-1)
    member_id: str = field(STRING, means=Meaning.MEMBER)
    group_instance_id: str | None = field(
        NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, versions="5+", default=None
    )
    protocol_type: str = field(STRING)
    protocols: list[JoinGroupRequestProtocol] = field(array(JoinGroupRequestProtocol))
    reason: str | None = field(NULLABLE_STRING, versions="8+", default=None)


class JoinGroupResponseMember(Struct):
    member_id: str = field(STRING, means=Meaning.MEMBER)
    group_instance_id: str | None = field(
        NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, versions="5+", default=None
    )
    metadata: bytes = field(BYTES)


class JoinGroupResponse(Message, api_key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="3+", versions="2+")
    error_code: int = field(INT16, means=Meaning.ERROR)
    generation_id: int = field(INT32, means=Meaning.GENERATION, default=-1)
    protocol_type: str | None = field(NULLABLE_STRING, versions="7+", default=None)
    protocol_name: str | None = field(STRING, nullable="7+")
    leader: str = field(STRING, means=Meaning.GROUP_LEADER)
    skip_assignment: bool = field(BOOLEAN, versions="9+")
    member_id: str = field(STRING, means=Meaning.MEMBER)
    members: list[JoinGroupResponseMember] = field(array(JoinGroupResponseMember))
