"""DeleteGroups (API key 42): remove empty groups.

Versions 0 to 3, in the compact encoding from 2 on.

What changed:
  3  response adds error_message
"""

from __future__ import annotations

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT16, INT32, NULLABLE_STRING, STRING


class DeleteGroupsRequest(Message, api_key=42, versions="0-3", flexible="2+"):
    groups_names: list[str] = field(array(STRING), means=Meaning.GROUP)


class DeletableGroupResult(Struct):
    group_id: str = field(STRING, means=Meaning.GROUP)
    error_code: int = field(INT16, means=Meaning.ERROR)
    error_message: str | None = field(
        NULLABLE_STRING, means=Meaning.MESSAGE, versions="3+", default=None
    )


class DeleteGroupsResponse(Message, api_key=42, versions="0-3", flexible="2+"):
    throttle_time_ms: int = field(INT32, means=Meaning.THROTTLE_TIME, obeyed="1+")
    results: list[DeletableGroupResult] = field(array(DeletableGroupResult))
