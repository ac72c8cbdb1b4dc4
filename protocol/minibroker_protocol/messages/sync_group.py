"""SyncGroup (API key 14): hand out and collect the assignment of a generation.

Versions 0 to 5, in the compact encoding from 4 on.

What changed:
  1  response adds throttle_time_ms
  3  request adds group_instance_id
  5  request adds protocol_type, protocol_name; response adds protocol_type, protocol_name
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import BYTES, INT16, INT32, NULLABLE_STRING, STRING


class SyncGroupRequestAssignment(Struct):
    member_id: str = field(STRING, means=Meaning.MEMBER)
    assignment: bytes = field(BYTES)


class SyncGroupRequest(Message, api_key=14, versions="0-5", flexible="4+"):
    group_id: str = field(STRING, means=Meaning.GROUP)
    generation_id: int = field(INT32, means=Meaning.GENERATION)
    member_id: str = field(STRING, means=Meaning.MEMBER)
    group_instance_id: str | None = field(
        NULLABLE_STRING, means=Meaning.GROUP_INSTANCE, versions="3+", default=None
    )
    protocol_type: str | None = field(NULLABLE_STRING, versions="5+", default=None)
    protocol_name: str | None = field(NULLABLE_STRING, versions="5+", default=None)
    assignments: list[SyncGroupRequestAssignment] = field(array(SyncGroupRequestAssignment))


class SyncGroupResponse(Message, api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="2+", versions="1+")
    error_code: int = field(INT16, means=Meaning.ERROR)
    protocol_type: str | None = field(NULLABLE_STRING, versions="5+", default=None)
    protocol_name: str | None = field(NULLABLE_STRING, versions="5+", default=None)
    assignment: bytes = field(BYTES)
