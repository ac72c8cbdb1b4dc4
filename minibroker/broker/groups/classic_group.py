"""A classic consumer group: its state, rebalances and timeouts.

Theory of operation. A member joins and waits. The first member of an empty group starts a short
initial delay, which is extended while more members join, so that clients that start together form
one generation instead of ten. Any later change makes all members rejoin within the longest of their
rebalance timeouts. Members that do not rejoin are removed, except static members, which are removed
only when their session times out. When all members have joined, the generation number increases,
the members' votes select the protocol, and the leader receives the list of members. The leader's
assignment is written to the log *before* it is sent to any member, so a restarted worker loads the
generation that its clients know.

Requests of members are handled in ``group_state_machine``, and ids come from ``make_id``. This
module must never know sockets, tasks, clocks or files. Invariants: the generation never decreases;
every waiter is answered once; there is a leader if and only if there are members. The rules are
those of Kafka's ``GroupCoordinator`` (3.x) and ``GroupMetadataManager`` (4.x), with KIP-62, 134,
345, 394, 559 and 814.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING

from minibroker.broker.groups.events import (
    Decision,
    GroupAnswer,
    GroupImage,
    HoldRebalance,
    JoinResult,
    LogLine,
    Moment,
    Persist,
    Result,
    SyncResult,
    Waiter,
)
from minibroker.broker.groups.group import Group
from minibroker.broker.groups.limits import RETRY_JOIN_PHASE_S_MIN, GroupLimits
from minibroker.broker.groups.member import ClassicMember, restore_member
from minibroker.broker.groups.membership import Membership
from minibroker.broker.groups.records import CLASSIC, GroupEntry
from minibroker.broker.groups.states import (
    PAST_TRANSITIONS_MAX,
    GroupState,
    StateTransition,
    TransitionCause,
    next_state,
)
from minibroker.broker.groups.subscription import CONSUMER_PROTOCOL_TYPE
from minibroker_protocol.errors import ErrorCode

if TYPE_CHECKING:
    AfterPersist = Callable[[ErrorCode], None]


class ClassicGroup(Group):
    """A classic group. Change it only through ``group_state_machine.handle``.

    ``time`` is the time of the current event. ``state_since_ms`` is epoch milliseconds.
    """

    type = CLASSIC

    def __init__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment
    ) -> None:
        super().__init__(group_id)
        self.limits = limits
        self.make_id = make_id
        self.time = time
        self.state = GroupState.EMPTY
        self.state_since_ms = time.wall_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.subscribed: frozenset[str] | None = None
        self.membership = Membership()
        self.past_transitions: deque[StateTransition] = deque(maxlen=PAST_TRANSITIONS_MAX)
        self.after_persist: AfterPersist | None = None
        self.joined_during_delay = False
        self.planned_assignment: dict[str, bytes] = {}
        self._is_held = False
        self._decisions: list[Decision] = []
        self._persist: Persist | None = None
        self._join_deadline: float | None = None
        self._initial_delay: tuple[float, float] | None = None
        """Seconds of the current initial delay, and of the time by which it may be extended.
        Set only while the first members of an empty group join.
        """
        self._sync_deadline: float | None = None
        self._wake_at: float | None = None

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
    def next_deadline(self) -> float | None:
        return self._wake_at

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def is_subscribed(self, topic: str) -> bool:
        """Whether a member may consume the topic. Assumed if a subscription can't be decoded."""
        if self.subscribed is None:
            return self.is_consumer_group and len(self.membership) > 0
        return topic in self.subscribed

    def supports(self, protocol_type: str, names: list[str]) -> bool:
        """Whether a member with these protocols can join now."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(names)
        return self.protocol_type == protocol_type and self.membership.supported_by_all(names)

    def image(self, assignments: Mapping[str, bytes]) -> GroupImage:
        """This generation as it is stored in the log."""
        name = self.protocol_name
        members = (
            ()
            if name is None
            else tuple(m.image(name, assignments.get(m.member_id, b"")) for m in self.membership)
        )
        return GroupImage(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol_name=name,
            leader=self.membership.leader,
            state_since_ms=self.state_since_ms,
            members=members,
        )

    def assignments(self) -> dict[str, bytes]:
        return {member.member_id: member.assignment for member in self.membership}

    def check_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """Check that the member exists and is the current owner of its instance id."""
        if group_instance_id is not None:
            current = self.membership.static_member_id(group_instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.membership else ErrorCode.UNKNOWN_MEMBER_ID

    def validate_offset_fetch(self, _member_id: str | None, _member_epoch: int, /) -> ErrorCode:
        """Accept every client, as Kafka's ``ClassicGroup`` does."""
        return ErrorCode.NONE

    def validate_offset_delete(self) -> ErrorCode:
        """Subscriptions are known only with the consumer protocol; others must be empty."""
        if self.state is GroupState.EMPTY or self.is_consumer_group:
            return ErrorCode.NONE
        return ErrorCode.NON_EMPTY_GROUP

    def validate_delete(self) -> ErrorCode:
        empty = self.state is GroupState.EMPTY
        return ErrorCode.NONE if empty else ErrorCode.NON_EMPTY_GROUP

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

    # ------------------------------------------------------------------------- decisions

    def answer(self, waiter: Waiter | None, result: Result) -> None:
        """Answer a waiter, if there is one."""
        if waiter is not None:
            self._decisions.append(GroupAnswer(waiter, result))

    def log(self, text: str) -> None:
        self._decisions.append(LogLine(f"group {self.group_id!r} {text}"))

    def persist(self, assignments: Mapping[str, bytes], callback: AfterPersist) -> None:
        """Write the group to the log; ``callback`` is called with the result."""
        self._persist = Persist((GroupEntry(self.group_id, self.image(assignments)),))
        self.after_persist = callback

    def take_decisions(self) -> list[Decision]:
        """Return and clear the decisions since the last call; a ``Persist`` is the last one."""
        decisions, self._decisions = self._decisions, []
        if self._persist is not None:
            decisions.append(self._persist)
            self._persist = None
        return decisions

    def transition(self, cause: TransitionCause) -> None:
        before = self.state
        self.state = next_state(self.group_id, before, cause, list(self.past_transitions))
        self.past_transitions.append(StateTransition(self.time.now, before, cause, self.state))
        self.state_since_ms = self.time.wall_ms

    # -------------------------------------------------------------------------- members

    def extend_session(self, member: ClassicMember, seconds: float | None = None) -> None:
        """Restart the member's session timeout."""
        timeout = member.session_timeout_ms / 1000 if seconds is None else seconds
        member.expires_at = self.time.now + timeout
        self.wake_at(member.expires_at)

    def remove_member_id(self, member_id: str) -> None:
        """Remove a member id and reject its waiting requests."""
        member = self.membership.remove(member_id)
        if member is not None:
            self.answer(member.join_waiter, JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID))
            self.answer(member.sync_waiter, SyncResult(error=ErrorCode.UNKNOWN_MEMBER_ID))

    def remove_member(self, member_id: str, reason: str) -> None:
        """Remove a member and rebalance the others."""
        self.remove_member_id(member_id)
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare_rebalance(reason)
        else:
            self.complete_join_if_ready()

    def join_result(
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

    def prepare_rebalance(self, reason: str) -> None:
        """Start a rebalance, in which all members must rejoin, unless one is in progress."""
        if self.state in (GroupState.PREPARING_REBALANCE, GroupState.DEAD):
            return
        if self.state is GroupState.COMPLETING_REBALANCE:
            self.answer_syncs(SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS))
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
        self.transition(TransitionCause.REBALANCE)
        self.log(f"rebalances after generation {self.generation}: {reason}")
        self._is_held = self.holds_rebalances
        if self._is_held:
            self._decisions.append(HoldRebalance())
        self.complete_join_if_ready()

    def complete_join_if_ready(self) -> None:
        """Start the next generation if all members have rejoined and no initial delay runs."""
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._initial_delay is None
            and self.membership.all_joined
        ):
            self._complete_join()

    def release_rebalance(self) -> None:
        """Complete a rebalance that was held, if it is ready or its time has passed."""
        self._is_held = False
        if self.state is GroupState.PREPARING_REBALANCE and self._join_deadline is None:
            self._complete_join()
        self.complete_join_if_ready()

    def _complete_join(self) -> None:
        if self._is_held:
            return
        self._join_deadline = None
        self._initial_delay = None
        not_rejoined = [m.member_id for m in self.membership if not (m.awaits_join or m.is_static)]
        for member_id in not_rejoined:
            self.remove_member_id(member_id)
        if not_rejoined:
            self.log(f"removes members that have not rejoined in time: {', '.join(not_rejoined)}")
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
            self.transition(TransitionCause.NO_MEMBERS)
            self.persist({}, self._on_empty_persisted)
            self.log(f"is empty in generation {self.generation}")

    def _start_generation(self) -> None:
        self.protocol_name = self.membership.select_protocol()
        self.subscribed = (
            self.membership.subscribed_topics(self.protocol_name)
            if self.is_consumer_group
            else None
        )
        self.transition(TransitionCause.NEW_GENERATION)
        leader = self.membership.leader or ""
        for member in self.membership:
            waiter = self.membership.release_join(member)
            result = self.join_result(member, leader=leader, as_leader=member.member_id == leader)
            self.answer(waiter, result)
            self.extend_session(member)
            member.is_new = False
            self.membership.pending_sync.add(member.member_id)
        self._sync_deadline = self.time.now + self.membership.rebalance_timeout_s()
        self.wake_at(self._sync_deadline)
        self.log(f"starts generation {self.generation} with {len(self.membership)} members")

    def _on_empty_persisted(self, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            # Harmless: after a crash the last generation is loaded and its members time out.
            self.log(f"could not write that it is empty: {error.name}")

    def answer_syncs(self, failure: SyncResult | None = None) -> None:
        """Answer all waiting sync requests with the assignment, or with the failure."""
        for member in self.membership:
            if failure is not None:
                member.assignment = b""
            waiter, member.sync_waiter = member.sync_waiter, None
            if waiter is not None:
                self.answer(waiter, failure or self.sync_result(member))
                self.extend_session(member)

    def sync_result(self, member: ClassicMember) -> SyncResult:
        return SyncResult(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def record_sync(self, member_id: str) -> None:
        """Record that the member has sent its sync request."""
        self.membership.pending_sync.discard(member_id)
        if not self.membership.pending_sync:
            self._sync_deadline = None

    # ------------------------------------------------------------------------------- time

    def wake_at(self, deadline: float) -> None:
        if self._wake_at is None or deadline < self._wake_at:
            self._wake_at = deadline

    def _set_join_deadline(self, deadline: float) -> None:
        self._join_deadline = deadline
        self.wake_at(deadline)

    def clear_deadlines(self) -> None:
        self._join_deadline = self._sync_deadline = self._wake_at = None

    def run_due(self) -> None:
        """Handle expired deadlines, earliest first. Stop when the group must be written."""
        while self._wake_at is not None and self._wake_at <= self.time.now:
            deadlines = sorted(self._deadlines())
            self._wake_at = deadlines[0][0] if deadlines else None
            for deadline, kind, member_id in deadlines:
                if deadline > self.time.now:
                    break
                if self.after_persist is not None:
                    return
                self._handle_deadline(deadline, kind, member_id)

    def _deadlines(self) -> list[tuple[float, str, str]]:
        deadlines = [
            (member.expires_at, "session", member.member_id)
            for member in self.membership
            if member.expires_at is not None
        ]
        deadlines.extend(
            (expires_at, "pending", key) for key, expires_at in self.membership.pending.items()
        )
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
            self.log(f"removes the pending member id {member_id}, which has not joined in time")
            self.remove_member_id(member_id)
            self.complete_join_if_ready()
        elif kind == "session":
            member = self.membership.get(member_id)
            if member is not None and member.expires_at == deadline:
                self._session_timed_out(member)

    def _session_timed_out(self, member: ClassicMember) -> None:
        member.expires_at = None
        if member.may_expire:
            reason = f"{member.member_id} has sent no heartbeat within its session timeout"
            self.log(f"removes a member: {reason}")
            self.remove_member(member.member_id, reason)

    def _join_timed_out(self) -> None:
        self._join_deadline = None
        if self._initial_delay is not None and self.joined_during_delay:
            delay, remaining = self._initial_delay
            if remaining > 0:
                self.joined_during_delay = False
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
            self.remove_member_id(member_id)
        reason = f"no sync request in time from {', '.join(not_synced)}"
        self.log(f"removes members: {reason}")
        self.prepare_rebalance(reason)


def restore_group(
    group_id: str,
    image: GroupImage,
    limits: GroupLimits,
    make_id: Callable[[], str],
    time: Moment,
) -> ClassicGroup:
    """Create a group from its image: stable if it had members, otherwise empty. Its first event
    must be ``Restored``.
    """
    group = ClassicGroup(group_id, limits, make_id, time)
    group.generation = image.generation
    group.protocol_type = image.protocol_type or None
    group.protocol_name = image.protocol_name
    group.state_since_ms = image.state_since_ms
    if image.members and image.protocol_name is not None:
        for member in image.members:
            group.membership.add(restore_member(member, image.protocol_name))
        group.membership.leader = image.leader or group.membership.leader
        group.state = GroupState.STABLE
        if group.is_consumer_group:
            group.subscribed = group.membership.subscribed_topics(image.protocol_name)
    elif group.is_consumer_group:
        group.subscribed = frozenset()
    return group
