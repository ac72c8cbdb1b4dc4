"""LeaveGroup (13): leave a classic group, or remove members.

Versions 0-5. Since version 3, the request contains several members, and an administrator may name
them by instance id alone. Before that, the error of the only member is the error of the response.
Kafka's counterpart is ``GroupCoordinatorService.leaveGroup``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.groups.events import LeaveRequested, LeaveResult, LeavingMember
from minibroker.broker.security.acl import Operation
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from minibroker_protocol.registry import ApiKey

SEVERAL_SINCE: Final = 3


class LeaveGroupPart(NamedTuple):
    """The group and the members that leave."""

    group_id: str
    event: LeaveRequested


def split(ctx: Context, request: LeaveGroupRequest) -> Mapping[Owner, LeaveGroupPart]:
    """Send the request to the group's owner."""
    if ctx.version < SEVERAL_SINCE:
        members: tuple[LeavingMember, ...] = (LeavingMember(request.member_id),)
    else:
        members = tuple(
            LeavingMember(each.member_id, each.group_instance_id, each.reason)
            for each in request.members
        )
    event = LeaveRequested(members=members)
    return {ctx.group_owner(request.group_id): LeaveGroupPart(request.group_id, event)}


def execute(scope: WorkerScope, part: LeaveGroupPart) -> LeaveResult:
    """Remove the members."""
    return scope.groups.leave(part.group_id, part.event)


def merge(
    ctx: Context, _request: LeaveGroupRequest, replies: Mapping[Owner, LeaveResult]
) -> LeaveGroupResponse:
    """Return one error per member, or before version 3 the error of the only member."""
    (result,) = replies.values()
    if ctx.version < SEVERAL_SINCE:
        errors = [result.error, *(error for _, error in result.members)]
        error = next((error for error in errors if error is not ErrorCode.NONE), ErrorCode.NONE)
        return LeaveGroupResponse(error_code=error)
    return LeaveGroupResponse(
        error_code=result.error,
        members=[
            MemberResponse(
                member_id=leaving.member_id,
                group_instance_id=leaving.group_instance_id,
                error_code=error,
            )
            for leaving, error in result.members
        ],
    )


API: Api[LeaveGroupRequest, LeaveGroupPart, LeaveResult, LeaveGroupResponse] = Api(
    key=ApiKey.LEAVE_GROUP,
    versions=(0, 5),
    requires=(Requires(Operation.READ, Meaning.GROUP),),
    split=split,
    execute=execute,
    merge=merge,
)
