"""ListGroups (API key 16): the groups that a broker coordinates.

Versions 0 to 5, in the compact encoding from 3 on.

What changed:
  1  response adds throttle_time_ms
  4  request adds states_filter; response adds group_state
  5  request adds types_filter; response adds group_type
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, STRING


class ListGroupsRequest(Message, api_key=16, versions="0-5", flexible="3+"):
    states_filter: list[str] = field(array(STRING), versions="4+")
    types_filter: list[str] = field(array(STRING), versions="5+")


class ListedGroup(Struct):
    group_id: str = field(STRING, means=Meaning.GROUP)
    protocol_type: str = field(STRING)
    group_state: str = field(STRING, versions="4+")
    group_type: str = field(STRING, versions="5+")


class ListGroupsResponse(Message, api_key=16, versions="0-5", flexible="3+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="2+", versions="1+")
    error_code: int = field(INT16, means=Meaning.ERROR)
    groups: list[ListedGroup] = field(array(ListedGroup))
