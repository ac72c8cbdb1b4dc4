"""SyncGroup (14): hand out and collect the assignment of a generation.

Versions 0-5. The leader brings everybody's assignment, and it is in the log before anybody hears
of it; followers wait for it. From 5 on the protocol must be named, and must be the group's. Echoes
``GroupCoordinatorService.syncGroup``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, NamedTuple

from minibroker.apis.base import Api, Context, Owner, WorkerScope
from minibroker.coordinator.events import SyncRequested, SyncResult
from protocol.errors import ErrorCode
from protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from protocol.registry import ApiKey

PROTOCOL_SINCE: Final = 5


class SyncGroupPart(NamedTuple):
    """Which member of which group asks."""

    group_id: str
    event: SyncRequested


def split(ctx: Context, request: SyncGroupRequest) -> Mapping[Owner, SyncGroupPart]:
    """To the group's owner, unless the protocol is missing."""
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
    """The assignment, once there is one."""
    return scope.groups.sync(part.group_id, part.event)


def merge(
    _ctx: Context, _request: SyncGroupRequest, replies: Mapping[Owner, SyncResult]
) -> SyncGroupResponse:
    """What the owner said."""
    refused = SyncResult(error=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    result = next(iter(replies.values()), refused)
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


API: Api[SyncGroupRequest, SyncGroupPart, SyncResult, SyncGroupResponse] = Api(
    key=ApiKey.SYNC_GROUP,
    versions=(0, 5),
    split=split,
    execute=execute,
    may_wait=True,
    merge=merge,
)
