"""Event handlers of a classic group: join, sync, heartbeat, commit, leave and internal events.

Owns the table of handlers; every event passes through ``handle``. It must never use a file, a task
or a clock. Invariant: after ``handle``, no deadline has passed, unless the group waits for
``Persisted``, which must then be the next event. Two differences from Kafka's
``GroupCoordinator``: a request that a retry replaces, and a sync request of a member that is
removed, are both answered here; Kafka drops them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.events import (
    CommitRequested,
    CommitResult,
    Decision,
    Event,
    HeartbeatReceived,
    HeartbeatResult,
    JoinRequested,
    JoinResult,
    LeaveRequested,
    LeaveResult,
    LeavingMember,
    Moment,
    Persisted,
    RebalanceReleased,
    Removed,
    Restored,
    SyncRequested,
    SyncResult,
    TimePassed,
)
from minibroker.broker.groups.group_actions import ACTION_HANDLERS
from minibroker.broker.groups.limits import (
    MEMBER_METADATA_BYTES_MAX,
    NEW_MEMBER_JOIN_TIMEOUT_S,
    PENDING_MEMBERS_MAX,
    GroupLimits,
)
from minibroker.broker.groups.member import ClassicMember
from minibroker.broker.groups.states import (
    COMMIT_ERRORS,
    HEARTBEAT_ERRORS,
    GroupState,
    TransitionCause,
)
from minibroker_protocol.errors import ErrorCode


def handle(group: ClassicGroup, event: Event, time: Moment) -> list[Decision]:
    """Handle an event and return the decisions, in the order in which to carry them out.

    Raises ``RuntimeError`` for any event other than ``Persisted`` while a ``Persist`` is
    outstanding, and for a ``Persisted`` without a ``Persist``.
    """
    if isinstance(event, Persisted) != (group.after_persist is not None):
        raise RuntimeError(
            f"group {group.group_id!r}: {type(event).__name__} was passed while "
            f"{'a' if group.after_persist else 'no'} write was outstanding"
        )
    group.time = time
    HANDLERS[type(event)](group, event)
    if group.after_persist is None:
        group.run_due()
    return group.take_decisions()


def validate_join(limits: GroupLimits, group_id: str, event: JoinRequested) -> ErrorCode:
    """Validate a join independently of the group's state, before a group is created for it."""
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    timeout = event.session_timeout_ms
    if not limits.session_timeout_ms_min <= timeout <= limits.session_timeout_ms_max:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    if sum(len(metadata) for _, metadata in event.protocols) > MEMBER_METADATA_BYTES_MAX:
        return ErrorCode.POLICY_VIOLATION
    return ErrorCode.NONE


# --------------------------------------------------------------------------------------- join


def _join(group: ClassicGroup, event: JoinRequested) -> None:
    if not _accepts_member(group, event.member_id):
        group.remove_member_id(event.member_id)
        group.answer(event.waiter, JoinResult(error=ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif group.state is GroupState.DEAD:
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        group.answer(event.waiter, JoinResult(error=error, member_id=event.member_id))
    elif not group.supports(event.protocol_type, [name for name, _ in event.protocols]):
        error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        group.answer(event.waiter, JoinResult(error=error, member_id=event.member_id))
    elif event.member_id == "":
        _join_without_id(group, event)
    elif event.member_id in group.membership.pending and event.group_instance_id is None:
        _add_member(group, event, event.member_id)
    else:
        _rejoin(group, event)
    group.complete_join_if_ready()


def _accepts_member(group: ClassicGroup, member_id: str) -> bool:
    """Whether the group has room for the member. During a rebalance only members that have already
    rejoined count, so a group above its limit rejects the last members to rejoin.
    """
    limit = group.limits.members_max
    member = group.membership.get(member_id)
    if group.state in (GroupState.EMPTY, GroupState.DEAD):
        return True
    if group.state is GroupState.PREPARING_REBALANCE:
        return (member is not None and member.awaits_join) or group.membership.awaiting_join < limit
    return member is not None or len(group.membership) < limit


def _join_without_id(group: ClassicGroup, event: JoinRequested) -> None:
    prefix = event.client_id if event.group_instance_id is None else event.group_instance_id
    member_id = f"{prefix}-{group.make_id()}"
    if event.group_instance_id is not None:
        current = group.membership.static_member_id(event.group_instance_id)
        if current is None:
            _add_member(group, event, member_id)
        else:
            _replace_static_member(group, event, group.membership[current], member_id)
    elif not event.require_known_member_id:
        _add_member(group, event, member_id)
    elif len(group.membership.pending) >= PENDING_MEMBERS_MAX:
        group.answer(event.waiter, JoinResult(error=ErrorCode.GROUP_MAX_SIZE_REACHED))
    else:
        expires_at = group.time.now + event.session_timeout_ms / 1000
        group.membership.pending[member_id] = expires_at
        group.wake_at(expires_at)
        error = ErrorCode.MEMBER_ID_REQUIRED
        group.answer(event.waiter, JoinResult(error=error, member_id=member_id))


def _add_member(group: ClassicGroup, event: JoinRequested, member_id: str) -> None:
    member = ClassicMember(
        member_id=member_id,
        group_instance_id=event.group_instance_id,
        client_id=event.client_id,
        client_host=event.client_host,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
        protocols=event.protocols,
        join_waiter=event.waiter,
        is_new=True,
    )
    if group.state is GroupState.PREPARING_REBALANCE and group.generation == 0:
        group.joined_during_delay = True
    if not group.membership:
        group.protocol_type = event.protocol_type
    group.membership.add(member)
    group.extend_session(member, NEW_MEMBER_JOIN_TIMEOUT_S)
    group.prepare_rebalance(f"{member_id} joins; its reason: {event.reason or 'not given'}")


def _rejoin(group: ClassicGroup, event: JoinRequested) -> None:
    error = group.check_member(event.member_id, event.group_instance_id)
    if error is not ErrorCode.NONE:
        group.answer(event.waiter, JoinResult(error=error, member_id=event.member_id))
        return
    member = group.membership[event.member_id]
    as_leader = group.membership.leader == event.member_id
    unchanged = member.protocols == event.protocols
    # The leader of a stable group rejoins to reassign, for example after a change of topics.
    # Otherwise unchanged metadata means that the last response was lost, so it is sent again.
    if unchanged and (
        group.state is GroupState.COMPLETING_REBALANCE
        or (group.state is GroupState.STABLE and not as_leader)
    ):
        leader = group.membership.leader or ""
        group.answer(event.waiter, group.join_result(member, leader=leader, as_leader=as_leader))
        return
    _park_join(group, event, member)
    role = "the leader" if as_leader else "member"
    metadata = "unchanged" if unchanged else "changed"
    group.prepare_rebalance(
        f"{role} {member.member_id} rejoins with {metadata} metadata; its reason: "
        f"{event.reason or 'not given'}"
    )


def _park_join(group: ClassicGroup, event: JoinRequested, member: ClassicMember) -> None:
    """Update the member from its request and park the request."""
    group.membership.update(
        member,
        event.protocols,
        session_timeout_ms=event.session_timeout_ms,
        rebalance_timeout_ms=event.rebalance_timeout_ms,
    )
    superseded = group.membership.park_join(member, event.waiter)
    error = ErrorCode.REBALANCE_IN_PROGRESS
    group.answer(superseded, JoinResult(error=error, member_id=member.member_id))


def _replace_static_member(
    group: ClassicGroup, event: JoinRequested, member: ClassicMember, member_id: str
) -> None:
    """Give a static member that joins without its id a new one: its client has restarted. Requests
    with the old id are fenced.
    """
    fenced = ErrorCode.FENCED_INSTANCE_ID
    old_id, old_leader = member.member_id, group.membership.leader or ""
    group.answer(group.membership.release_join(member), JoinResult(error=fenced, member_id=old_id))
    waiter, member.sync_waiter = member.sync_waiter, None
    group.answer(waiter, SyncResult(error=fenced))
    old_settings = (member.protocols, member.session_timeout_ms, member.rebalance_timeout_ms)
    group.membership.rename(member, member_id)
    _park_join(group, event, member)
    group.extend_session(member)
    if group.state is GroupState.COMPLETING_REBALANCE:
        # The leader may already be computing assignments with the old id.
        group.prepare_rebalance(f"static member {event.group_instance_id} rejoins as {member_id}")
    elif group.state is not GroupState.STABLE:
        return
    elif group.membership.select_protocol() != group.protocol_name:
        group.prepare_rebalance(f"static member {event.group_instance_id} changes the protocol")
    else:
        group.log(f"needs no rebalance: {event.group_instance_id} rejoins as {member_id}")
        group.persist(
            group.assignments(),
            lambda error: _static_member_stored(
                group, event, member, (old_id, old_leader, old_settings), error
            ),
        )


def _static_member_stored(
    group: ClassicGroup,
    event: JoinRequested,
    member: ClassicMember,
    old: tuple[str, str, tuple[tuple[tuple[str, bytes], ...], int, int]],
    error: ErrorCode,
) -> None:
    """Answer a static member that rejoined without a rebalance, or restore its old state."""
    old_id, old_leader, (protocols, session_timeout_ms, rebalance_timeout_ms) = old
    waiter = group.membership.release_join(member)
    if error is not ErrorCode.NONE:
        group.membership.update(
            member,
            protocols,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
        )
        group.membership.rename(member, old_id)
        group.extend_session(member)
        group.answer(waiter, JoinResult(error=error))
        return
    is_leader = group.membership.leader == member.member_id
    if event.can_skip_assignment:
        result = group.join_result(
            member,
            leader=group.membership.leader or "",
            as_leader=is_leader,
            skip_assignment=is_leader,
        )
    else:
        # An older client would compute an assignment if it were named leader, and that assignment
        # would be ignored. It receives the leader's previous id, which is not its own.
        result = group.join_result(member, leader=old_leader, as_leader=False)
    group.answer(waiter, result)


# --------------------------------------------------------------------------------------- sync


def _sync(group: ClassicGroup, event: SyncRequested) -> None:
    error = _sync_error(group, event)
    if error is not ErrorCode.NONE:
        group.answer(event.waiter, SyncResult(error=error))
        return
    member = group.membership[event.member_id]
    group.record_sync(event.member_id)
    if group.state is GroupState.STABLE:
        group.answer(event.waiter, group.sync_result(member))
        group.extend_session(member)
        return
    superseded, member.sync_waiter = member.sync_waiter, event.waiter
    group.answer(superseded, SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS))
    if group.membership.leader == event.member_id:
        sent = dict(event.assignments)
        sent |= group.planned_assignment
        assignments = {m.member_id: sent.get(m.member_id, b"") for m in group.membership}
        group.persist(assignments, lambda error: _assignment_stored(group, assignments, error))


def _sync_error(group: ClassicGroup, event: SyncRequested) -> ErrorCode:
    if group.state is GroupState.DEAD:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    error = group.check_member(event.member_id, event.group_instance_id)
    if error is not ErrorCode.NONE:
        return error
    if event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if event.protocol_type not in (None, group.protocol_type):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if event.protocol_name not in (None, group.protocol_name):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _assignment_stored(
    group: ClassicGroup, assignments: dict[str, bytes], error: ErrorCode
) -> None:
    if error is not ErrorCode.NONE:
        group.answer_syncs(SyncResult(error=error))
        group.prepare_rebalance(f"the assignment could not be written: {error.name}")
        return
    group.planned_assignment = {}
    for member in group.membership:
        member.assignment = assignments[member.member_id]
    group.transition(TransitionCause.ASSIGNED)
    group.answer_syncs()


# ---------------------------------------------------------------- heartbeat, commit and leave


def _heartbeat(group: ClassicGroup, event: HeartbeatReceived) -> None:
    error = HEARTBEAT_ERRORS[group.state]
    if group.state is not GroupState.DEAD:
        generation_error = _generation_error(group, event)
        if generation_error is ErrorCode.NONE:
            group.extend_session(group.membership[event.member_id])
        else:
            error = generation_error
    group.answer(event.waiter, HeartbeatResult(error))


def _generation_error(group: ClassicGroup, event: HeartbeatReceived | CommitRequested) -> ErrorCode:
    error = group.check_member(event.member_id, event.group_instance_id)
    if error is ErrorCode.NONE and event.generation != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    return error


def _commit(group: ClassicGroup, event: CommitRequested) -> None:
    group.answer(event.waiter, CommitResult(_commit_error(group, event)))


def _commit_error(group: ClassicGroup, event: CommitRequested) -> ErrorCode:
    if group.state is GroupState.EMPTY and event.generation < 0:
        return ErrorCode.NONE  # an administrator, or a consumer without group management
    is_anonymous = (
        event.generation < 0 and event.member_id == "" and event.group_instance_id is None
    )
    if group.state is not GroupState.DEAD:
        if is_anonymous:
            # Older versions of TxnOffsetCommit contain no member.
            return ErrorCode.NONE if event.transactional else ErrorCode.UNKNOWN_MEMBER_ID
        error = _generation_error(group, event)
        if error is not ErrorCode.NONE or event.transactional:
            return error
    if group.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
        group.extend_session(group.membership[event.member_id])
    return COMMIT_ERRORS[group.state]


def _leave(group: ClassicGroup, event: LeaveRequested) -> None:
    if group.state is GroupState.DEAD:
        group.answer(event.waiter, LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
        return
    results = tuple((leaving, _leave_one(group, leaving)) for leaving in event.members)
    group.answer(event.waiter, LeaveResult(ErrorCode.NONE, results))


def _leave_one(group: ClassicGroup, leaving: LeavingMember) -> ErrorCode:
    member_id: str | None = leaving.member_id
    if leaving.member_id == "":
        # An administrator removes a static member by its instance id.
        instance = leaving.group_instance_id
        member_id = None if instance is None else group.membership.static_member_id(instance)
        if member_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
    elif leaving.member_id in group.membership.pending:
        group.remove_member_id(leaving.member_id)
        group.complete_join_if_ready()
        return ErrorCode.NONE
    else:
        error = group.check_member(leaving.member_id, leaving.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
    group.remove_member(
        str(member_id), f"{member_id} leaves; its reason: {leaving.reason or 'not given'}"
    )
    return ErrorCode.NONE


# ------------------------------------------------------------------------------ internal events


def _time_passed(_group: ClassicGroup, _event: TimePassed) -> None:
    """Do nothing: ``handle`` checks the deadlines after every event."""


def _persisted(group: ClassicGroup, event: Persisted) -> None:
    callback, group.after_persist = group.after_persist, None
    if callback is not None:
        callback(event.error)


def _rebalance_released(group: ClassicGroup, _event: RebalanceReleased) -> None:
    group.release_rebalance()


def _restored(group: ClassicGroup, _event: Restored) -> None:
    for member in group.membership:
        group.extend_session(member)
    if len(group.membership) > group.limits.members_max:
        group.prepare_rebalance(
            f"it has {len(group.membership)} members, more than group.max.size allows"
        )


def _removed(group: ClassicGroup, _event: Removed) -> None:
    error = ErrorCode.NOT_COORDINATOR
    for member in list(group.membership):
        group.answer(
            group.membership.release_join(member),
            JoinResult(error=error, member_id=member.member_id),
        )
        waiter, member.sync_waiter = member.sync_waiter, None
        group.answer(waiter, SyncResult(error=error))
        group.remove_member_id(member.member_id)
    for member_id in list(group.membership.pending):
        group.remove_member_id(member_id)
    group.clear_deadlines()
    group.transition(TransitionCause.REMOVED)


HANDLERS: Final[dict[type[Event], Callable[[ClassicGroup, Any], None]]] = {
    JoinRequested: _join,
    SyncRequested: _sync,
    HeartbeatReceived: _heartbeat,
    CommitRequested: _commit,
    LeaveRequested: _leave,
    TimePassed: _time_passed,
    Persisted: _persisted,
    RebalanceReleased: _rebalance_released,
    Restored: _restored,
    Removed: _removed,
    **ACTION_HANDLERS,
}
