"""JoinGroup (11): join a classic group and wait for its next generation.

Versions 0-9. Version 0 has one timeout for sessions and rebalances. Since version 4, a client
without a member id gets a new id and must join again with it. Since version 5, members may be
static. Since version 9, the response may ask a returning static leader to skip the assignment. The
response is sent when the generation starts, at most one rebalance timeout later. Kafka's
counterpart is ``GroupCoordinatorService.joinGroup``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Final, NamedTuple

from minibroker.broker.apis.base import Api, Context, Owner, Requires, WorkerScope
from minibroker.broker.groups.events import JoinRequested, JoinResult
from minibroker.broker.security.acl import Operation
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from minibroker_protocol.registry import ApiKey

REBALANCE_TIMEOUT_SINCE: Final = 1
MEMBER_ID_REQUIRED_SINCE: Final = 4
NULLABLE_PROTOCOL_SINCE: Final = 7
SKIP_ASSIGNMENT_SINCE: Final = 9


class JoinGroupPart(NamedTuple):
    """The group and the join request of one member."""

    group_id: str
    event: JoinRequested


def split(ctx: Context, request: JoinGroupRequest) -> Mapping[Owner, JoinGroupPart]:
    """Send the request to the group's owner."""
    both = request.session_timeout_ms
    event = JoinRequested(
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        client_id=ctx.header.client_id or "",
        client_host=f"/{ctx.caller.client_host}",
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if ctx.version >= REBALANCE_TIMEOUT_SINCE else both
        ),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        reason=request.reason,
        require_known_member_id=ctx.version >= MEMBER_ID_REQUIRED_SINCE,
        can_skip_assignment=ctx.version >= SKIP_ASSIGNMENT_SINCE,
    )
    return {ctx.group_owner(request.group_id): JoinGroupPart(request.group_id, event)}


def execute(scope: WorkerScope, part: JoinGroupPart) -> JoinResult | Awaitable[JoinResult]:
    """Join the group; the result may be awaitable."""
    return scope.groups.join(part.group_id, part.event)


def merge(
    ctx: Context, _request: JoinGroupRequest, replies: Mapping[Owner, JoinResult]
) -> JoinGroupResponse:
    """Build the response from the owner's result. Before null was allowed, a missing
    protocol is an empty string.
    """
    (result,) = replies.values()
    name = result.protocol_name
    if name is None and ctx.version < NULLABLE_PROTOCOL_SINCE:
        name = ""
    return JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=name,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                metadata=member.metadata,
            )
            for member in result.members
        ],
    )


API: Api[JoinGroupRequest, JoinGroupPart, JoinResult, JoinGroupResponse] = Api(
    key=ApiKey.JOIN_GROUP,
    versions=(0, 9),
    requires=(Requires(Operation.READ, Meaning.GROUP),),
    split=split,
    execute=execute,
    may_wait=True,
    merge=merge,
    left_out=("moving a group to the consumer protocol of KIP-848: that is not served yet",),
)
