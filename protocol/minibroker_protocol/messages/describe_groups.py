"""DescribeGroups (API key 15): state and members of classic groups.

Versions 0 to 6, in the compact encoding from 5 on.

What changed:
  1  response adds throttle_time_ms
  3  request adds include_authorized_operations; response adds authorized_operations
  4  response adds group_instance_id
  6  response adds error_message
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BOOLEAN, BYTES, INT16, INT32, NULLABLE_STRING, STRING


class DescribeGroupsRequest(Message, api_key=15, versions="0-6", flexible="5+"):
    groups: list[str] = field(array(STRING), means=Meaning.GROUP)
    include_authorized_operations: bool = field(BOOLEAN, versions="3+")


class DescribedGroupMember(Struct):
    member_id: str = field(STRING, means=Meaning.MEMBER)
    group_instance_id: str | None = field(
        NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, versions="4+", default=None
    )
    client_id: str = field(STRING, means=Meaning.CLIENT_ID)
    client_host: str = field(STRING, means=Meaning.CLIENT_HOST)
    member_metadata: bytes = field(BYTES)
    member_assignment: bytes = field(BYTES)


class DescribedGroup(Struct):
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(
        NULLABLE_STRING, means=Meaning.MESSAGE, versions="6+", default=None
    )
    group_id: str = field(STRING, means=Meaning.GROUP)
    group_state: str = field(STRING)
    protocol_type: str = field(STRING)
    protocol_data: str = field(STRING)
    members: list[DescribedGroupMember] = field(array(DescribedGroupMember))
    authorized_operations: int = field(INT32, versions="3+", default=-0x80000000)


class DescribeGroupsResponse(Message, api_key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="2+", versions="1+")
    groups: list[DescribedGroup] = field(array(DescribedGroup))
