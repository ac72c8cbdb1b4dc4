"""LeaveGroup (13): leave a classic group, or have members removed.

Versions 0-5, from 3 on for several members, which an administrator may name by instance id alone.
Before that a member's own error is the response's. Echoes ``GroupCoordinatorService.leaveGroup``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.apis.base import Api, Context, Owner, WorkerScope
from minibroker.coordinator.events import Leaver, LeaveRequested, LeaveResult
from protocol.errors import ErrorCode
from protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberResponse
from protocol.registry import ApiKey

SEVERAL_SINCE: Final = 3


class LeaveGroupPart(NamedTuple):
    """Who leaves which group."""

    group_id: str
    event: LeaveRequested


def split(ctx: Context, request: LeaveGroupRequest) -> Mapping[Owner, LeaveGroupPart]:
    """To the group's owner."""
    if ctx.version < SEVERAL_SINCE:
        members: tuple[Leaver, ...] = (Leaver(request.member_id),)
    else:
        members = tuple(
            Leaver(each.member_id, each.group_instance_id, each.reason) for each in request.members
        )
    event = LeaveRequested(members=members)
    return {ctx.group_owner(request.group_id): LeaveGroupPart(request.group_id, event)}


def execute(scope: WorkerScope, part: LeaveGroupPart) -> LeaveResult:
    """Takes the members out."""
    return scope.groups.leave(part.group_id, part.event)


def merge(
    ctx: Context, _request: LeaveGroupRequest, replies: Mapping[Owner, LeaveResult]
) -> LeaveGroupResponse:
    """An error a member, or before version 3 the only one's."""
    (result,) = replies.values()
    if ctx.version < SEVERAL_SINCE:
        errors = [result.error, *(error for _, error in result.members)]
        error = next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)
        return LeaveGroupResponse(error_code=error)
    return LeaveGroupResponse(
        error_code=result.error,
        members=[
            MemberResponse(
                member_id=leaver.member_id,
                group_instance_id=leaver.group_instance_id,
                error_code=error,
            )
            for leaver, error in result.members
        ],
    )


API: Api[LeaveGroupRequest, LeaveGroupPart, LeaveResult, LeaveGroupResponse] = Api(
    key=ApiKey.LEAVE_GROUP,
    versions=(0, 5),
    split=split,
    execute=execute,
    merge=merge,
)
