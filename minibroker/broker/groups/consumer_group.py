"""A consumer group of KIP-848: its members, epochs and assignments.

Theory of operation. Members send heartbeats with what they subscribe to and what they have. A
change of subscriptions, or of the subscribed topics, raises the *group epoch*. Then, at most once
in an assignment interval, the assignor computes a target for every member, in the *assignment
epoch*. Each member follows its target by itself (``consumer_member``): it revokes, reports that,
enters the new *member epoch*, and is given what other members have released. A member that is
silent for a session timeout, or does not revoke within its rebalance timeout, is removed.

The state changes only by records: an event is answered with records to be written, and when they
are, they are applied as they are when a log is loaded. So a restarted worker continues where the
group was. Members that use classic requests may be in the group: their generation is their member
epoch, and an error of a heartbeat makes them join again.

This module must never know sockets, tasks, clocks or files. Invariants: no partition is assigned to
two members at once; epochs never decrease; every waiter is answered once; the first change of a
group that has replaced one of another type contains the records of the replacement. Kafka's
counterparts are ``ConsumerGroup`` and the consumer part of ``GroupMetadataManager`` (4.4), with
KIP-848, 1101, 1251 and 1263.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.consumer_actions import (
    plan_assignment,
    plan_fence,
    plan_rebalance,
    plan_replacement,
)
from minibroker.broker.groups.consumer_change import (
    ChangeContext,
    MemberChange,
    check_size,
    match_regexes,
    preferred_assignor,
    replace_member,
    subscribe,
)
from minibroker.broker.groups.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    NOTHING,
    STATIC_LEAVE_EPOCH,
    ClassicSession,
    ConsumerMember,
    EpochAssignment,
    MemberState,
    OwnedPartitions,
    has_revoked,
)
from minibroker.broker.groups.consumer_records import (
    CONSUMER,
    ConsumerGroupRecord,
    RecordKind,
    TargetAssignmentMetadata,
)
from minibroker.broker.groups.consumer_state import (
    ConsumerGroupData,
    ConsumerGroupState,
    all_topics,
    regexes_of,
    topics_hash,
    topics_of,
)
from minibroker.broker.groups.conversion import classic_group_record, classic_membership
from minibroker.broker.groups.events import (
    AssignedPartitions,
    AssignmentPlanned,
    CommitRequested,
    CommitResult,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    GroupRecord,
    GroupReplaced,
    HeartbeatReceived,
    HeartbeatResult,
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
    AfterWrite,
    Deadline,
    EpochGroup,
    GroupLimits,
    GroupTimes,
    Handlers,
    RequestRejected,
    WrittenGroup,
    check_instance,
    commit_error,
)
from minibroker.broker.groups.hooks import REVOKED
from minibroker.broker.groups.membership import (
    CONSUMER_PROTOCOL_TYPE,
    decode_subscription,
    encode_assignment,
)
from minibroker.broker.settings.resources import CONSUMER_TIMES
from minibroker_protocol.errors import ErrorCode


class ConsumerGroup(EpochGroup[ConsumerGroupData]):
    """A consumer group."""

    type = CONSUMER
    takes_classic_requests = True
    hold_point = REVOKED
    data_type = ConsumerGroupData
    declared_times = CONSUMER_TIMES
    dead_state = ConsumerGroupState.DEAD

    def __init__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment
    ) -> None:
        super().__init__(group_id, limits, make_id, time)
        self._described_topics: frozenset[str] | None = None

    # ------------------------------------------------------------------------------ state

    @property
    def protocol_type_name(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def is_idle(self) -> bool:
        return not self.data.members

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer."""
        return preferred_assignor(self.limits.consumer, self.data.assignors)

    @property
    def default_times(self) -> GroupTimes:
        return self.limits.consumer.times

    def is_subscribed(self, topic: str) -> bool:
        return topic in self.data.names or any(
            topic in each.topics for each in self.data.resolved.values()
        )

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int, /) -> ErrorCode:
        """A client that names a member must name its current epoch."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.data.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_epoch == member.member_epoch else _stale(member)

    def validate_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def expired_offsets(self, wall_ms: int) -> list[tuple[str, int]]:
        """Topic and partition of each offset that is old and whose topic no member consumes."""
        resolved = {topic for each in self.data.resolved.values() for topic in each.topics}
        return self.offsets.expired(
            wall_ms=wall_ms,
            retention_ms=self.limits.offsets_retention_ms,
            age_from_ms=None,
            consumed=self.data.names.keys() | resolved,
        )

    # ------------------------------------------------------------------------- heartbeats

    def _handle_heartbeat(self, event: ConsumerHeartbeat) -> None:
        try:
            if event.member_epoch in (LEAVE_EPOCH, STATIC_LEAVE_EPOCH):
                self._leave(event)
            else:
                self._heartbeat(event)
        except RequestRejected as rejected:
            self._answer(
                event.waiter, ConsumerHeartbeatResult(rejected.error, rejected.text or None)
            )

    def expects_only(self, member: ConsumerMember, _event: ConsumerHeartbeat, /) -> bool:
        """Whether the member has its target, no newer one is due, and nothing must be found out."""
        data = self.data
        hashed = data.hashed_image
        return (
            member.state is MemberState.STABLE
            and data.assignment_epoch == member.member_epoch
            and hashed is not None
            and hashed.topics is self.image.topics
            and not (data.regexes or self.held_revocations or self._released_revocations)
            and (data.group_epoch == data.assignment_epoch or not self._is_target_due())
        )

    def _states_nothing_new(self, member: ConsumerMember, event: ConsumerHeartbeat, /) -> bool:
        return (
            event.member_epoch == member.member_epoch > JOIN_EPOCH
            and not event.is_full
            and _updated(member, event) is member
        )

    def _heartbeat(self, event: ConsumerHeartbeat) -> None:
        context = self._context()
        check_size(context, event.member_id, event.instance_id)
        change = subscribe(context, event, event.member_id or self.make_id())
        change.owned = self._hold_revocation(
            change.before.member_id,
            change.owned,
            joins=event.member_epoch == JOIN_EPOCH,
            has_revoked=has_revoked(change.before, event.owned),
        )
        change.after = _updated(change.after, event)
        change.plan_subscription()
        bumps = change.names_changed or change.regex_resolved or change.assignor_changes
        change.plan_group_epoch(bumps=bumps)
        change.plan_reconciliation(*change.plan_target())
        member = change.after
        is_known = event.member_epoch != JOIN_EPOCH and not event.is_full
        is_unchanged = change.before.assigned == member.assigned
        result = ConsumerHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.member_epoch,
            heartbeat_interval_ms=context.times.heartbeat_interval_ms,
            assignment=None if is_known and is_unchanged else _shown(member.assigned),
        )

        def then(error: ErrorCode) -> None:
            if error is not ErrorCode.NONE:
                self._answer(event.waiter, ConsumerHeartbeatResult(error))
                return
            timeout_ms = context.times.session_timeout_ms
            self._set_deadline(Deadline.SESSION, member.member_id, timeout_ms)
            if change.refreshes_regexes:
                self._described_topics = change.described_topics
                self._set_deadline(Deadline.REGEX, "", 0)
            self._answer(event.waiter, result)

        self._persist_change(change, then)

    def _context(self) -> ChangeContext:
        limits = self.limits.consumer
        return ChangeContext(self.data, self.image, limits, self.times, self.time.wall_ms)

    def _persist_change(self, change: MemberChange, then: AfterWrite) -> None:
        self._log_notes(change.notes)
        self._persist(change.records, then)

    def _leave(self, event: ConsumerHeartbeat) -> None:
        if event.instance_id is None:
            member = self.data.member(event.member_id)
        else:
            existing = self.data.static_member(event.instance_id)
            member = check_instance(existing, event.member_id, event.instance_id)
        result = ConsumerHeartbeatResult(member_id=event.member_id, member_epoch=event.member_epoch)

        def then(error: ErrorCode) -> None:
            failed = error is not ErrorCode.NONE
            self._answer(event.waiter, ConsumerHeartbeatResult(error) if failed else result)

        if event.instance_id is not None and event.member_epoch == STATIC_LEAVE_EPOCH:
            away = replace(
                member,
                member_epoch=STATIC_LEAVE_EPOCH,
                pending_revocation=NOTHING,
                assigned={
                    topic: dict.fromkeys(epochs, 0) for topic, epochs in member.assigned.items()
                },
            )
            self._log(f"is left by static member {member.member_id}, which may return")
            self._persist([away.assignment_record(self.group_id)], then)
            return
        self._remove_members([member], f"member {member.member_id} leaves", then)

    def _match_regexes(self) -> None:
        matched = match_regexes(self._context(), self._described_topics)
        self.data.matched_image = self.image
        for note in matched.notes:
            self._log(note)
        self._persist(matched.records, self._note_failure)

    # ------------------------------------------------------------------- removing members

    def _remove_members(
        self, members: Sequence[ConsumerMember], reason: str, then: AfterWrite
    ) -> None:
        """Remove members. The group becomes a classic one if only classic members are left."""
        if not members:
            then(ErrorCode.NONE)
            return
        self._log(f"removes {', '.join(each.member_id for each in members)}: {reason}")
        if self._becomes_classic(members):
            text = f"Downgrade group {self.group_id} from consumer to classic for member leaving."
            self._become_classic(members, None, text, then)
            return
        records = [record for member in members for record in self.data.removal(member.member_id)]
        names, regexes = Counter(self.data.names), Counter(self.data.regexes)
        for member in members:
            names.subtract(topics_of(member))
            regexes.subtract(regexes_of(member))
        names, regexes = +names, +regexes
        records += [
            self.data.tombstone(RecordKind.REGEX, each)
            for each in self.data.regexes
            if not regexes[each]
        ]
        resolved = {each: self.data.resolved[each] for each in self.data.resolved if regexes[each]}
        metadata_hash = topics_hash(self.image, all_topics(names, resolved))
        epoch = self.data.group_epoch + 1
        records.append(self.data.epoch_record(epoch, metadata_hash))
        if len(members) == len(self.data.members):
            value = TargetAssignmentMetadata(assignment_epoch=epoch)
            records.append(ConsumerGroupRecord(RecordKind.TARGET_EPOCH, self.group_id, value=value))
        self._persist(records, then)

    def _becomes_classic(
        self, without: Sequence[ConsumerMember], joining: ConsumerMember | None = None
    ) -> bool:
        """Whether only classic members are left without these; ``joining`` takes one's place."""
        removed = {each.member_id for each in without}
        count = len(self.data.members) - len(removed) + (joining is not None)
        limits = self.limits
        return (
            count > 0
            and all(
                each.classic is not None or each.member_id in removed
                for each in self.data.members.values()
            )
            and limits.consumer.may_downgrade
            and count <= limits.members_max
        )

    def _become_classic(
        self,
        without: Sequence[ConsumerMember],
        joining: ConsumerMember | None,
        rebalance_reason: str,
        then: AfterWrite,
    ) -> None:
        """Become a classic group without these members; ``joining`` has the target of the first."""
        left = {
            member_id: (member, self.data.targets.get(member_id, {}))
            for member_id, member in self.data.members.items()
            if member not in without
        }
        if joining is not None:
            left[joining.member_id] = joining, self.data.targets.get(without[0].member_id, {})
        membership = classic_membership(left, self.image)
        epoch, wall_ms = self.data.group_epoch, self.time.wall_ms
        record = classic_group_record(self.group_id, membership, epoch, wall_ms)
        group = ClassicGroup.restore(self.group_id, (record,), self.limits, self.make_id, self.time)
        group.membership = membership  # With all protocols of its members.
        group.offsets = self.offsets
        self._log("becomes a classic group: no other members are left")

        def replaced(error: ErrorCode) -> None:
            then(error)
            if error is ErrorCode.NONE:
                self._decisions.append(GroupReplaced(group, Restored(rebalance_reason)))

        self._persist([*self.data.tombstones(), record], replaced)

    # ------------------------------------------------------------------------- commits

    def _commit(self, event: CommitRequested) -> None:
        def held_since(member: ConsumerMember, name: str, partition: int) -> int | None:
            topic = self.image.topics.get(name)
            return None if topic is None else member.epoch_of(topic.topic_id, partition)

        def is_classic(member: ConsumerMember) -> bool:
            return member.classic is not None

        error = commit_error(event, self.data.members, held_since, is_classic)
        self._answer(event.waiter, CommitResult(error))

    # ---------------------------------------------------------- members with classic requests

    def _join(self, event: JoinRequested) -> None:
        try:
            self._classic_join(event)
        except RequestRejected as rejected:
            self._answer(event.waiter, JoinResult(error=rejected.error, member_id=event.member_id))

    def _classic_join(self, event: JoinRequested) -> None:
        limits = self.limits.consumer
        if not (limits.may_upgrade or limits.may_downgrade):
            raise RequestRejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        member_id = event.member_id or self.make_id()
        check_size(self._context(), member_id, event.group_instance_id)
        if not self._supports(event.protocol_type, [name for name, _ in event.protocols]):
            raise RequestRejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_unknown = event.member_id == ""
        if is_unknown and event.require_known_member_id and event.group_instance_id is None:
            error = ErrorCode.MEMBER_ID_REQUIRED
            self._answer(event.waiter, JoinResult(error=error, member_id=member_id))
            return
        subscription = decode_subscription(event.protocols[0][1])
        if subscription is None:
            raise RequestRejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        topics = self.image.topics
        owned = tuple(
            (topics[each.topic].topic_id, tuple(each.partitions))
            for each in subscription.owned_partitions
            if each.topic in topics
        )
        existing = self.data.static_member(event.group_instance_id)
        change = self._classic_change(event, member_id, existing, owned)
        change.after = replace(
            change.after,
            instance_id=event.group_instance_id or change.after.instance_id,
            rack_id=subscription.rack_id or change.after.rack_id,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            topics=frozenset(subscription.topics),
            regex="",
            client_id=event.client_id,
            client_host=event.client_host,
            classic=ClassicSession(event.session_timeout_ms, event.protocols),
        )
        change.plan_subscription()
        change.plan_group_epoch(bumps=change.has_new_subscription)
        if existing is None or not self._becomes_classic([existing], change.after):
            change.plan_reconciliation(*change.plan_target())
            self._persist_change(change, self._classic_joined(event, change, has_timers=True))
            return
        reason = ""
        if self.data.assignment_epoch < change.group_epoch:
            reason = (
                f"Downgrade group {self.group_id} from consumer to classic with stale assignment."
            )
        else:
            target = self.data.targets.get(existing.member_id, {})
            change.plan_reconciliation(self.data.assignment_epoch, target)
        then = self._classic_joined(event, change, has_timers=False)
        self._become_classic([existing], change.after, reason, then)

    def _classic_change(
        self,
        event: JoinRequested,
        member_id: str,
        existing: ConsumerMember | None,
        owned: OwnedPartitions,
    ) -> MemberChange:
        context = self._context()
        if event.group_instance_id is None:
            member = self.data.member(member_id, may_be_new=True)
        elif event.member_id:
            member = check_instance(existing, member_id, event.group_instance_id)
        elif existing is None:
            member = ConsumerMember(member_id=member_id)
        else:
            return replace_member(context, existing, member_id, owned)
        return MemberChange(context, member, owned)

    def _classic_joined(
        self, event: JoinRequested, change: MemberChange, *, has_timers: bool
    ) -> AfterWrite:
        def then(error: ErrorCode) -> None:
            member_id = change.after.member_id
            if error is not ErrorCode.NONE:
                self._answer(event.waiter, JoinResult(error=error, member_id=member_id))
                return
            if has_timers:
                self._deadlines.pop((Deadline.JOIN, member_id), None)
                self._set_deadline(Deadline.SESSION, member_id, event.session_timeout_ms)
                self._set_deadline(Deadline.SYNC, member_id, event.rebalance_timeout_ms)
            result = JoinResult(
                member_id=member_id,
                generation=change.after.member_epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=event.protocols[0][0],
            )
            self._answer(event.waiter, result)

        return then

    def _supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Whether a classic member with these protocols can join the other classic members."""
        if protocol_type != CONSUMER_PROTOCOL_TYPE or not names:
            return False
        classic = [each.classic for each in self.data.members.values() if each.classic is not None]
        supported = Counter(name for each in classic for name, _ in each.protocols)
        return any(supported[name] == len(classic) for name in names)

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicSession]:
        """The member of a classic request. Raises RequestRejected."""
        if instance_id is None:
            member = self.data.member(member_id)
        else:
            existing = self.data.static_member(instance_id)
            member = check_instance(existing, member_id, instance_id)
        if member.classic is None:
            raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID)
        if generation != member.member_epoch:
            raise RequestRejected(ErrorCode.ILLEGAL_GENERATION)
        return member, member.classic

    def _sync(self, event: SyncRequested) -> None:
        try:
            result = self._classic_sync(event)
        except RequestRejected as rejected:
            result = SyncResult(error=rejected.error)
        self._answer(event.waiter, result)

    def _classic_sync(self, event: SyncRequested) -> SyncResult:
        member, session = self._classic_member(
            event.member_id, event.group_instance_id, event.generation
        )
        name, metadata = session.protocols[0]
        if event.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE):
            raise RequestRejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if event.protocol_name not in (None, name):
            raise RequestRejected(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_behind = self.data.assignment_epoch > member.member_epoch
        if is_behind and member.state is not MemberState.UNREVOKED_PARTITIONS:
            self._require_join(member)
            raise RequestRejected(ErrorCode.REBALANCE_IN_PROGRESS)
        self._deadlines.pop((Deadline.SYNC, member.member_id), None)
        self._set_deadline(Deadline.SESSION, member.member_id, session.session_timeout_ms)
        names = self.image.topic_names
        assigned = {
            names[topic]: tuple(epochs)
            for topic, epochs in member.assigned.items()
            if topic in names
        }
        version = int.from_bytes(metadata[:2], "big", signed=True)
        return SyncResult(
            protocol_type=event.protocol_type,
            protocol_name=event.protocol_name,
            assignment=encode_assignment(assigned, version),
        )

    def _classic_heartbeat(self, event: HeartbeatReceived) -> None:
        try:
            member, session = self._classic_member(
                event.member_id, event.group_instance_id, event.generation
            )
        except RequestRejected as rejected:
            self._answer(event.waiter, HeartbeatResult(rejected.error))
            return
        self._set_deadline(Deadline.SESSION, member.member_id, session.session_timeout_ms)
        state = member.state
        error = ErrorCode.NONE
        if (
            member.member_epoch < self.data.assignment_epoch
            or state is MemberState.UNREVOKED_PARTITIONS
            or (
                state is MemberState.UNRELEASED_PARTITIONS
                and not self.data.missing_partitions(member)
            )
        ):
            self._require_join(member)
            error = ErrorCode.REBALANCE_IN_PROGRESS
        self._answer(event.waiter, HeartbeatResult(error))

    def _require_join(self, member: ConsumerMember) -> None:
        """Let a classic member join again within its rebalance timeout."""
        if (Deadline.JOIN, member.member_id) not in self._deadlines:
            self._set_deadline(Deadline.JOIN, member.member_id, member.rebalance_timeout_ms)

    def _classic_leave(self, event: LeaveRequested) -> None:
        leaving: dict[str, ConsumerMember] = {}
        results = []
        for each in event.members:
            try:
                member = self._leaving_member(each)
            except RequestRejected as rejected:
                results.append((each, rejected.error))
            else:
                leaving[member.member_id] = member
                results.append((each, ErrorCode.NONE))

        def then(error: ErrorCode) -> None:
            failed = error is not ErrorCode.NONE
            shown = () if failed else tuple(results)
            self._answer(event.waiter, LeaveResult(error, shown))

        self._remove_members(list(leaving.values()), "LeaveGroup", then)

    def _leaving_member(self, leaving: LeavingMember) -> ConsumerMember:
        if leaving.group_instance_id is None:
            return self.data.member(leaving.member_id)
        existing = self.data.static_member(leaving.group_instance_id)
        member_id = leaving.member_id
        if existing is not None and member_id == "":
            member_id = existing.member_id
        return check_instance(existing, member_id, leaving.group_instance_id)

    # ------------------------------------------------------------------------------ internal events

    def _restored(self, _event: Restored) -> None:
        for member in self.data.members.values():
            timeout = self._session_timeout_ms(member)
            self._set_deadline(Deadline.SESSION, member.member_id, timeout)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                timeout = member.rebalance_timeout_ms
                self._set_deadline(Deadline.REVOCATION, member.member_id, timeout)

    # -------------------------------------------------------------------------- requests of tests

    def _take_action(self, event: RebalanceRequested | AssignmentPlanned | MemberFenced) -> None:
        context = self._context()
        start_session: Callable[[], None] | None = None
        try:
            if isinstance(event, RebalanceRequested):
                action = plan_rebalance(context)
            elif isinstance(event, AssignmentPlanned):
                action = plan_assignment(context, event.assignment)
            else:
                member = self.data.member(event.member_id)
                if member.instance_id is None:
                    action = plan_fence(context, member)
                else:
                    new_id = f"{member.instance_id}-{self.make_id()}"
                    action = plan_replacement(context, member, new_id)
                    timeout_ms = self._session_timeout_ms(member)
                    start_session = partial(
                        self._set_deadline, Deadline.SESSION, new_id, timeout_ms
                    )
        except RequestRejected as rejected:
            self._reject(rejected.error, rejected.text)
        else:
            self._carry_out(action, start_session)

    # ------------------------------------------------------------------------- records

    def _apply(self, record: GroupRecord) -> None:
        """Change the state as a written record says, and the timers with it."""
        if not isinstance(record, ConsumerGroupRecord):
            return  # Of the classic group that takes the place of this one.
        name = record.name or ""
        before = self.data.members.get(name)
        super()._apply(record)
        after = self.data.members.get(name)
        if before is not None and after is not None:
            self._time_revocation(before, after)

    def _time_revocation(self, before: ConsumerMember, member: ConsumerMember) -> None:
        """Limit the time in which a member may revoke partitions."""
        if member.classic is not None:
            return
        key = Deadline.REVOCATION, member.member_id
        is_away = member.member_epoch == STATIC_LEAVE_EPOCH
        if member.state is not MemberState.UNREVOKED_PARTITIONS or is_away:
            self._deadlines.pop(key, None)
        elif before.state is not member.state or _has_changed(before, member):
            self._set_deadline(*key, member.rebalance_timeout_ms)

    # ------------------------------------------------------------------------------- time

    def _session_timeout_ms(self, member: ConsumerMember) -> int:
        classic = member.classic
        return self.times.session_timeout_ms if classic is None else classic.session_timeout_ms

    def _reach(self, kind: Deadline, member_id: str) -> None:
        if kind is Deadline.REGEX:
            self._match_regexes()
        else:
            super()._reach(kind, member_id)

    HANDLERS: ClassVar[Handlers] = {
        ConsumerHeartbeat: _handle_heartbeat,
        JoinRequested: _join,
        SyncRequested: _sync,
        HeartbeatReceived: _classic_heartbeat,
        ShareHeartbeat: WrittenGroup.refuse_share_heartbeat,
        SharesChanged: WrittenGroup.refuse_shares,
        StreamsHeartbeat: WrittenGroup.refuse_streams_heartbeat,
        TopologyDescribed: WrittenGroup.refuse_description,
        CommitRequested: _commit,
        LeaveRequested: _classic_leave,
        TimePassed: EpochGroup.nothing,
        Persisted: EpochGroup.finish_write,
        RebalanceReleased: EpochGroup.release_revocation,
        Restored: _restored,
        Removed: EpochGroup.removed,
        RebalanceRequested: _take_action,
        AssignmentPlanned: _take_action,
        MemberExpired: EpochGroup.expire_member,
        MemberFenced: _take_action,
    }


def _updated(member: ConsumerMember, event: ConsumerHeartbeat) -> ConsumerMember:
    """The member with what its heartbeat states; it is the same object if nothing has changed."""
    stated = {
        "instance_id": event.instance_id,
        "rack_id": event.rack_id,
        "rebalance_timeout_ms": None
        if event.rebalance_timeout_ms == -1
        else event.rebalance_timeout_ms,
        "topics": None if event.topics is None else frozenset(event.topics),
        "regex": event.regex,
        "assignor": event.assignor,
        "client_id": event.client_id,
        "client_host": event.client_host,
    }
    changed: dict[str, Any] = {
        name: value
        for name, value in stated.items()
        if value is not None and value != getattr(member, name)
    }
    if member.classic is not None:
        changed["classic"] = None
    return replace(member, **changed) if changed else member


def _stale(member: ConsumerMember) -> ErrorCode:
    is_classic = member.classic is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH


def _shown(assigned: EpochAssignment) -> tuple[AssignedPartitions, ...]:
    return tuple(AssignedPartitions(topic, tuple(epochs)) for topic, epochs in assigned.items())


def _has_changed(before: ConsumerMember, member: ConsumerMember) -> bool:
    """Whether a member has other partitions, or others to revoke."""
    former = before.assigned, before.pending_revocation
    return former != (member.assigned, member.pending_revocation)
