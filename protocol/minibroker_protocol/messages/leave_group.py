"""LeaveGroup (API key 13): leave a classic group.

Versions 0 to 5, in the compact encoding from 4 on.

What changed:
  1  response adds throttle_time_ms
  3  request adds members, drops member_id; response adds members
  5  request adds reason
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING


class MemberIdentity(Struct):
    member_id: str = field(STRING, means=Meaning.MEMBER)
    group_instance_id: str | None = field(
        NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, default=None
    )
    reason: str | None = field(NULLABLE_STRING, versions="5+", default=None)


class LeaveGroupRequest(Message, api_key=13, versions="0-5", flexible="4+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    member_id: str = field(STRING, means=Meaning.MEMBER, versions="0-2")
    members: list[MemberIdentity] = field(array(MemberIdentity), versions="3+")


class MemberResponse(Struct):
    member_id: str = field(STRING, means=Meaning.MEMBER)
    group_instance_id: str | None = field(NULLABLE_STRING, means=Meaning.GROUP_INSTANCE)
    error_code: int = field(INT16, means=Meaning.ERROR)


class LeaveGroupResponse(Message, api_key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="2+", versions="1+")
    error_code: int = field(INT16, means=Meaning.ERROR)
    members: list[MemberResponse] = field(array(MemberResponse), versions="3+")
