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

import enum
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from minibroker.broker.groups.assignors import MemberSubscription, assign, java_order
from minibroker.broker.groups.classic_group import ClassicGroup
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
    Reconciliation,
    Rejoin,
    Target,
)
from minibroker.broker.groups.consumer_records import (
    CONSUMER,
    ConsumerGroupMetadata,
    ConsumerGroupRecord,
    ConsumerMemberMetadata,
    CurrentMemberAssignment,
    RecordKind,
    RegularExpression,
    TargetAssignmentMember,
    TargetAssignmentMetadata,
    TargetTopicPartitions,
)
from minibroker.broker.groups.conversion import fill_classic_group
from minibroker.broker.groups.events import (
    NO_WAITER,
    ActionTaken,
    AssignedPartitions,
    AssignmentPlanned,
    CommitRequested,
    CommitResult,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    Decision,
    Event,
    GroupAnswer,
    GroupRecord,
    GroupReplaced,
    HeartbeatReceived,
    HeartbeatResult,
    JoinRequested,
    JoinResult,
    LeaveRequested,
    LeaveResult,
    LeavingMember,
    LogLine,
    MemberExpired,
    MemberFenced,
    Moment,
    Persist,
    Persisted,
    RebalanceReleased,
    RebalanceRequested,
    Removed,
    Restored,
    Result,
    SyncRequested,
    SyncResult,
    TimePassed,
    Waiter,
)
from minibroker.broker.groups.group import Group, GroupLimits, GroupTimes
from minibroker.broker.groups.membership import (
    CONSUMER_PROTOCOL_TYPE,
    decode_subscription,
    encode_assignment,
)
from minibroker.broker.groups.states import StateTransition
from minibroker.broker.metadata.image import EMPTY, GROUP, Image
from minibroker.broker.patterns.expression import CompiledPattern, PatternTooCostly
from minibroker.broker.patterns.expression_parser import InvalidPattern
from minibroker.broker.settings.groups import CONSUMER_TIMES
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import Uuid

Handlers = Mapping[type[Event], Callable[[Any, Any], None]]

FIRST_EPOCH: Final = 1
"""The group epoch and the assignment epoch of a new group."""

NO_TIMESTAMP: Final = 0

REGEX_BATCH_MS: Final = 10_000
"""Regular expressions are matched again at most once in this time."""


class ConsumerGroupState(enum.Enum):
    """The state of a group. The value is its name in responses."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target of the group epoch is not computed yet."""
    RECONCILING = "Reconciling"
    """Members are on their way to their targets."""
    STABLE = "Stable"
    DEAD = "Dead"


class ChangeCause(enum.Enum):
    """Why the state changes."""

    RECORDS = "records were written"
    REMOVED = "the group was deleted, unloaded or replaced"


class Deadline(enum.Enum):
    """What ends at a deadline of a member or of the group."""

    SESSION = "its session expired"
    REVOCATION = "it has not revoked its partitions within the rebalance timeout"
    JOIN = "the classic member has not joined again within the rebalance timeout"
    SYNC = "the classic member has not requested its assignment within the rebalance timeout"
    REGEX = "regular expressions are to be matched"


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches, and when and in which image they were found."""

    topics: frozenset[str] = frozenset()
    version: int = 0
    timestamp: int = 0


class Owner(NamedTuple):
    """The member that has a partition, and the epoch in which it was when it was given."""

    member_id: str
    epoch: int


class RequestRejected(Exception):
    """A request is answered with an error."""

    def __init__(self, error: ErrorCode, text: str = "") -> None:
        super().__init__(text)
        self.error = error
        self.text = text


class AfterWrite(Protocol):
    """What follows when records are written, or are not."""

    def __call__(self, error: ErrorCode, /) -> None: ...


class _Write(NamedTuple):
    records: tuple[GroupRecord, ...]
    then: AfterWrite


@dataclass(slots=True)
class _Step:
    """A change of a member that is worked out, and the records that make it."""

    before: ConsumerMember
    """The member as it was; a new one has no subscription."""
    after: ConsumerMember
    owned: OwnedPartitions | None
    described_topics: frozenset[str] | None = None
    records: list[ConsumerGroupRecord] = field(default_factory=list)
    names_changed: bool = False
    regex_changed: bool = False
    regex_resolved: bool = False
    refreshes_regexes: bool = False
    group_epoch: int = 0
    is_homogeneous: bool = True


class ConsumerGroup(Group):
    """A consumer group. Times of deadlines are monotonic seconds."""

    type = CONSUMER
    takes_classic_requests = True

    def __init__(
        self, group_id: str, limits: GroupLimits, make_id: Callable[[], str], time: Moment
    ) -> None:
        super().__init__(group_id, limits, make_id, time)
        self.time = time
        """The time of the current event."""
        self.state = ConsumerGroupState.EMPTY
        self.group_epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Target] = {}
        self.owners: dict[tuple[Uuid, int], Owner] = {}
        """The member that has each partition, also if it must revoke it."""
        self.unwritten: tuple[GroupRecord, ...] = ()
        """Records to write before the first others, because they made this group."""
        self._assignment_timestamp = NO_TIMESTAMP
        self._metadata_hash = 0
        self._hashed_image: Image | None = None
        self._matched_image: Image | None = None
        """The image in which regular expressions were matched."""
        self._static: dict[str, str] = {}
        self._names: Counter[str] = Counter()
        self._regexes: Counter[str] = Counter()
        self._assignors: Counter[str] = Counter()
        self._resolved: dict[str, ResolvedRegex] = {}
        self._described_topics: frozenset[str] | None = None
        self._overrides: Mapping[str, str] = EMPTY
        self._times = limits.consumer.times
        self._deadlines: dict[tuple[Deadline, str], float] = {}
        self._wake_at: float | None = None
        self._decisions: list[Decision] = []
        self._write: _Write | None = None

    @classmethod
    def restore(
        cls,
        group_id: str,
        records: Sequence[GroupRecord],
        limits: GroupLimits,
        make_id: Callable[[], str],
        time: Moment,
    ) -> ConsumerGroup:
        """Create a group from its records."""
        group = cls(group_id, limits, make_id, time)
        for record in records:
            assert isinstance(record, ConsumerGroupRecord)
            group._apply(record)
        group.state = group._current_state()
        return group

    def handle(self, event: Event, time: Moment) -> list[Decision]:
        """Handle an event and return the decisions, in the order in which to carry them out.

        Raises ``RuntimeError`` for any event other than ``Persisted`` while a ``Persist`` is
        outstanding, and for a ``Persisted`` without a ``Persist``.
        """
        if isinstance(event, Persisted) != (self._write is not None):
            raise RuntimeError(
                f"group {self.group_id!r}: {type(event).__name__} was passed while "
                f"{'a' if self._write else 'no'} write was outstanding"
            )
        self.time = time
        self.HANDLERS[type(event)](self, event)
        self._run_due()
        decisions, self._decisions = self._decisions, []
        if self._write is not None:  # It is the last decision.
            decisions.append(Persist(self._write.records))
        return decisions

    # ------------------------------------------------------------------------------ state

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def protocol_type_name(self) -> str:
        return CONSUMER_PROTOCOL_TYPE

    @property
    def epoch(self) -> int:
        return self.group_epoch

    @property
    def members_count(self) -> int:
        return len(self.members)

    @property
    def is_idle(self) -> bool:
        return not self.members

    @property
    def next_deadline(self) -> float | None:
        return self._wake_at

    @property
    def assignor(self) -> str:
        """The assignor that most members prefer."""
        return self._preferred(self._assignors)

    @property
    def times(self) -> GroupTimes:
        """The group's times: its configs, or the settings of the broker."""
        overrides = self.image.configs.get((GROUP, self.group_id), EMPTY)
        if overrides is not self._overrides:
            self._overrides = overrides
            self._times = GroupTimes(
                *(
                    each.parse(overrides[each.name]) if each.name in overrides else default
                    for each, default in zip(
                        CONSUMER_TIMES, self.limits.consumer.times, strict=True
                    )
                )
            )
        return self._times

    def is_subscribed(self, topic: str) -> bool:
        return topic in self._names or any(topic in each.topics for each in self._resolved.values())

    def validate_offset_fetch(self, member_id: str | None, member_epoch: int, /) -> ErrorCode:
        """A client that names a member must name its current epoch."""
        if member_id is None and member_epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_epoch == member.member_epoch else _stale(member)

    def validate_offset_delete(self) -> ErrorCode:
        return ErrorCode.NONE

    def validate_delete(self) -> ErrorCode:
        return ErrorCode.NON_EMPTY_GROUP if self.members else ErrorCode.NONE

    def expired_offsets(self, wall_ms: int) -> list[tuple[str, int]]:
        """Topic and partition of each offset that is old and whose topic no member consumes."""
        resolved = {topic for each in self._resolved.values() for topic in each.topics}
        return self.offsets.expired(
            wall_ms=wall_ms,
            retention_ms=self.limits.offsets_retention_ms,
            age_from_ms=None,
            consumed=self._names.keys() | resolved,
        )

    def tombstones(self) -> list[ConsumerGroupRecord]:
        """Records that delete the group."""
        members = sorted(self.members.keys() | self.targets.keys())
        kinds = (RecordKind.CURRENT, RecordKind.TARGET)
        records = [self._tombstone(kind, each) for kind in kinds for each in members]
        records.append(self._tombstone(RecordKind.TARGET_EPOCH))
        records += [self._tombstone(RecordKind.MEMBER, each) for each in members]
        records += [self._tombstone(RecordKind.REGEX, each) for each in self._resolved]
        records.append(self._tombstone(RecordKind.PARTITION_METADATA))
        records.append(self._tombstone(RecordKind.EPOCH))
        return records

    def subscribed_topics(self, member: ConsumerMember) -> frozenset[str]:
        """Names of the topics that a member subscribes to, by name and by regular expression."""
        resolved = self._resolved.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def _subscribed_ids(self, member: ConsumerMember) -> frozenset[Uuid]:
        topics = self.image.topics
        return frozenset(
            topics[name].topic_id for name in self.subscribed_topics(member) if name in topics
        )

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member with an instance id, or None."""
        member_id = None if instance_id is None else self._static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def target_of(self, member: ConsumerMember) -> Target:
        """The target of a member; a static member that returns has that of its earlier id."""
        if member.instance_id is None:
            return self.targets.get(member.member_id, {})
        return self.targets.get(self._static.get(member.instance_id, ""), {})

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

    def _heartbeat(self, event: ConsumerHeartbeat) -> None:
        self._check_size(event.member_id, event.instance_id)
        member_id = event.member_id or self.make_id()
        step = self._subscribe(event, member_id)
        step.after = _updated(step.after, event)
        self._plan_subscription(step)
        assignor_changes = self.assignor != self._preferred(_with(self._assignors, step, _assignor))
        bumps = step.names_changed or step.regex_resolved or assignor_changes
        self._plan_group_epoch(step, bumps=bumps)
        epoch, target = self._plan_target(step)
        self._plan_reconciliation(step, epoch, target, step.names_changed or step.regex_changed)
        is_known = event.member_epoch != JOIN_EPOCH and not event.is_full
        is_unchanged = step.before.assigned == step.after.assigned
        result = ConsumerHeartbeatResult(
            member_id=step.after.member_id,
            member_epoch=step.after.member_epoch,
            heartbeat_interval_ms=self.times.heartbeat_interval_ms,
            assignment=None if is_known and is_unchanged else _shown(step.after.assigned),
        )

        def then(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._set_deadline(
                    Deadline.SESSION, step.after.member_id, self.times.session_timeout_ms
                )
                if step.refreshes_regexes:
                    self._described_topics = step.described_topics
                    self._set_deadline(Deadline.REGEX, "", 0)
                self._answer(event.waiter, result)
            else:
                self._answer(event.waiter, ConsumerHeartbeatResult(error))

        self._persist(step.records, then)

    def _check_size(self, member_id: str, instance_id: str | None) -> None:
        limit = self.limits.consumer.members_max
        is_new = self.static_member(instance_id) is None and member_id not in self.members
        if is_new and len(self.members) >= limit:
            raise RequestRejected(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The consumer group has reached its maximum capacity of {limit} members.",
            )

    def _subscribe(self, event: ConsumerHeartbeat, member_id: str) -> _Step:
        """Find or make the member of a heartbeat that does not leave. Raises RequestRejected."""
        joins = event.member_epoch == JOIN_EPOCH
        existing = self.static_member(event.instance_id)
        if event.instance_id is None:
            member = self._member(member_id, may_be_new=joins)
            self._check_epoch(member, event)
        elif not joins:
            member = self._check_instance(existing, member_id, event.instance_id)
            self._check_epoch(member, event)
        elif existing is None:
            member = self._member(member_id, may_be_new=True)
        else:
            if existing.classic is None and existing.member_epoch != STATIC_LEAVE_EPOCH:
                raise RequestRejected(
                    ErrorCode.UNRELEASED_INSTANCE_ID,
                    f"Static member {member_id} with instance id {event.instance_id} cannot join "
                    f"the group because the instance id is owned by {existing.member_id} member.",
                )
            return self._replace_member(existing, member_id, event.owned, event.described_topics)
        if joins:
            self._log(f"is joined by member {member_id}")
        return _Step(member, member, event.owned, event.described_topics)

    def _replace_member(
        self,
        existing: ConsumerMember,
        member_id: str,
        owned: OwnedPartitions | None,
        described_topics: frozenset[str] | None = None,
    ) -> _Step:
        """Give the place of a static member to a new member id."""
        member = replace(existing, member_id=member_id, member_epoch=0, previous_member_epoch=0)
        records = [
            *self._removal(existing.member_id),
            member.metadata_record(self.group_id),
            self._target_record(member_id, self.targets.get(existing.member_id, {})),
            member.assignment_record(self.group_id),
        ]
        self._log(f"replaces static member {existing.member_id} by {member_id}")
        return _Step(member, member, owned, described_topics, records)

    def _member(self, member_id: str, *, may_be_new: bool = False) -> ConsumerMember:
        member = self.members.get(member_id)
        if member is not None:
            return member
        if not may_be_new:
            raise RequestRejected(
                ErrorCode.UNKNOWN_MEMBER_ID,
                f"Member {member_id} is not a member of group {self.group_id}.",
            )
        return ConsumerMember(member_id=member_id)

    def _check_instance(
        self, existing: ConsumerMember | None, member_id: str, instance_id: str
    ) -> ConsumerMember:
        if existing is None:
            raise RequestRejected(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown."
            )
        if existing.member_id != member_id:
            raise RequestRejected(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member "
                f"{existing.member_id}.",
            )
        return existing

    def _check_epoch(self, member: ConsumerMember, event: ConsumerHeartbeat) -> None:
        """An older epoch is accepted only if the member has lost the answer that raised it."""
        received, known = event.member_epoch, member.member_epoch
        if received in (JOIN_EPOCH, known):
            return
        if (
            received < known
            and received == member.previous_member_epoch
            and _is_assigned(event.owned, member.assigned)
        ):
            return
        size = "greater" if received > known else "smaller"
        raise RequestRejected(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {size} member epoch ({received}) than the one known "
            f"by the group coordinator ({known}). The member must abandon all its partitions and "
            "rejoin.",
        )

    def _leave(self, event: ConsumerHeartbeat) -> None:
        if event.instance_id is None:
            member = self._member(event.member_id)
        else:
            existing = self.static_member(event.instance_id)
            member = self._check_instance(existing, event.member_id, event.instance_id)
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

    # ---------------------------------------------------------- the steps of a member's change

    def _plan_subscription(self, step: _Step) -> None:
        """Record a changed subscription. Raises RequestRejected for an invalid expression."""
        if step.after is not step.before:
            step.records.append(step.after.metadata_record(self.group_id))
            step.names_changed = step.after.topics != step.before.topics
        self._plan_regex(step)

    def _plan_regex(self, step: _Step) -> None:
        """Find out what a changed expression means, and whether to match all of them again."""
        old, new = step.before.regex, step.after.regex
        step.regex_changed = old != new
        refreshes = False
        if step.regex_changed:
            if old and self._regexes[old] == 1:
                step.records.append(self._tombstone(RecordKind.REGEX, old))
            if new and self._regexes[new] == 0:
                _check_pattern(new)
                refreshes = True
            else:
                step.regex_resolved = new in self._resolved if new else bool(old)
        if not refreshes and not self._regexes:
            return
        last = next(iter(self._resolved.values()), None)
        if last is not None and self.time.wall_ms <= last.timestamp + REGEX_BATCH_MS:
            return
        subscribed = _with(self._regexes, step, _regex)
        interval = self.limits.consumer.regex_refresh_interval_ms
        step.refreshes_regexes = bool(subscribed) and (
            refreshes
            or len(subscribed) != len(self._resolved)
            or last is None
            or self._has_new_topics(last)
            or self.time.wall_ms > last.timestamp + interval
        )

    def _has_new_topics(self, last: ResolvedRegex) -> bool:
        """Whether topics have been created since the expressions were matched."""
        if self._matched_image is None:  # The group was loaded since then.
            return last.version != self.image.number
        matched, topics = self._matched_image.topics, self.image.topics
        return matched is not topics and not topics.keys() <= matched.keys()

    def _plan_group_epoch(self, step: _Step, *, bumps: bool) -> None:
        """Raise the group epoch if a subscription or a subscribed topic has changed."""
        step.group_epoch = self.group_epoch
        names, regexes = self._names, self._regexes
        resolved = self._resolved
        count = len(self.members)
        if (
            bumps
            or self._hashed_image is None
            or self.image.topics is not self._hashed_image.topics
        ):
            names = _with(self._names, step, _topics)
            regexes = _with(self._regexes, step, _regex)
            resolved = {each: self._resolved[each] for each in self._resolved if regexes[each]}
            metadata_hash = topics_hash(self.image, _all_topics(names, resolved))
            is_new = step.after.member_id not in self.members
            count += is_new and self.static_member(step.after.instance_id) is None
            if bumps or metadata_hash != self._metadata_hash:
                step.group_epoch += 1
                step.records.append(self._epoch_record(step.group_epoch, metadata_hash))
                self._log(f"is in epoch {step.group_epoch}: member {step.after.member_id} changes")
            else:
                self._hashed_image = self.image
        if step.group_epoch > self.assignment_epoch:
            step.is_homogeneous = _is_homogeneous(names, regexes, resolved, count)

    def _plan_target(self, step: _Step) -> tuple[int, Target]:
        """Compute the target of the group epoch if it is due; return epoch and target of the
        member.
        """
        current = self.assignment_epoch, self.target_of(step.after)
        timestamp, interval_ms = self._assignment_timestamp, self.times.assignment_interval_ms
        is_due = timestamp == NO_TIMESTAMP or self.time.wall_ms >= timestamp + interval_ms
        if self.assignment_epoch >= step.group_epoch or not (is_due or interval_ms == 0):
            return current
        members, targets = dict(self.members), dict(self.targets)
        instance_id = step.after.instance_id
        former = None if instance_id is None else self._static.get(instance_id)
        if former not in (None, step.after.member_id):
            del members[former]
            if former in targets:
                targets[step.after.member_id] = targets.pop(former)
        members[step.after.member_id] = step.after
        specs = {
            member_id: MemberSubscription(
                self._subscribed_ids(member), targets.get(member_id, {}), member.instance_id
            )
            for member_id, member in members.items()
        }
        topic_ids = {topic for spec in specs.values() for topic in spec.topics}
        image = self.image
        counts = {
            topic: len(image.topics[image.topic_names[topic]].partitions) for topic in topic_ids
        }
        assignor = self._preferred(_with(self._assignors, step, _assignor))
        found = assign(assignor, specs, counts, is_homogeneous=step.is_homogeneous)
        for member_id in java_order(specs):
            target = found.get(member_id, {})
            if member_id not in targets or _as_sets(target) != _as_sets(targets[member_id]):
                step.records.append(self._target_record(member_id, target))
        value = TargetAssignmentMetadata(
            assignment_epoch=step.group_epoch, assignment_timestamp=self.time.wall_ms
        )
        step.records.append(
            ConsumerGroupRecord(RecordKind.TARGET_EPOCH, self.group_id, value=value)
        )
        self._log(f"has the target of epoch {step.group_epoch}, by the assignor {assignor}")
        return step.group_epoch, found.get(step.after.member_id, {})

    def _plan_reconciliation(
        self, step: _Step, epoch: int, target: Target, has_new_subscription: bool
    ) -> None:
        """Let the member follow its target. Raises RequestRejected."""
        if not has_new_subscription and step.after.is_reconciled_to(epoch):
            return
        try:
            after = Reconciliation(
                target_epoch=epoch,
                target=target,
                topics=self._subscribed_ids(step.after),
                has_new_subscription=has_new_subscription,
                is_free=self._is_free,
                owned=step.owned,
            ).apply(step.after)
        except Rejoin:
            raise RequestRejected(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. The member must abandon all its "
                "partitions and rejoin.",
            ) from None
        if after != step.after:
            step.after = after
            step.records.append(after.assignment_record(self.group_id))

    def _is_free(self, topic: Uuid, partition: int) -> bool:
        return (topic, partition) not in self.owners

    def _preferred(self, votes: Mapping[str, int]) -> str:
        if not votes:
            return self.limits.consumer.assignors[0]
        names = java_order(list(votes))
        most = max(votes.values())
        return next(name for name in names if votes[name] == most)

    # ----------------------------------------------------------------- regular expressions

    def _resolve_regexes(self) -> None:
        """Match all expressions with the topics; what they newly match raises the group epoch."""
        records, resolved = [], dict(self._resolved)
        bumps = False
        for regex in list(self._regexes):
            topics = self._matching_topics(regex)
            before = self._resolved.get(regex, ResolvedRegex())
            bumps = bumps or before.topics != topics
            resolved[regex] = ResolvedRegex(topics, self.image.number, self.time.wall_ms)
            value = RegularExpression(
                topics=sorted(topics), version=self.image.number, timestamp=self.time.wall_ms
            )
            records.append(ConsumerGroupRecord(RecordKind.REGEX, self.group_id, regex, value))
        self._matched_image = self.image
        metadata_hash = topics_hash(self.image, _all_topics(self._names, resolved))
        if bumps or metadata_hash != self._metadata_hash:
            records.append(self._epoch_record(self.group_epoch + 1, metadata_hash))
            self._log(f"is in epoch {self.group_epoch + 1}: its regular expressions match others")
        self._persist(records, self._note_failure)

    def _matching_topics(self, regex: str) -> frozenset[str]:
        names: Iterable[str] = self.image.topics
        if self._described_topics is not None:
            names = self._described_topics
        try:
            return frozenset(CompiledPattern(regex).select(names))
        except (InvalidPattern, PatternTooCostly) as error:
            self._log(f"ignores a regular expression: {error}")
            return frozenset()

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
        records = [record for member in members for record in self._removal(member.member_id)]
        names, regexes = Counter(self._names), Counter(self._regexes)
        for member in members:
            names.subtract(_topics(member))
            regexes.subtract(_regex(member))
        names, regexes = +names, +regexes
        records += [
            self._tombstone(RecordKind.REGEX, each) for each in self._regexes if not regexes[each]
        ]
        resolved = {each: self._resolved[each] for each in self._resolved if regexes[each]}
        metadata_hash = topics_hash(self.image, _all_topics(names, resolved))
        epoch = self.group_epoch + 1
        records.append(self._epoch_record(epoch, metadata_hash))
        if len(members) == len(self.members):
            value = TargetAssignmentMetadata(assignment_epoch=epoch)
            records.append(ConsumerGroupRecord(RecordKind.TARGET_EPOCH, self.group_id, value=value))
        self._persist(records, then)

    def _removal(self, member_id: str) -> list[ConsumerGroupRecord]:
        kinds = (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER)
        return [self._tombstone(kind, member_id) for kind in kinds]

    def _becomes_classic(
        self, without: Sequence[ConsumerMember], joining: ConsumerMember | None = None
    ) -> bool:
        """Whether only classic members are left without these; ``joining`` takes one's place."""
        left = [each for each in self.members.values() if each not in without]
        count = len(left) + (joining is not None)
        limits = self.limits
        return (
            count > 0
            and all(each.classic is not None for each in left)
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
            member_id: (member, self.targets.get(member_id, {}))
            for member_id, member in self.members.items()
            if member not in without
        }
        if joining is not None:
            left[joining.member_id] = joining, self.targets.get(without[0].member_id, {})
        group = ClassicGroup(self.group_id, self.limits, self.make_id, self.time)
        group.image = self.image
        record = fill_classic_group(group, self.group_epoch, left)
        group.offsets = self.offsets
        self._log("becomes a classic group: no other members are left")

        def replaced(error: ErrorCode) -> None:
            then(error)
            if error is ErrorCode.NONE:
                self._decisions.append(GroupReplaced(group, Restored(rebalance_reason)))

        self._persist([*self.tombstones(), record], replaced)

    # ------------------------------------------------------------------------- commits

    def _commit(self, event: CommitRequested) -> None:
        self._answer(event.waiter, CommitResult(self._commit_error(event)))

    def _commit_error(self, event: CommitRequested) -> ErrorCode:
        """A smaller epoch is accepted for partitions that the member has had since then."""
        if event.generation < 0 and not self.members:
            return ErrorCode.NONE
        is_anonymous = event.member_id == "" and event.group_instance_id is None
        if event.transactional and event.generation == -1 and is_anonymous:
            return ErrorCode.NONE
        member = self.members.get(event.member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not event.transactional and member.classic is None and not event.knows_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        if event.generation == member.member_epoch:
            return ErrorCode.NONE
        if event.generation > member.member_epoch:
            return _stale(member)
        for name, partition in event.partitions:
            topic = self.image.topics.get(name)
            since = None if topic is None else member.epoch_of(topic.topic_id, partition)
            if since is None or event.generation < since:
                return _stale(member)
        return ErrorCode.NONE

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
        self._check_size(member_id, event.group_instance_id)
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
        existing = self.static_member(event.group_instance_id)
        step = self._classic_step(event, member_id, existing, owned)
        step.after = replace(
            step.after,
            instance_id=event.group_instance_id or step.after.instance_id,
            rack_id=subscription.rack_id or step.after.rack_id,
            rebalance_timeout_ms=event.rebalance_timeout_ms,
            topics=frozenset(subscription.topics),
            regex="",
            client_id=event.client_id,
            client_host=event.client_host,
            classic=ClassicSession(event.session_timeout_ms, event.protocols),
        )
        self._plan_subscription(step)
        has_new_subscription = step.names_changed or step.regex_changed
        self._plan_group_epoch(step, bumps=has_new_subscription)
        becomes_classic = existing is not None and self._becomes_classic([existing], step.after)
        if becomes_classic and existing is not None:
            is_stale = self.assignment_epoch < step.group_epoch
            if not is_stale:
                target = self.targets.get(existing.member_id, {})
                self._plan_reconciliation(step, self.assignment_epoch, target, has_new_subscription)
            text = (
                f"Downgrade group {self.group_id} from consumer to classic with stale assignment."
            )
            answer = self._classic_joined(event, step, has_timers=False)
            self._become_classic([existing], step.after, text if is_stale else "", answer)
            return
        epoch, target = self._plan_target(step)
        self._plan_reconciliation(step, epoch, target, has_new_subscription)
        self._persist(step.records, self._classic_joined(event, step, has_timers=True))

    def _classic_step(
        self,
        event: JoinRequested,
        member_id: str,
        existing: ConsumerMember | None,
        owned: OwnedPartitions,
    ) -> _Step:
        if event.group_instance_id is None:
            member = self._member(member_id, may_be_new=True)
        elif event.member_id:
            member = self._check_instance(existing, member_id, event.group_instance_id)
        elif existing is None:
            member = ConsumerMember(member_id=member_id)
        else:
            return self._replace_member(existing, member_id, owned)
        return _Step(member, member, owned)

    def _classic_joined(self, event: JoinRequested, step: _Step, *, has_timers: bool) -> AfterWrite:
        def then(error: ErrorCode) -> None:
            member_id = step.after.member_id
            if error is not ErrorCode.NONE:
                self._answer(event.waiter, JoinResult(error=error, member_id=member_id))
                return
            if has_timers:
                self._deadlines.pop((Deadline.JOIN, member_id), None)
                self._set_deadline(Deadline.SESSION, member_id, event.session_timeout_ms)
                self._set_deadline(Deadline.SYNC, member_id, event.rebalance_timeout_ms)
            result = JoinResult(
                member_id=member_id,
                generation=step.after.member_epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=event.protocols[0][0],
            )
            self._answer(event.waiter, result)

        return then

    def _supports(self, protocol_type: str, names: Collection[str]) -> bool:
        """Whether a classic member with these protocols can join the other classic members."""
        if protocol_type != CONSUMER_PROTOCOL_TYPE or not names:
            return False
        classic = [each.classic for each in self.members.values() if each.classic is not None]
        supported = Counter(name for each in classic for name, _ in each.protocols)
        return any(supported[name] == len(classic) for name in names)

    def _classic_member(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> tuple[ConsumerMember, ClassicSession]:
        """The member of a classic request. Raises RequestRejected."""
        if instance_id is None:
            member = self._member(member_id)
        else:
            existing = self.static_member(instance_id)
            member = self._check_instance(existing, member_id, instance_id)
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
        is_behind = self.assignment_epoch > member.member_epoch
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
            member.member_epoch < self.assignment_epoch
            or state is MemberState.UNREVOKED_PARTITIONS
            or (state is MemberState.UNRELEASED_PARTITIONS and not self.missing_partitions(member))
        ):
            self._require_join(member)
            error = ErrorCode.REBALANCE_IN_PROGRESS
        self._answer(event.waiter, HeartbeatResult(error))

    def _require_join(self, member: ConsumerMember) -> None:
        """Let a classic member join again within its rebalance timeout."""
        if (Deadline.JOIN, member.member_id) not in self._deadlines:
            self._set_deadline(Deadline.JOIN, member.member_id, member.rebalance_timeout_ms)

    def missing_partitions(self, member: ConsumerMember) -> list[tuple[Uuid, int, Owner]]:
        """Partitions of the member's target that other members have."""
        return [
            (topic, partition, self.owners[topic, partition])
            for topic, partitions in self.targets.get(member.member_id, {}).items()
            for partition in partitions
            if partition not in member.assigned.get(topic, {})
            and (topic, partition) in self.owners
            and self.owners[topic, partition].member_id != member.member_id
        ]

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
            return self._member(leaving.member_id)
        existing = self.static_member(leaving.group_instance_id)
        member_id = leaving.member_id
        if existing is not None and member_id == "":
            member_id = existing.member_id
        return self._check_instance(existing, member_id, leaving.group_instance_id)

    # ------------------------------------------------------------------------------ internal events

    def _nothing(self, _event: Event) -> None:
        """Do nothing: ``handle`` checks the deadlines after every event."""

    def _persisted(self, event: Persisted) -> None:
        write, self._write = self._write, None
        assert write is not None
        if event.error is ErrorCode.NONE:
            made, self.unwritten = len(self.unwritten), ()
            for record in write.records[made:]:
                if isinstance(record, ConsumerGroupRecord):
                    self._apply(record)
            self._note_state(ChangeCause.RECORDS)
        write.then(event.error)

    def _restored(self, _event: Restored) -> None:
        for member in self.members.values():
            timeout = self.times.session_timeout_ms
            if member.classic is not None:
                timeout = member.classic.session_timeout_ms
            self._set_deadline(Deadline.SESSION, member.member_id, timeout)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                timeout = member.rebalance_timeout_ms
                self._set_deadline(Deadline.REVOCATION, member.member_id, timeout)

    def _removed(self, _event: Removed) -> None:
        self.members.clear()
        self._deadlines.clear()
        self._wake_at = None
        self._note_state(ChangeCause.REMOVED)

    def _expire_member(self, event: MemberExpired) -> None:
        member = self.members.get(event.member_id)
        if member is None:
            self._refuse(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no member {event.member_id!r}")
            return

        def then(error: ErrorCode) -> None:
            self._answer(NO_WAITER, ActionTaken(error, affected=int(error is ErrorCode.NONE)))

        self._remove_members([member], "by request of a test", then)

    def _refuse_action(self, event: Event) -> None:
        self._refuse(
            ErrorCode.UNSUPPORTED_VERSION,
            f"a consumer group takes no {type(event).__name__}; `expire_member` it takes",
        )

    def _refuse(self, error: ErrorCode, text: str) -> None:
        self._answer(NO_WAITER, ActionTaken(error, text))

    # ------------------------------------------------------------------------- records

    def _apply(self, record: ConsumerGroupRecord) -> None:
        """Change the group as a record says, which was written or loaded."""
        name, value = record.name or "", record.value
        if isinstance(value, ConsumerGroupMetadata):
            self.group_epoch = value.epoch
            self._metadata_hash = value.metadata_hash
            self._hashed_image = None
        elif isinstance(value, TargetAssignmentMetadata):
            self.assignment_epoch = value.assignment_epoch
            self._assignment_timestamp = value.assignment_timestamp
        elif isinstance(value, TargetAssignmentMember):
            self.targets[name] = {
                each.topic_id: tuple(each.partitions) for each in value.topic_partitions
            }
        elif isinstance(value, RegularExpression):
            topics = frozenset(value.topics)
            self._resolved[name] = ResolvedRegex(topics, value.version, value.timestamp)
        elif isinstance(value, ConsumerMemberMetadata):
            member = self.members.get(name) or ConsumerMember(member_id=name)
            self._set_member(member.with_metadata(value))
        elif isinstance(value, CurrentMemberAssignment):
            member = self.members.get(name) or ConsumerMember(member_id=name)
            self._set_member(member.with_assignment(value))
        elif record.kind is RecordKind.TARGET:
            self.targets.pop(name, None)
        elif record.kind is RecordKind.REGEX:
            self._resolved.pop(name, None)
        elif record.kind is RecordKind.MEMBER:
            self._forget_member(name)
            for kind in Deadline:
                self._deadlines.pop((kind, name), None)
        elif record.kind is RecordKind.CURRENT and name in self.members:
            member = self.members[name]
            self._set_member(
                replace(
                    member,
                    member_epoch=-1,
                    previous_member_epoch=-1,
                    assigned=NOTHING,
                    pending_revocation=NOTHING,
                )
            )

    def _set_member(self, member: ConsumerMember) -> None:
        before = self._forget_member(member.member_id)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        self._names.update(_topics(member))
        self._regexes.update(_regex(member))
        self._assignors.update(_assignor(member))
        owner = Owner(member.member_id, member.member_epoch)
        for partition in _partitions(member):
            self.owners[partition] = owner
        self._time_revocation(before, member)

    def _forget_member(self, member_id: str) -> ConsumerMember | None:
        member = self.members.pop(member_id, None)
        if member is None:
            return None
        if member.instance_id is not None and self._static.get(member.instance_id) == member_id:
            del self._static[member.instance_id]
        for counter, counted in (
            (self._names, _topics),
            (self._regexes, _regex),
            (self._assignors, _assignor),
        ):
            for each in counted(member):
                counter[each] -= 1
                if counter[each] == 0:
                    del counter[each]
        for partition in _partitions(member):
            owner = self.owners.get(partition)
            if owner is not None and owner.member_id == member_id:
                del self.owners[partition]
        return member

    def _time_revocation(self, before: ConsumerMember | None, member: ConsumerMember) -> None:
        """Limit the time in which a member may revoke partitions."""
        if before is None or member.classic is not None:
            return
        key = Deadline.REVOCATION, member.member_id
        is_away = member.member_epoch == STATIC_LEAVE_EPOCH
        if member.state is not MemberState.UNREVOKED_PARTITIONS or is_away:
            self._deadlines.pop(key, None)
        elif before.state is not member.state or _has_changed(before, member):
            self._set_deadline(*key, member.rebalance_timeout_ms)

    def _tombstone(self, kind: RecordKind, name: str | None = None) -> ConsumerGroupRecord:
        return ConsumerGroupRecord(kind, self.group_id, name)

    def _epoch_record(self, epoch: int, metadata_hash: int) -> ConsumerGroupRecord:
        value = ConsumerGroupMetadata(epoch=epoch, metadata_hash=metadata_hash)
        return ConsumerGroupRecord(RecordKind.EPOCH, self.group_id, value=value)

    def _target_record(self, member_id: str, target: Target) -> ConsumerGroupRecord:
        value = TargetAssignmentMember(
            topic_partitions=[
                TargetTopicPartitions(topic_id=topic, partitions=list(partitions))
                for topic, partitions in target.items()
            ]
        )
        return ConsumerGroupRecord(RecordKind.TARGET, self.group_id, member_id, value)

    # ------------------------------------------------------------------------- decisions

    def _answer(self, waiter: Waiter, result: Result) -> None:
        self._decisions.append(GroupAnswer(waiter, result))

    def _log(self, text: str) -> None:
        self._decisions.append(LogLine(f"group {self.group_id!r} {text}"))

    def _persist(self, records: Sequence[GroupRecord], then: AfterWrite) -> None:
        """Write records; ``then`` is called with the result, at once if there are none."""
        if records or self.unwritten:
            self._write = _Write((*self.unwritten, *records), then)
        else:
            then(ErrorCode.NONE)

    def _note_failure(self, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            self._log(f"could not be written: {error.name}")

    def _current_state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        epoch = self.assignment_epoch
        is_stable = all(each.is_reconciled_to(epoch) for each in self.members.values())
        return ConsumerGroupState.STABLE if is_stable else ConsumerGroupState.RECONCILING

    def _note_state(self, cause: ChangeCause) -> None:
        before = self.state
        is_removed = cause is ChangeCause.REMOVED
        self.state = ConsumerGroupState.DEAD if is_removed else self._current_state()
        if self.state is not before:
            self.past_transitions.append(StateTransition(self.time.now, before, cause, self.state))

    # ------------------------------------------------------------------------------- time

    def _set_deadline(self, kind: Deadline, member_id: str, after_ms: int) -> None:
        deadline = self.time.now + after_ms / 1000
        self._deadlines[kind, member_id] = deadline
        if self._wake_at is None or deadline < self._wake_at:
            self._wake_at = deadline

    def _run_due(self) -> None:
        """Handle expired deadlines, earliest first. Stop when the group must be written."""
        while self._write is None and self._wake_at is not None and self._wake_at <= self.time.now:
            earliest = min(self._deadlines, key=self._deadlines.__getitem__, default=None)
            if earliest is None:
                self._wake_at = None
                return
            self._wake_at = self._deadlines[earliest]
            if self._wake_at > self.time.now:
                return
            del self._deadlines[earliest]
            kind, member_id = earliest
            if kind is Deadline.REGEX:
                self._resolve_regexes()
            elif member_id in self.members:
                text = f"member {member_id} is fenced because {kind.value}"
                self._remove_members([self.members[member_id]], text, self._note_failure)

    HANDLERS: ClassVar[Handlers] = {
        ConsumerHeartbeat: _handle_heartbeat,
        JoinRequested: _join,
        SyncRequested: _sync,
        HeartbeatReceived: _classic_heartbeat,
        CommitRequested: _commit,
        LeaveRequested: _classic_leave,
        TimePassed: _nothing,
        Persisted: _persisted,
        RebalanceReleased: _nothing,
        Restored: _restored,
        Removed: _removed,
        RebalanceRequested: _refuse_action,
        AssignmentPlanned: _refuse_action,
        MemberExpired: _expire_member,
        MemberFenced: _refuse_action,
    }
    """How each event is handled."""


def topics_hash(image: Image, names: Iterable[str]) -> int:
    """A hash of the topics that exist: their names, ids and numbers of partitions."""
    digest = blake2b(digest_size=8)
    is_empty = True
    for name in sorted(names):
        topic = image.topics.get(name)
        if topic is not None:
            is_empty = False
            digest.update(f"{name}\0{len(topic.partitions)}\0".encode())
            digest.update(topic.topic_id)
    return 0 if is_empty else int.from_bytes(digest.digest(), "big", signed=True)


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


def _check_pattern(regex: str) -> None:
    try:
        CompiledPattern(regex)
    except InvalidPattern as error:
        raise RequestRejected(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from None


def _stale(member: ConsumerMember) -> ErrorCode:
    is_classic = member.classic is not None
    return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH


def _is_assigned(owned: OwnedPartitions | None, assigned: EpochAssignment) -> bool:
    """Whether the member reports what it has, and has all of that."""
    return owned is not None and all(
        partition in assigned.get(topic, {}) for topic, parts in owned for partition in parts
    )


def _shown(assigned: EpochAssignment) -> tuple[AssignedPartitions, ...]:
    return tuple(AssignedPartitions(topic, tuple(epochs)) for topic, epochs in assigned.items())


def _as_sets(target: Target) -> dict[Uuid, frozenset[int]]:
    return {topic: frozenset(partitions) for topic, partitions in target.items() if partitions}


def _partitions(member: ConsumerMember) -> Iterator[tuple[Uuid, int]]:
    for assigned in (member.assigned, member.pending_revocation):
        for topic, epochs in assigned.items():
            for partition in epochs:
                yield topic, partition


def _has_changed(before: ConsumerMember, member: ConsumerMember) -> bool:
    """Whether a member has other partitions, or others to revoke."""
    former = before.assigned, before.pending_revocation
    return former != (member.assigned, member.pending_revocation)


def _topics(member: ConsumerMember) -> Iterable[str]:
    return member.topics


def _regex(member: ConsumerMember) -> Iterable[str]:
    return (member.regex,) if member.regex else ()


def _assignor(member: ConsumerMember) -> Iterable[str]:
    return (member.assignor,) if member.assignor is not None else ()


def _with(
    counter: Counter[str], step: _Step, counted: Callable[[ConsumerMember], Iterable[str]]
) -> Counter[str]:
    """What a counter becomes when the member changes."""
    before, after = counted(step.before), counted(step.after)
    if before == after:
        return counter
    changed = Counter(counter)
    changed.subtract(before)
    changed.update(after)
    return +changed


def _all_topics(names: Iterable[str], resolved: Mapping[str, ResolvedRegex]) -> set[str]:
    return {*names, *(topic for each in resolved.values() for topic in each.topics)}


def _is_homogeneous(
    names: Mapping[str, int],
    regexes: Mapping[str, int],
    resolved: Mapping[str, ResolvedRegex],
    members: int,
) -> bool:
    """Whether all members subscribe to the same topics, in the same way."""
    if not regexes:
        matched = {topic for each in resolved.values() for topic in each.topics}
        return all(count == members for count in names.values()) and matched <= names.keys()
    if next(iter(regexes.values())) != members:
        return False
    matches = Counter(topic for each in resolved.values() for topic in each.topics)
    return not names and all(count == 1 for count in matches.values())
