"""Works out how a consumer group changes when one of its members does.

Owns the steps from a heartbeat, or a classic JoinGroup, to records: which member it is, whether the
subscription raises the group epoch, whether a target is due, and what the member may have next. It
must never write a record or change the state. Invariant: a rejected request leaves no records.
Kafka's ``GroupMetadataManager.consumerGroupHeartbeat``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from minibroker.broker.groups.assignors import MemberSubscription, assign, java_order
from minibroker.broker.groups.consumer_member import (
    JOIN_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
    EpochAssignment,
    OwnedPartitions,
    Reconciliation,
    Rejoin,
    Target,
)
from minibroker.broker.groups.consumer_records import (
    ConsumerGroupRecord,
    RecordKind,
    RegularExpression,
    TargetAssignmentMetadata,
)
from minibroker.broker.groups.consumer_state import (
    ConsumerGroupData,
    ResolvedRegex,
    all_topics,
    assignors_of,
    is_homogeneous,
    regexes_of,
    topics_hash,
    topics_of,
)
from minibroker.broker.groups.events import ConsumerHeartbeat
from minibroker.broker.groups.group import (
    ConsumerLimits,
    GroupTimes,
    RequestRejected,
    check_instance,
)
from minibroker.broker.metadata.image import Image
from minibroker.broker.patterns import CompiledPattern, InvalidPattern, PatternTooCostly
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import Uuid

REGEX_BATCH_MS: Final = 10_000
"""Regular expressions are matched again at most once in this time."""


class ChangeContext(NamedTuple):
    """What a change of a group depends on, besides the request."""

    data: ConsumerGroupData
    image: Image
    limits: ConsumerLimits
    times: GroupTimes
    wall_ms: int


class MemberChange:
    """A change of one member. The steps are called in the order in which they stand here.

    ``before`` is the member as it was; a new one has no subscription. ``notes`` are for the log.
    """

    def __init__(
        self,
        context: ChangeContext,
        member: ConsumerMember,
        owned: OwnedPartitions | None,
        described_topics: frozenset[str] | None = None,
    ) -> None:
        self.data, self.image, self.limits, self.times, self.wall_ms = context
        self.before = self.after = member
        self.owned = owned
        self.described_topics = described_topics
        self.records: list[ConsumerGroupRecord] = []
        self.notes: list[str] = []
        self.names_changed = False
        self.regex_changed = False
        self.regex_resolved = False
        """Whether the topics of a changed expression are known."""
        self.refreshes_regexes = False
        """Whether all expressions are to be matched again."""
        self.group_epoch = self.data.group_epoch
        self.is_homogeneous = True

    @property
    def has_new_subscription(self) -> bool:
        return self.names_changed or self.regex_changed

    @property
    def assignor_changes(self) -> bool:
        """Whether the assignor that most members prefer becomes another one."""
        before = self.data.assignors
        after = self._with(before, assignors_of)
        if after is before:
            return False
        return preferred_assignor(self.limits, before) != preferred_assignor(self.limits, after)

    def plan_subscription(self) -> None:
        """Record a changed subscription. Raises RequestRejected for an invalid expression."""
        if self.after is not self.before:
            self.records.append(self.after.metadata_record(self.data.group_id))
            self.names_changed = self.after.topics != self.before.topics
        self._plan_regex()

    def _plan_regex(self) -> None:
        """Find out what a changed expression means, and whether to match all of them again."""
        old, new = self.before.regex, self.after.regex
        self.regex_changed = old != new
        refreshes = False
        if self.regex_changed:
            if old and self.data.regexes[old] == 1:
                self.records.append(self.data.tombstone(RecordKind.REGEX, old))
            if new and self.data.regexes[new] == 0:
                _check_pattern(new)
                refreshes = True
            else:
                self.regex_resolved = new in self.data.resolved if new else bool(old)
        if not refreshes and not self.data.regexes:
            return
        last = next(iter(self.data.resolved.values()), None)
        if last is not None and self.wall_ms <= last.timestamp + REGEX_BATCH_MS:
            return
        subscribed = self._with(self.data.regexes, regexes_of)
        interval = self.limits.regex_refresh_interval_ms
        self.refreshes_regexes = bool(subscribed) and (
            refreshes
            or len(subscribed) != len(self.data.resolved)
            or last is None
            or self._has_new_topics(last)
            or self.wall_ms > last.timestamp + interval
        )

    def _has_new_topics(self, last: ResolvedRegex) -> bool:
        """Whether topics have been created since the expressions were matched."""
        if self.data.matched_image is None:  # The group was loaded since then.
            return last.version != self.image.number
        matched, topics = self.data.matched_image.topics, self.image.topics
        return matched is not topics and not topics.keys() <= matched.keys()

    def plan_group_epoch(self, *, bumps: bool) -> None:
        """Raise the group epoch if a subscription or a subscribed topic has changed."""
        names, regexes = self.data.names, self.data.regexes
        resolved = self.data.resolved
        count = len(self.data.members)
        if (
            bumps
            or self.data.hashed_image is None
            or self.image.topics is not self.data.hashed_image.topics
        ):
            names = self._with(self.data.names, topics_of)
            regexes = self._with(self.data.regexes, regexes_of)
            resolved = {
                each: self.data.resolved[each] for each in self.data.resolved if regexes[each]
            }
            metadata_hash = topics_hash(self.image, all_topics(names, resolved))
            is_new = self.after.member_id not in self.data.members
            count += is_new and self.data.static_member(self.after.instance_id) is None
            if bumps or metadata_hash != self.data.metadata_hash:
                self.group_epoch += 1
                self.records.append(self.data.epoch_record(self.group_epoch, metadata_hash))
                self.notes.append(
                    f"is in epoch {self.group_epoch}: member {self.after.member_id} changes"
                )
            else:
                self.data.hashed_image = self.image
        if self.group_epoch > self.data.assignment_epoch:
            self.is_homogeneous = is_homogeneous(names, regexes, resolved, count)

    def plan_target(self) -> tuple[int, Target]:
        """Compute the target of the group epoch if it is due; return epoch and target of the
        member.
        """
        current = self.data.assignment_epoch, self.data.target_of(self.after)
        is_due = self.times.is_target_due(self.data.assignment_timestamp, self.wall_ms)
        if self.data.assignment_epoch >= self.group_epoch or not is_due:
            return current
        members, targets = dict(self.data.members), dict(self.data.targets)
        instance_id = self.after.instance_id
        former = None if instance_id is None else self.data.static_id(instance_id)
        if former not in (None, self.after.member_id):
            del members[former]
            if former in targets:
                targets[self.after.member_id] = targets.pop(former)
        members[self.after.member_id] = self.after
        specs = {
            member_id: MemberSubscription(
                self.data.subscribed_ids(member, self.image),
                targets.get(member_id, {}),
                member.instance_id,
            )
            for member_id, member in members.items()
        }
        topic_ids = {topic for spec in specs.values() for topic in spec.topics}
        image = self.image
        counts = {
            topic: len(image.topics[image.topic_names[topic]].partitions) for topic in topic_ids
        }
        assignor = preferred_assignor(self.limits, self._with(self.data.assignors, assignors_of))
        found = assign(assignor, specs, counts, is_homogeneous=self.is_homogeneous)
        for member_id in java_order(specs):
            target = found.get(member_id, {})
            if member_id not in targets or _as_sets(target) != _as_sets(targets[member_id]):
                self.records.append(self.data.target_record(member_id, target))
        value = TargetAssignmentMetadata(
            assignment_epoch=self.group_epoch, assignment_timestamp=self.wall_ms
        )
        self.records.append(
            ConsumerGroupRecord(RecordKind.TARGET_EPOCH, self.data.group_id, value=value)
        )
        self.notes.append(f"has the target of epoch {self.group_epoch}, by the assignor {assignor}")
        return self.group_epoch, found.get(self.after.member_id, {})

    def plan_reconciliation(self, epoch: int, target: Target) -> None:
        """Let the member follow its target. Raises RequestRejected."""
        if not self.has_new_subscription and self.after.is_reconciled_to(epoch):
            return
        try:
            after = Reconciliation(
                target_epoch=epoch,
                target=target,
                topics=self.data.subscribed_ids(self.after, self.image),
                has_new_subscription=self.has_new_subscription,
                is_free=self.data.is_free,
                owned=self.owned,
            ).apply(self.after)
        except Rejoin:
            raise RequestRejected(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The consumer group member is in a unknown state. The member must abandon all its "
                "partitions and rejoin.",
            ) from None
        if after != self.after:
            self.after = after
            self.records.append(after.assignment_record(self.data.group_id))

    def _with(
        self, counter: Counter[str], counted: Callable[[ConsumerMember], Iterable[str]]
    ) -> Counter[str]:
        """What a counter becomes when the member changes."""
        before, after = counted(self.before), counted(self.after)
        if before == after:
            return counter
        changed = Counter(counter)
        changed.subtract(before)
        changed.update(after)
        return +changed


# The member of a request --------------------------------------------------------------------------


def check_size(context: ChangeContext, member_id: str, instance_id: str | None) -> None:
    """Check that the group has room for a member. Raises RequestRejected."""
    data = context.data
    limit = context.limits.members_max
    is_new = data.static_member(instance_id) is None and member_id not in data.members
    if is_new and len(data.members) >= limit:
        raise RequestRejected(
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"The consumer group has reached its maximum capacity of {limit} members.",
        )


def subscribe(context: ChangeContext, event: ConsumerHeartbeat, member_id: str) -> MemberChange:
    """Find or make the member of a heartbeat that does not leave. Raises RequestRejected."""
    data = context.data
    joins = event.member_epoch == JOIN_EPOCH
    existing = data.static_member(event.instance_id)
    if event.instance_id is None:
        member = data.member(member_id, may_be_new=joins)
        _check_epoch(member, event)
    elif not joins:
        member = check_instance(existing, member_id, event.instance_id)
        _check_epoch(member, event)
    elif existing is None:
        member = data.member(member_id, may_be_new=True)
    else:
        if existing.classic is None and existing.member_epoch != STATIC_LEAVE_EPOCH:
            raise RequestRejected(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {event.instance_id} cannot join "
                f"the group because the instance id is owned by {existing.member_id} member.",
            )
        return replace_member(context, existing, member_id, event.owned, event.described_topics)
    change = MemberChange(context, member, event.owned, event.described_topics)
    if joins:
        change.notes.append(f"is joined by member {member_id}")
    return change


def replace_member(
    context: ChangeContext,
    existing: ConsumerMember,
    member_id: str,
    owned: OwnedPartitions | None,
    described_topics: frozenset[str] | None = None,
) -> MemberChange:
    """Give the place of a static member to a new member id."""
    data = context.data
    member = replace(existing, member_id=member_id, member_epoch=0, previous_member_epoch=0)
    records = [
        *data.removal(existing.member_id),
        member.metadata_record(data.group_id),
        data.target_record(member_id, data.targets.get(existing.member_id, {})),
        member.assignment_record(data.group_id),
    ]
    change = MemberChange(context, member, owned, described_topics)
    change.records += records
    change.notes.append(f"replaces static member {existing.member_id} by {member_id}")
    return change


def _check_epoch(member: ConsumerMember, event: ConsumerHeartbeat) -> None:
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


def _is_assigned(owned: OwnedPartitions | None, assigned: EpochAssignment) -> bool:
    """Whether the member reports what it has, and has all of that."""
    return owned is not None and all(
        partition in assigned.get(topic, {}) for topic, parts in owned for partition in parts
    )


def _as_sets(target: Target) -> dict[Uuid, frozenset[int]]:
    return {topic: frozenset(partitions) for topic, partitions in target.items() if partitions}


def preferred_assignor(limits: ConsumerLimits, votes: Mapping[str, int]) -> str:
    """The assignor that most members prefer, or the default."""
    if not votes:
        return limits.assignors[0]
    most = max(votes.values())
    return next(name for name in java_order(list(votes)) if votes[name] == most)


# Regular expressions ------------------------------------------------------------------------------


def _check_pattern(regex: str) -> None:
    try:
        CompiledPattern(regex)
    except InvalidPattern as error:
        raise RequestRejected(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from None


class MatchedRegexes(NamedTuple):
    """The records of expressions that were matched again, and lines for the log."""

    records: list[ConsumerGroupRecord]
    notes: list[str]


def match_regexes(
    context: ChangeContext, described_topics: frozenset[str] | None
) -> MatchedRegexes:
    """Match all expressions with the topics; what they newly match raises the group epoch."""
    data, image = context.data, context.image
    matched = MatchedRegexes([], [])
    resolved, bumps = dict(data.resolved), False
    names: Iterable[str] = image.topics if described_topics is None else described_topics
    for regex in list(data.regexes):
        try:
            topics = frozenset(CompiledPattern(regex).select(names))
        except (InvalidPattern, PatternTooCostly) as error:
            matched.notes.append(f"ignores a regular expression: {error}")
            topics = frozenset()
        bumps = bumps or data.resolved.get(regex, ResolvedRegex()).topics != topics
        resolved[regex] = ResolvedRegex(topics, image.number, context.wall_ms)
        value = RegularExpression(
            topics=sorted(topics), version=image.number, timestamp=context.wall_ms
        )
        record = ConsumerGroupRecord(RecordKind.REGEX, data.group_id, regex, value)
        matched.records.append(record)
    metadata_hash = topics_hash(image, all_topics(data.names, resolved))
    if bumps or metadata_hash != data.metadata_hash:
        epoch = data.group_epoch + 1
        matched.records.append(data.epoch_record(epoch, metadata_hash))
        matched.notes.append(f"is in epoch {epoch}: its regular expressions match others")
    return matched
