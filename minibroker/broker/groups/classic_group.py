"""A classic consumer group: its state, rebalances and timeouts, and the handlers of its events.

Theory of operation. A member joins and waits. The first member of an empty group starts a short
initial delay, which is extended while more members join, so that clients that start together form
one generation instead of ten. Any later change makes all members rejoin within the longest of their
rebalance timeouts. Members that do not rejoin are removed, except static members, which are removed
only when their session times out. When all members have joined, the generation number increases,
the members' votes select the protocol, and the leader receives the list of members. The leader's
assignment is written to the log *before* it is sent to any member, so a restarted worker loads the
generation that its clients know.

Every event passes through ``handle`` and the table ``HANDLERS``, and ids come from ``make_id``.
This module must never know sockets, tasks, clocks or files. Invariants: the generation never
decreases; every waiter is answered once; there is a leader if and only if there are members; after
``handle`` no deadline has passed, unless the group waits for ``Persisted``. The rules are those of
Kafka's ``GroupCoordinator`` (3.x) and ``GroupMetadataManager`` (4.x), with KIP-62, 134, 345, 394,
559 and 814, with two differences: a request that a retry replaces, and a sync request of a member
that is removed, are both answered here; Kafka drops them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

from minibroker.broker.groups.events import (
    NO_WAITER,
    ActionTaken,
    AssignmentPlanned,
    CommitRequested,
    CommitResult,
    ConsumerHeartbeat,
    GroupRecord,
    HeartbeatReceived,
    HeartbeatResult,
    HoldRebalance,
    JoinRequested,
    JoinResult,
    LeaveRequested,
    LeaveResult,
    LeavingMember,
    MemberExpired,
    MemberFenced,
    Moment,
    Persisted,
    RebalanceReleased,
    RebalanceRequested,
    Removed,
    Restored,
    ShareHeartbeat,
    SharesChanged,
    StreamsHeartbeat,
    SyncRequested,
    SyncResult,
    TimePassed,
    TopologyDescribed,
)
from minibroker.broker.groups.group import (
    BY_TEST,
    NEW_MEMBER_JOIN_TIMEOUT_S,
    PENDING_MEMBERS_MAX,
    RETRY_JOIN_PHASE_S_MIN,
    AfterWrite,
    GroupLimits,
    Handlers,
    PendingWrite,
    WrittenGroup,
)
from minibroker.broker.groups.membership import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicMember,
    Membership,
    new_member,
    restore_member,
)
from minibroker.broker.groups.records import CLASSIC, GroupEntry, GroupMetadataValue
from minibroker.broker.groups.states import (
    COMMIT_ERRORS,
    HEARTBEAT_ERRORS,
    GroupState,
    StateTransition,
    TransitionCause,
    next_state,
)
from minibroker_protocol.errors import ErrorCode


class ClassicGroup(WrittenGroup):
    """A classic group. ``state_since_ms`` is epoch milliseconds."""

    type = CLASSIC
    takes_classic_requests = True

    def __init__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment
    ) -> None:
        super().__init__(group_id, limits, make_id, time)
        self.state = GroupState.EMPTY
        self.state_since_ms = time.wall_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.subscribed: frozenset[str] | None = None
        self.membership = Membership()
        self._joined_during_delay = False
        self._planned_assignment: dict[str, bytes] = {}
        self._is_held = False
        self._join_deadline: float | None = None
        self._initial_delay: tuple[float, float] | None = None
        """Seconds of the current initial delay, and of the time by which it may be extended.
        Set only while the first members of an empty group join.
        """
        self._sync_deadline: float | None = None

    @classmethod
    def restore(
        cls,
        group_id: str,
        records: Sequence[GroupRecord],
        limits: GroupLimits,
        make_id: Callable[[], str],
        time: Moment,
    ) -> ClassicGroup:
        """Create a group from its record: stable if it had members, otherwise empty."""
        entry = records[-1]
        assert isinstance(entry, GroupEntry)
        stored = entry.metadata
        assert stored is not None
        group = cls(group_id, limits, make_id, time)
        group.generation = stored.generation
        group.protocol_type = stored.protocol_type or None
        group.protocol_name = stored.protocol
        group.state_since_ms = stored.current_state_timestamp
        if stored.members and stored.protocol is not None:
            for member in stored.members:
                group.membership.add(restore_member(member, stored.protocol))
            group.membership.leader = stored.leader or group.membership.leader
            group.state = GroupState.STABLE
            if group.is_consumer_group:
                group.subscribed = group.membership.subscribed_topics(stored.protocol)
        elif group.is_consumer_group:
            group.subscribed = frozenset()
        return group

    # ------------------------------------------------------------------------------ state

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def protocol_type_name(self) -> str:
        return self.protocol_type or ""

    @property
    def epoch(self) -> int:
        return self.generation

    @property
    def members_count(self) -> int:
        return len(self.membership)

    @property
    def is_idle(self) -> bool:
        return self.state is GroupState.EMPTY and not self.membership.pending

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member may consume the topic. Assumed if a subscription can't be decoded."""
        if self.subscribed is None:
            return self.is_consumer_group and len(self.membership) > 0
        return topic in self.subscribed

    def _supports(self, protocol_type: str, names: list[str]) -> bool:
        """Whether a member with these protocols can join now."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(names)
        return self.protocol_type == protocol_type and self.membership.supported_by_all(names)

    def metadata(self, assignments: Mapping[str, bytes]) -> GroupMetadataValue:
        """This generation as it is stored in the log."""
        name = self.protocol_name
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=name,
            leader=self.membership.leader,
            current_state_timestamp=self.state_since_ms,
            members=[]
            if name is None
            else [m.stored(name, assignments.get(m.member_id, b"")) for m in self.membership],
        )

    def validate_offset_fetch(self, _member_id: str | None, _member_epoch: int, /) -> ErrorCode:
        """Accept every client, as Kafka's ``ClassicGroup`` does."""
        return ErrorCode.NONE

    def validate_offset_delete(self) -> ErrorCode:
        """Subscriptions are known only with the consumer protocol; others must be empty."""
        if self.state is GroupState.EMPTY or self.is_consumer_group:
            return ErrorCode.NONE
        return ErrorCode.NON_EMPTY_GROUP

    def validate_delete(self) -> ErrorCode:
        return ErrorCode.NONE if self.state is GroupState.EMPTY else ErrorCode.NON_EMPTY_GROUP

    def expired_offsets(self, wall_ms: int) -> list[tuple[str, int]]:
        """Topic and partition of each expired offset.

        The offsets of a group that has had members expire once the group has been empty for the
        retention time. While it has members, only offsets of topics that no member consumes expire.
        """
        age_from_ms: int | None = None
        consumed: Container[str] = ()
        if self.protocol_type is None:
            pass
        elif self.state is GroupState.EMPTY:
            age_from_ms = self.state_since_ms if self.state_since_ms >= 0 else None
        elif self.state is GroupState.STABLE and self.subscribed is not None:
            consumed = self.subscribed
        else:
            return []
        return self.offsets.expired(
            wall_ms=wall_ms,
            retention_ms=self.limits.offsets_retention_ms,
            age_from_ms=age_from_ms,
            consumed=consumed,
        )

    # --------------------------------------------------------------------------------------- join

    def _join(self, event: JoinRequested) -> None:
        if not self._accepts_member(event.member_id):
            self._remove_member_id(event.member_id)
            self._answer(event.waiter, JoinResult(error=ErrorCode.GROUP_MAX_SIZE_REACHED))
        elif self.state is GroupState.DEAD:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            self._answer(event.waiter, JoinResult(error=error, member_id=event.member_id))
        elif not self._supports(event.protocol_type, [name for name, _ in event.protocols]):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            self._answer(event.waiter, JoinResult(error=error, member_id=event.member_id))
        elif event.member_id == "":
            self._join_without_id(event)
        elif event.member_id in self.membership.pending and event.group_instance_id is None:
            self._add_member(event, event.member_id)
        else:
            self._rejoin(event)
        self._complete_join_if_ready()

    def _accepts_member(self, member_id: str) -> bool:
        """Whether the group has room for the member. During a rebalance only members that have
        already rejoined count, so a group above its limit rejects the last members to rejoin.
        """
        limit = self.limits.members_max
        member = self.membership.get(member_id)
        if self.state in (GroupState.EMPTY, GroupState.DEAD):
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            return (
                member is not None and member.awaits_join
            ) or self.membership.awaiting_join < limit
        return member is not None or len(self.membership) < limit

    def _join_without_id(self, event: JoinRequested) -> None:
        prefix = event.client_id if event.group_instance_id is None else event.group_instance_id
        member_id = f"{prefix}-{self.make_id()}"
        if event.group_instance_id is not None:
            current = self.membership.static_member_id(event.group_instance_id)
            if current is None:
                self._add_member(event, member_id)
            else:
                self._replace_static_member(event, self.membership[current], member_id)
        elif not event.require_known_member_id:
            self._add_member(event, member_id)
        elif len(self.membership.pending) >= PENDING_MEMBERS_MAX:
            self._answer(event.waiter, JoinResult(error=ErrorCode.GROUP_MAX_SIZE_REACHED))
        else:
            expires_at = self.time.now + event.session_timeout_ms / 1000
            self.membership.pending[member_id] = expires_at
            self._wake_by(expires_at)
            error = ErrorCode.MEMBER_ID_REQUIRED
            self._answer(event.waiter, JoinResult(error=error, member_id=member_id))

    def _add_member(self, event: JoinRequested, member_id: str) -> None:
        member = new_member(event, member_id)
        if self.state is GroupState.PREPARING_REBALANCE and self.generation == 0:
            self._joined_during_delay = True
        if not self.membership:
            self.protocol_type = event.protocol_type
        self.membership.add(member)
        self._extend_session(member, NEW_MEMBER_JOIN_TIMEOUT_S)
        self._prepare_rebalance(f"{member_id} joins; its reason: {event.reason or 'not given'}")

    def _rejoin(self, event: JoinRequested) -> None:
        error = self.membership.check(event.member_id, event.group_instance_id)
        if error is not ErrorCode.NONE:
            self._answer(event.waiter, JoinResult(error=error, member_id=event.member_id))
            return
        member = self.membership[event.member_id]
        as_leader = self.membership.leader == event.member_id
        unchanged = member.protocols == event.protocols
        # The leader of a stable group rejoins to reassign, for example after a change of topics.
        # Otherwise unchanged metadata means that the last response was lost, so it is sent again.
        if unchanged and (
            self.state is GroupState.COMPLETING_REBALANCE
            or (self.state is GroupState.STABLE and not as_leader)
        ):
            leader = self.membership.leader or ""
            self._answer(
                event.waiter, self._join_result(member, leader=leader, as_leader=as_leader)
            )
            return
        self._park_join(event, member)
        role = "the leader" if as_leader else "member"
        metadata = "unchanged" if unchanged else "changed"
        self._prepare_rebalance(
            f"{role} {member.member_id} rejoins with {metadata} metadata; its reason: "
            f"{event.reason or 'not given'}"
        )

    def _park_join(self, event: JoinRequested, member: ClassicMember) -> None:
        """Update the member from its request and park the request."""
        self.membership.update(member, event)
        superseded = self.membership.park_join(member, event.waiter)
        error = ErrorCode.REBALANCE_IN_PROGRESS
        self._answer(superseded, JoinResult(error=error, member_id=member.member_id))

    def _replace_static_member(
        self, event: JoinRequested, member: ClassicMember, member_id: str
    ) -> None:
        """Give a static member that joins without its id a new one: its client has restarted.

        Requests with the old id are fenced.
        """
        self._reject_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        before, old_leader = replace(member), self.membership.leader or ""
        self.membership.rename(member, member_id)
        self._park_join(event, member)
        self._extend_session(member)
        if self.state is GroupState.COMPLETING_REBALANCE:
            # The leader may already be computing assignments with the old id.
            self._prepare_rebalance(
                f"static member {event.group_instance_id} rejoins as {member_id}"
            )
        elif self.state is not GroupState.STABLE:
            return
        elif self.membership.select_protocol() != self.protocol_name:
            self._prepare_rebalance(f"static member {event.group_instance_id} changes the protocol")
        else:
            self._log(f"needs no rebalance: {event.group_instance_id} rejoins as {member_id}")
            stored = partial(self._static_member_stored, event, member, before, old_leader)
            self._persist(self.membership.assignments(), stored)

    def _static_member_stored(
        self,
        event: JoinRequested,
        member: ClassicMember,
        before: ClassicMember,
        old_leader: str,
        error: ErrorCode,
    ) -> None:
        """Answer a static member that rejoined without a rebalance, or restore its old state."""
        waiter = self.membership.release_join(member)
        if error is not ErrorCode.NONE:
            self.membership.update(member, before)
            self.membership.rename(member, before.member_id)
            self._extend_session(member)
            self._answer(waiter, JoinResult(error=error))
            return
        is_leader = self.membership.leader == member.member_id
        if event.can_skip_assignment:
            result = self._join_result(
                member,
                leader=self.membership.leader or "",
                as_leader=is_leader,
                skip_assignment=is_leader,
            )
        else:
            # An older client would compute an assignment if it were named leader, and that
            # would be ignored. It receives the leader's previous id, which is not its own.
            result = self._join_result(member, leader=old_leader, as_leader=False)
        self._answer(waiter, result)

    # --------------------------------------------------------------------------------------- sync

    def _sync(self, event: SyncRequested) -> None:
        error = self._sync_error(event)
        if error is not ErrorCode.NONE:
            self._answer(event.waiter, SyncResult(error=error))
            return
        member = self.membership[event.member_id]
        self.membership.pending_sync.discard(event.member_id)
        if not self.membership.pending_sync:
            self._sync_deadline = None
        if self.state is GroupState.STABLE:
            self._answer(event.waiter, self._sync_result(member))
            self._extend_session(member)
            return
        superseded, member.sync_waiter = member.sync_waiter, event.waiter
        self._answer(superseded, SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS))
        if self.membership.leader == event.member_id:
            sent = dict(event.assignments)
            sent |= self._planned_assignment
            assignments = {m.member_id: sent.get(m.member_id, b"") for m in self.membership}
            self._persist(assignments, lambda error: self._assignment_stored(assignments, error))

    def _sync_error(self, event: SyncRequested) -> ErrorCode:
        if self.state is GroupState.DEAD:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        error = self.membership.check(event.member_id, event.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if event.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if event.protocol_type not in (None, self.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if event.protocol_name not in (None, self.protocol_name):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _assignment_stored(self, assignments: dict[str, bytes], error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self._answer_syncs(SyncResult(error=error))
            self._prepare_rebalance(f"the assignment could not be written: {error.name}")
            return
        self._planned_assignment = {}
        for member in self.membership:
            member.assignment = assignments[member.member_id]
        self._transition(TransitionCause.ASSIGNED)
        self._answer_syncs()

    # ---------------------------------------------------------------- heartbeat, commit and leave

    def _heartbeat(self, event: HeartbeatReceived) -> None:
        error = HEARTBEAT_ERRORS[self.state]
        if self.state is not GroupState.DEAD:
            generation_error = self._generation_error(event)
            if generation_error is ErrorCode.NONE:
                self._extend_session(self.membership[event.member_id])
            else:
                error = generation_error
        self._answer(event.waiter, HeartbeatResult(error))

    def _generation_error(self, event: HeartbeatReceived | CommitRequested) -> ErrorCode:
        error = self.membership.check(event.member_id, event.group_instance_id)
        if error is ErrorCode.NONE and event.generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def _commit(self, event: CommitRequested) -> None:
        self._answer(event.waiter, CommitResult(self._commit_error(event)))

    def _commit_error(self, event: CommitRequested) -> ErrorCode:
        if self.state is GroupState.EMPTY and event.generation < 0:
            return ErrorCode.NONE  # an administrator, or a consumer without group management
        is_anonymous = (
            event.generation < 0 and event.member_id == "" and event.group_instance_id is None
        )
        if self.state is not GroupState.DEAD:
            if is_anonymous:
                # Older versions of TxnOffsetCommit contain no member.
                return ErrorCode.NONE if event.transactional else ErrorCode.UNKNOWN_MEMBER_ID
            error = self._generation_error(event)
            if error is not ErrorCode.NONE or event.transactional:
                return error
        if self.state in (GroupState.STABLE, GroupState.PREPARING_REBALANCE):
            self._extend_session(self.membership[event.member_id])
        return COMMIT_ERRORS[self.state]

    def _leave(self, event: LeaveRequested) -> None:
        if self.state is GroupState.DEAD:
            self._answer(event.waiter, LeaveResult(ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        results = tuple((leaving, self._leave_one(leaving)) for leaving in event.members)
        self._answer(event.waiter, LeaveResult(ErrorCode.NONE, results))

    def _leave_one(self, leaving: LeavingMember) -> ErrorCode:
        member_id: str | None = leaving.member_id
        if leaving.member_id == "":
            # An administrator removes a static member by its instance id.
            instance = leaving.group_instance_id
            member_id = None if instance is None else self.membership.static_member_id(instance)
            if member_id is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        elif leaving.member_id in self.membership.pending:
            self._remove_member_id(leaving.member_id)
            self._complete_join_if_ready()
            return ErrorCode.NONE
        else:
            error = self.membership.check(leaving.member_id, leaving.group_instance_id)
            if error is not ErrorCode.NONE:
                return error
        self._remove_member(
            str(member_id), f"{member_id} leaves; its reason: {leaving.reason or 'not given'}"
        )
        return ErrorCode.NONE

    # ------------------------------------------------------------------------------ internal events

    def _time_passed(self, _event: TimePassed) -> None:
        """Do nothing: ``handle`` checks the deadlines after every event."""

    def _restored(self, event: Restored) -> None:
        for member in self.membership:
            self._extend_session(member)
        if event.rebalance_reason:
            self._prepare_rebalance(event.rebalance_reason)
        elif len(self.membership) > self.limits.members_max:
            self._prepare_rebalance(
                f"it has {len(self.membership)} members, more than group.max.size allows"
            )

    def _removed(self, event: Removed) -> None:
        for member in list(self.membership):
            self._reject_waiting(member, event.error)
            self._remove_member_id(member.member_id)
        for member_id in list(self.membership.pending):
            self._remove_member_id(member_id)
        self._join_deadline = self._sync_deadline = self._wake_at = None
        self._transition(TransitionCause.REMOVED)

    # -------------------------------------------------------------------------- requests of tests

    def _start_rebalance(self, _event: RebalanceRequested) -> None:
        if not self.membership:
            self._reject(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
            return
        self._prepare_rebalance(BY_TEST)
        self._answer(NO_WAITER, ActionTaken(affected=len(self.membership)))

    def _plan_assignment(self, event: AssignmentPlanned) -> None:
        unknown = [member for member in event.assignment if member not in self.membership]
        if unknown:
            self._reject(ErrorCode.UNKNOWN_MEMBER_ID, f"not in the group: {', '.join(unknown)}")
        elif not self.is_consumer_group:
            text = (
                f"its protocol type is {self.protocol_type!r}: assignments are known for consumers"
            )
            self._reject(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, text)
        else:
            self._planned_assignment = dict(event.assignment)
            self._prepare_rebalance(f"an assignment is set {BY_TEST}")
            self._answer(NO_WAITER, ActionTaken(affected=len(event.assignment)))

    def _expire_member(self, event: MemberExpired) -> None:
        if event.member_id not in self.membership:
            self._reject(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no member {event.member_id!r}")
            return
        reason = f"{event.member_id} is removed {BY_TEST}"
        self._log(f"removes a member: {reason}")
        self._remove_member(event.member_id, reason)
        self._answer(NO_WAITER, ActionTaken(affected=1))

    def _fence_member(self, event: MemberFenced) -> None:
        member = self.membership.get(event.member_id)
        if member is None:
            self._reject(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no member {event.member_id!r}")
            return
        if member.group_instance_id is None:
            text = "only static members are fenced; `expire_member` removes others"
            self._reject(ErrorCode.FENCED_INSTANCE_ID, text)
            return
        self._reject_waiting(member, ErrorCode.FENCED_INSTANCE_ID)
        self.membership.rename(member, f"{member.group_instance_id}-{self.make_id()}")
        self._extend_session(member)
        self._answer(NO_WAITER, ActionTaken(affected=1))
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._prepare_rebalance(f"static member {member.group_instance_id} is fenced {BY_TEST}")
        elif self.state is GroupState.STABLE:
            self._log(f"fences {event.member_id} {BY_TEST}")
            self._persist(
                self.membership.assignments(), partial(self._note_failure, "a member is fenced")
            )

    # ------------------------------------------------------------------------- decisions

    def _persist(self, assignments: Mapping[str, bytes], then: AfterWrite) -> None:
        """Write the group to the log; ``then`` is called with the result."""
        record = GroupEntry(self.group_id, self.metadata(assignments))
        self._write = PendingWrite((record,), then)

    def _note_failure(self, what: str, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            # Harmless: after a crash the last generation is loaded and its members time out.
            self._log(f"could not write that {what}: {error.name}")

    def _transition(self, cause: TransitionCause) -> None:
        before = self.state
        self.state = next_state(self.group_id, before, cause, list(self.past_transitions))
        self.past_transitions.append(StateTransition(self.time.now, before, cause, self.state))
        self.state_since_ms = self.time.wall_ms

    # -------------------------------------------------------------------------- members

    def _extend_session(self, member: ClassicMember, seconds: float | None = None) -> None:
        """Restart the member's session timeout."""
        timeout = member.session_timeout_ms / 1000 if seconds is None else seconds
        member.expires_at = self.time.now + timeout
        self._wake_by(member.expires_at)

    def _reject_waiting(self, member: ClassicMember, error: ErrorCode) -> None:
        """Answer the waiting requests of a member with an error."""
        waiter = self.membership.release_join(member)
        self._answer(waiter, JoinResult(error=error, member_id=member.member_id))
        waiter, member.sync_waiter = member.sync_waiter, None
        self._answer(waiter, SyncResult(error=error))

    def _remove_member_id(self, member_id: str) -> None:
        """Remove a member id and reject its waiting requests."""
        member = self.membership.remove(member_id)
        if member is not None:
            self._answer(member.join_waiter, JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID))
            self._answer(member.sync_waiter, SyncResult(error=ErrorCode.UNKNOWN_MEMBER_ID))

    def _remove_member(self, member_id: str, reason: str) -> None:
        """Remove a member and rebalance the others."""
        self._remove_member_id(member_id)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(reason)
        else:
            self._complete_join_if_ready()

    def _join_result(
        self, member: ClassicMember, *, leader: str, as_leader: bool, skip_assignment: bool = False
    ) -> JoinResult:
        """The current generation as a join result for the member."""
        name = self.protocol_name or ""
        return JoinResult(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=leader,
            skip_assignment=skip_assignment,
            members=self.membership.joined_members(name) if as_leader else (),
        )

    # ------------------------------------------------------------------------ rebalancing

    def _prepare_rebalance(self, reason: str) -> None:
        """Start a rebalance, in which all members must rejoin, unless one is in progress."""
        if self.state in (GroupState.PREPARING_REBALANCE, GroupState.DEAD):
            return
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._answer_syncs(SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS))
        self.membership.pending_sync.clear()
        self._sync_deadline = None
        timeout = self.membership.rebalance_timeout_s()
        if self.state is GroupState.EMPTY:
            delay = self.limits.initial_rebalance_delay_s
            self._initial_delay = (delay, max(timeout - delay, 0.0))
            self._set_join_deadline(self.time.now + delay)
        else:
            self._initial_delay = None
            self._set_join_deadline(self.time.now + timeout)
        self._transition(TransitionCause.REBALANCE)
        self._log(f"rebalances after generation {self.generation}: {reason}")
        self._is_held = self.holds_rebalances
        if self._is_held:
            self._decisions.append(HoldRebalance())
        self._complete_join_if_ready()

    def _complete_join_if_ready(self) -> None:
        """Start the next generation if all members have rejoined and no initial delay runs."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._initial_delay is None
            and self.membership.all_joined
        ):
            self._complete_join()

    def _resume_rebalance(self) -> None:
        """Complete a rebalance that was held, if it is ready or its time has passed."""
        self._is_held = False
        if self.state is GroupState.PREPARING_REBALANCE and self._join_deadline is None:
            self._complete_join()
        self._complete_join_if_ready()

    def _complete_join(self) -> None:
        if self._is_held:
            return
        self._join_deadline = None
        self._initial_delay = None
        not_rejoined = [m.member_id for m in self.membership if not (m.awaits_join or m.is_static)]
        for member_id in not_rejoined:
            self._remove_member_id(member_id)
        if not_rejoined:
            self._log(f"removes members that have not rejoined in time: {', '.join(not_rejoined)}")
        if self.membership and not self.membership.elect_joined_leader():
            # Only static members are left and none has rejoined. Wait for their session timeouts.
            wait = max(self.membership.rebalance_timeout_s(), RETRY_JOIN_PHASE_S_MIN)
            self._set_join_deadline(self.time.now + wait)
            return
        self.generation += 1
        self.membership.pending_sync.clear()
        if self.membership:
            self._start_generation()
        else:
            self.protocol_name = None
            self.subscribed = frozenset() if self.is_consumer_group else None
            self._transition(TransitionCause.NO_MEMBERS)
            self._persist({}, partial(self._note_failure, "it is empty"))
            self._log(f"is empty in generation {self.generation}")

    def _start_generation(self) -> None:
        self.protocol_name = self.membership.select_protocol()
        self.subscribed = (
            self.membership.subscribed_topics(self.protocol_name)
            if self.is_consumer_group
            else None
        )
        self._transition(TransitionCause.NEW_GENERATION)
        leader = self.membership.leader or ""
        for member in self.membership:
            waiter = self.membership.release_join(member)
            result = self._join_result(member, leader=leader, as_leader=member.member_id == leader)
            self._answer(waiter, result)
            self._extend_session(member)
            member.is_new = False
            self.membership.pending_sync.add(member.member_id)
        self._sync_deadline = self.time.now + self.membership.rebalance_timeout_s()
        self._wake_by(self._sync_deadline)
        self._log(f"starts generation {self.generation} with {len(self.membership)} members")

    def _answer_syncs(self, failure: SyncResult | None = None) -> None:
        """Answer all waiting sync requests with the assignment, or with the failure."""
        for member in self.membership:
            if failure is not None:
                member.assignment = b""
            waiter, member.sync_waiter = member.sync_waiter, None
            if waiter is not None:
                self._answer(waiter, failure or self._sync_result(member))
                self._extend_session(member)

    def _sync_result(self, member: ClassicMember) -> SyncResult:
        return SyncResult(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    # ------------------------------------------------------------------------------- time

    def _set_join_deadline(self, deadline: float) -> None:
        self._join_deadline = deadline
        self._wake_by(deadline)

    def _run_due(self) -> None:
        """Handle expired deadlines, earliest first. Stop when the group must be written."""
        while self._wake_at is not None and self._wake_at <= self.time.now:
            deadlines = sorted(self._deadlines())
            self._wake_at = deadlines[0][0] if deadlines else None
            for deadline, kind, member_id in deadlines:
                if deadline > self.time.now:
                    break
                if self._write is not None:
                    return
                self._handle_deadline(deadline, kind, member_id)

    def _deadlines(self) -> list[tuple[float, str, str]]:
        deadlines = list(self.membership.deadlines())
        if self._join_deadline is not None:
            deadlines.append((self._join_deadline, "join", ""))
        if self._sync_deadline is not None:
            deadlines.append((self._sync_deadline, "sync", ""))
        return deadlines

    def _handle_deadline(self, deadline: float, kind: str, member_id: str) -> None:
        """Handle a deadline, unless an earlier one in this run has moved it."""
        if kind == "join" and deadline == self._join_deadline:
            self._join_timed_out()
        elif kind == "sync" and deadline == self._sync_deadline:
            self._sync_timed_out()
        elif kind == "pending" and self.membership.pending.get(member_id) == deadline:
            self._log(f"removes the pending member id {member_id}, which has not joined in time")
            self._remove_member_id(member_id)
            self._complete_join_if_ready()
        elif kind == "session":
            member = self.membership.get(member_id)
            if member is not None and member.expires_at == deadline:
                self._session_timed_out(member)

    def _session_timed_out(self, member: ClassicMember) -> None:
        member.expires_at = None
        if member.may_expire:
            reason = f"{member.member_id} has sent no heartbeat within its session timeout"
            self._log(f"removes a member: {reason}")
            self._remove_member(member.member_id, reason)

    def _join_timed_out(self) -> None:
        self._join_deadline = None
        if self._initial_delay is not None and self._joined_during_delay:
            delay, remaining = self._initial_delay
            if remaining > 0:
                self._joined_during_delay = False
                extension = min(self.limits.initial_rebalance_delay_s, remaining)
                self._initial_delay = (extension, max(remaining - delay, 0.0))
                self._set_join_deadline(self.time.now + extension)
                return
        self._complete_join()

    def _sync_timed_out(self) -> None:
        self._sync_deadline = None
        not_synced = [
            m.member_id for m in self.membership if m.member_id in self.membership.pending_sync
        ]
        if not not_synced:
            return
        for member_id in not_synced:
            self._remove_member_id(member_id)
        reason = f"no sync request in time from {', '.join(not_synced)}"
        self._log(f"removes members: {reason}")
        self._prepare_rebalance(reason)

    HANDLERS: ClassVar[Handlers] = {
        JoinRequested: _join,
        SyncRequested: _sync,
        HeartbeatReceived: _heartbeat,
        ConsumerHeartbeat: WrittenGroup.refuse_consumer_heartbeat,
        ShareHeartbeat: WrittenGroup.refuse_share_heartbeat,
        SharesChanged: WrittenGroup.refuse_shares,
        StreamsHeartbeat: WrittenGroup.refuse_streams_heartbeat,
        TopologyDescribed: WrittenGroup.refuse_description,
        CommitRequested: _commit,
        LeaveRequested: _leave,
        TimePassed: _time_passed,
        Persisted: WrittenGroup.finish_write,
        RebalanceReleased: lambda group, _: group._resume_rebalance(),  # noqa: SLF001 - its own
        Restored: _restored,
        Removed: _removed,
        RebalanceRequested: _start_rebalance,
        AssignmentPlanned: _plan_assignment,
        MemberExpired: _expire_member,
        MemberFenced: _fence_member,
    }
