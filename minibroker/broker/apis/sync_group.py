"""SyncGroup (14): distribute the assignment of a generation.

Versions 0-5. The leader sends the assignments of all members, and followers wait for theirs. The
assignments are written to the log before any member receives one. Since version 5, the request must
contain the protocol of the group. Kafka's counterpart is ``GroupCoordinatorService.syncGroup``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.groups.events import SyncRequested, SyncResult
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from minibroker_protocol.registry import ApiKey

PROTOCOL_SINCE: Final = 5


class SyncGroupPart(NamedTuple):
    """The group and the sync request of one member."""

    group_id: str
    event: SyncRequested


def split(ctx: Context, request: SyncGroupRequest) -> Mapping[Owner, SyncGroupPart]:
    """Send the request to the group's owner, unless the protocol is missing."""
    if _lacks_protocol(ctx, request):
        return {}
    event = SyncRequested(
        member_id=request.member_id,
        generation=request.generation_id,
        group_instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignments=tuple((each.member_id, each.assignment) for each in request.assignments),
    )
    return {ctx.group_owner(request.group_id): SyncGroupPart(request.group_id, event)}


def _lacks_protocol(ctx: Context, request: SyncGroupRequest) -> bool:
    return ctx.version >= PROTOCOL_SINCE and None in (request.protocol_type, request.protocol_name)


def execute(scope: WorkerScope, part: SyncGroupPart) -> SyncResult | Awaitable[SyncResult]:
    """Return the assignment; the result may be awaitable."""
    return scope.groups.sync(part.group_id, part.event)


def merge(
    _ctx: Context, _request: SyncGroupRequest, replies: Mapping[Owner, SyncResult]
) -> SyncGroupResponse:
    """Build the response from the owner's result."""
    protocol_error = SyncResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    result = next(iter(replies.values()), protocol_error)
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


API: Api[SyncGroupRequest, SyncGroupPart, SyncResult, SyncGroupResponse] = Api(
    key=ApiKey.SYNC_GROUP,
    versions=(0, 5),
    requires=(Requires(Operation.READ, Meaning.GROUP),),
    split=split,
    execute=execute,
    may_wait=True,
    merge=merge,
)
