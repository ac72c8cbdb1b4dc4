"""Changes of a classic group that a test requests: as if their cause had come by itself.

Owns the handlers of these events. It must never know tasks, files or clocks. Invariant: a group is
afterwards in a state that requests of clients can also bring about. The causes are those of
``classic_group`` and ``group_state_machine``; librdkafka's mock cluster sets assignments by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.events import (
    NO_WAITER,
    ActionTaken,
    AssignmentPlanned,
    Event,
    JoinResult,
    MemberExpired,
    MemberFenced,
    RebalanceRequested,
    SyncResult,
)
from minibroker.broker.groups.states import GroupState
from minibroker_protocol.errors import ErrorCode

REASON: Final = "by request of a test"


def _rebalance(group: ClassicGroup, _event: RebalanceRequested) -> None:
    if not group.membership:
        _reject(group, ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
        return
    group.prepare_rebalance(REASON)
    group.answer(NO_WAITER, ActionTaken(affected=len(group.membership)))


def _plan(group: ClassicGroup, event: AssignmentPlanned) -> None:
    unknown = [member for member in event.assignment if member not in group.membership]
    if unknown:
        _reject(group, ErrorCode.UNKNOWN_MEMBER_ID, f"not in the group: {', '.join(unknown)}")
    elif not group.is_consumer_group:
        text = f"its protocol type is {group.protocol_type!r}: assignments are known for consumers"
        _reject(group, ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
    else:
        group.planned_assignment = dict(event.assignment)
        group.prepare_rebalance(f"an assignment is set {REASON}")
        group.answer(NO_WAITER, ActionTaken(affected=len(event.assignment)))


def _expire(group: ClassicGroup, event: MemberExpired) -> None:
    if event.member_id not in group.membership:
        _reject(group, ErrorCode.UNKNOWN_MEMBER_ID, f"there is no member {event.member_id!r}")
        return
    reason = f"{event.member_id} is removed {REASON}"
    group.log(f"removes a member: {reason}")
    group.remove_member(event.member_id, reason)
    group.answer(NO_WAITER, ActionTaken(affected=1))


def _fence(group: ClassicGroup, event: MemberFenced) -> None:
    member = group.membership.get(event.member_id)
    if member is None:
        _reject(group, ErrorCode.UNKNOWN_MEMBER_ID, f"there is no member {event.member_id!r}")
        return
    if member.group_instance_id is None:
        text = "only static members are fenced; `expire_member` removes others"
        _reject(group, ErrorCode.FENCED_INSTANCE_ID, text)
        return
    error = ErrorCode.FENCED_INSTANCE_ID
    waiter = group.membership.release_join(member)
    group.answer(waiter, JoinResult(error=error, member_id=event.member_id))
    waiter, member.sync_waiter = member.sync_waiter, None
    group.answer(waiter, SyncResult(error=error))
    group.membership.rename(member, f"{member.group_instance_id}-{group.make_id()}")
    group.extend_session(member)
    group.answer(NO_WAITER, ActionTaken(affected=1))
    if group.state is GroupState.COMPLETING_REBALANCE:
        group.prepare_rebalance(f"static member {member.group_instance_id} is fenced {REASON}")
    elif group.state is GroupState.STABLE:
        group.log(f"fences {event.member_id} {REASON}")
        group.persist(group.assignments(), lambda error: _fence_stored(group, error))


def _fence_stored(group: ClassicGroup, error: ErrorCode) -> None:
    if error is not ErrorCode.NONE:
        group.log(f"could not write that a member is fenced: {error.name}")


def _reject(group: ClassicGroup, error: ErrorCode, text: str) -> None:
    group.answer(NO_WAITER, ActionTaken(error, text))


ACTION_HANDLERS: Final[dict[type[Event], Callable[[ClassicGroup, Any], None]]] = {
    RebalanceRequested: _rebalance,
    AssignmentPlanned: _plan,
    MemberExpired: _expire,
    MemberFenced: _fence,
}
