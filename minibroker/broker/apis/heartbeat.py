"""Heartbeat (12): extend a member's session in a classic group.

Versions 0-4. The error of the response reports a rebalance. Kafka's counterpart is
``GroupCoordinatorService.heartbeat``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from minibroker.broker.apis.base import (
    Api,
    Context,
    Owner,
    Requires,
    SingleForm,
    SingleScope,
    WorkerScope,
)
from minibroker.broker.groups.events import HeartbeatReceived
from minibroker.broker.security.acl import Operation
from minibroker_protocol.compiler.single import Shape
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from minibroker_protocol.registry import ApiKey


class HeartbeatPart(NamedTuple):
    """The group and the heartbeat of one member."""

    group_id: str
    event: HeartbeatReceived


def split(ctx: Context, request: HeartbeatRequest) -> Mapping[Owner, HeartbeatPart]:
    """Send the request to the group's owner."""
    event = HeartbeatReceived(
        member_id=request.member_id,
        generation=request.generation_id,
        group_instance_id=request.group_instance_id,
    )
    return {ctx.group_owner(request.group_id): HeartbeatPart(request.group_id, event)}


def execute(scope: WorkerScope, part: HeartbeatPart) -> ErrorCode:
    """Extend the session; return an error if the member is unknown or must rejoin."""
    return scope.groups.heartbeat(part.group_id, part.event).error


def merge(
    _ctx: Context, _request: HeartbeatRequest, replies: Mapping[Owner, ErrorCode]
) -> HeartbeatResponse:
    """Build the response from the owner's error."""
    (error,) = replies.values()
    return HeartbeatResponse(error_code=error)


def execute_single(
    scope: SingleScope, _version: int, request: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """Extend the session of a member whose group is in this process."""
    group_id, generation, member_id, group_instance_id = request
    groups = scope.worker.groups
    if not groups.has(group_id):
        return None
    event = HeartbeatReceived(member_id, generation, group_instance_id)
    error = groups.heartbeat(group_id, event).error
    # A heartbeat that is handled again at once has the same effect.
    return (0, error) if error is ErrorCode.NONE else None


SINGLE: Final = SingleForm(Shape(), execute_single)

API: Api[HeartbeatRequest, HeartbeatPart, ErrorCode, HeartbeatResponse] = Api(
    key=ApiKey.HEARTBEAT,
    versions=(0, 4),
    requires=(Requires(Operation.READ, Meaning.GROUP),),
    split=split,
    execute=execute,
    merge=merge,
    single=SINGLE,
)
