"""A member of a consumer group, and how its current assignment follows its target.

Owns the member's record and its reconciliation: first the member revokes what is not in its target
any more, in its old epoch; when it no longer reports these partitions it enters the new epoch and
is given the partitions of its target that no other member has. It must never know the group or the
time. Invariant: a partition that another member has is never added. Kafka's
``ConsumerGroupMember`` and ``CurrentAssignmentBuilder``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple

from minibroker.broker.groups.consumer_records import (
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupRecord,
    ConsumerMemberMetadata,
    CurrentMemberAssignment,
    CurrentTopicPartitions,
    RecordKind,
)
from minibroker.broker.groups.events import Protocols
from minibroker_protocol.types import Uuid

LEAVE_EPOCH: Final = -1
"""The member epoch of a heartbeat with which a member leaves."""
STATIC_LEAVE_EPOCH: Final = -2
"""The member epoch of a heartbeat with which a static member leaves, to return soon."""
JOIN_EPOCH: Final = 0


class MemberState(IntEnum):
    """Where a member is on its way to its target; the value is that of the record."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """It must revoke partitions before it enters the next epoch."""
    UNRELEASED_PARTITIONS = 2
    """It is in the current epoch and waits for partitions that others have."""
    UNKNOWN = 127


EpochAssignment = Mapping[Uuid, Mapping[int, int]]
"""The epoch since which the member has a partition, by topic and partition."""

Target = Mapping[Uuid, Collection[int]]

OwnedPartitions = Collection[tuple[Uuid, tuple[int, ...]]]
"""Partitions that a member reports."""

NOTHING: Final[EpochAssignment] = {}


class ClassicSession(NamedTuple):
    """What is known of a member that uses classic requests in a consumer group."""

    session_timeout_ms: int
    protocols: Protocols


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMember:
    """A member. It never changes; a new one replaces it."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    regex: str | None = ""
    assignor: str | None = None
    classic: ClassicSession | None = None
    assigned: EpochAssignment = field(default_factory=dict)
    pending_revocation: EpochAssignment = field(default_factory=dict)

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether the member has its whole target of an assignment epoch."""
        return self.state is MemberState.STABLE and self.member_epoch == epoch

    def epoch_of(self, topic: Uuid, partition: int) -> int | None:
        """The epoch since which the member has a partition, also one that it must revoke."""
        epoch = self.assigned.get(topic, {}).get(partition)
        if epoch is None:
            epoch = self.pending_revocation.get(topic, {}).get(partition)
        return epoch

    def metadata_record(self, group_id: str) -> ConsumerGroupRecord:
        """The record of the member's subscription."""
        classic = self.classic
        value = ConsumerMemberMetadata(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topics),
            subscribed_topic_regex=self.regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.assignor,
            classic_member_metadata=None
            if classic is None
            else ClassicMemberMetadata(
                session_timeout_ms=classic.session_timeout_ms,
                supported_protocols=[
                    ClassicProtocol(name=name, metadata=metadata)
                    for name, metadata in classic.protocols
                ],
            ),
        )
        return ConsumerGroupRecord(RecordKind.MEMBER, group_id, self.member_id, value)

    def with_metadata(self, value: ConsumerMemberMetadata) -> ConsumerMember:
        """The member with the subscription of a record."""
        stored = value.classic_member_metadata
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=None
            if stored is None or not stored.supported_protocols  # By an earlier minibroker.
            else ClassicSession(
                stored.session_timeout_ms,
                tuple((each.name, each.metadata) for each in stored.supported_protocols),
            ),
        )

    def assignment_record(self, group_id: str) -> ConsumerGroupRecord:
        """The record of the member's epoch and partitions."""
        value = CurrentMemberAssignment(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned_partitions=_stored(self.assigned),
            partitions_pending_revocation=_stored(self.pending_revocation),
        )
        return ConsumerGroupRecord(RecordKind.CURRENT, group_id, self.member_id, value)

    def with_assignment(self, value: CurrentMemberAssignment) -> ConsumerMember:
        """The member with the epoch and partitions of a record."""
        known = value.state in MemberState.__members__.values()
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_loaded(value.assigned_partitions, value.member_epoch),
            pending_revocation=_loaded(value.partitions_pending_revocation, value.member_epoch),
        )


def _stored(assigned: EpochAssignment) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic, partitions=list(epochs), assignment_epochs=list(epochs.values())
        )
        for topic, epochs in assigned.items()
    ]


def _loaded(stored: Collection[CurrentTopicPartitions], member_epoch: int) -> EpochAssignment:
    """Brokers before 4.3 store no epochs of partitions: then it is the member's."""
    found = {}
    for topic in stored:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [max(member_epoch, 0)] * len(topic.partitions)
        found[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return found


def has_revoked(member: ConsumerMember, owned: OwnedPartitions | None) -> bool:
    """Whether a member reports that it no longer has what it must revoke."""
    is_asked = member.state is MemberState.UNREVOKED_PARTITIONS
    return is_asked and not _owns_any(owned, member.pending_revocation)


def _owns_any(owned: OwnedPartitions | None, partitions: EpochAssignment) -> bool:
    """Whether a member that reports these may still have one of the partitions."""
    if owned is None:
        return True
    return any(
        partition in partitions.get(topic, {}) for topic, parts in owned for partition in parts
    )


# Reconciliation -----------------------------------------------------------------------------------


class Rejoin(Exception):
    """The member's state is unknown: it must abandon its partitions and join again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """What the current assignment of a member follows from.

    ``is_free`` says whether no member has a partition, ``owned`` are the partitions that the member
    reports; None if it reports none.
    """

    target_epoch: int
    target: Target
    topics: Collection[Uuid]
    """Ids of the topics that the member subscribes to."""
    has_new_subscription: bool
    is_free: Callable[[Uuid, int], bool]
    owned: OwnedPartitions | None

    def apply(self, member: ConsumerMember) -> ConsumerMember:
        """Return the member with its next assignment. Raises Rejoin."""
        if member.state is MemberState.STABLE and member.member_epoch == self.target_epoch:
            return self._without_topics(member) if self.has_new_subscription else member
        if member.state is MemberState.UNKNOWN:
            if self.owned is None or self.owned:
                raise Rejoin
            return self._next(member, self.target_epoch)
        if member.state is MemberState.UNREVOKED_PARTITIONS and _owns_any(
            self.owned, member.pending_revocation
        ):
            return self._without_topics(member) if self.has_new_subscription else member
        return self._next(member, member.member_epoch)

    def _without_topics(self, member: ConsumerMember) -> ConsumerMember:
        """Revoke the partitions of topics that the member no longer subscribes to."""
        lost = {topic: each for topic, each in member.assigned.items() if topic not in self.topics}
        if not lost:
            return member
        kept = {topic: each for topic, each in member.assigned.items() if topic in self.topics}
        pending = {topic: dict(each) for topic, each in member.pending_revocation.items()}
        for topic, epochs in lost.items():
            pending.setdefault(topic, {}).update(epochs)
        following = replace(
            member,
            member_epoch=member.member_epoch,
            previous_member_epoch=member.member_epoch,
            assigned=kept,
        )
        if not _owns_any(self.owned, pending):
            return following
        state = MemberState.UNREVOKED_PARTITIONS
        return replace(following, state=state, pending_revocation=pending)

    def _next(self, member: ConsumerMember, epoch: int) -> ConsumerMember:
        """Revoke what is not in the target; if nothing is left to revoke, enter its epoch."""
        kept: dict[Uuid, dict[int, int]] = {}
        revoked: dict[Uuid, dict[int, int]] = {}
        added: list[tuple[Uuid, int]] = []
        waits = False
        for topic in dict.fromkeys((*self.target, *member.assigned)):
            target = self.target.get(topic, ()) if topic in self.topics else ()
            current = member.assigned.get(topic, {})
            for partition, since in current.items():
                (kept if partition in target else revoked).setdefault(topic, {})[partition] = since
            for partition in target:
                if partition in current:
                    continue
                is_own = partition in member.pending_revocation.get(topic, {})
                if is_own or self.is_free(topic, partition):
                    added.append((topic, partition))
                else:
                    waits = True
        if revoked and _owns_any(self.owned, revoked):
            return replace(
                member,
                state=MemberState.UNREVOKED_PARTITIONS,
                member_epoch=epoch,
                previous_member_epoch=member.member_epoch,
                assigned=kept,
                pending_revocation=revoked,
            )
        for topic, partition in added:
            kept.setdefault(topic, {})[partition] = self.target_epoch
        return replace(
            member,
            state=MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE,
            member_epoch=self.target_epoch,
            previous_member_epoch=member.member_epoch,
            assigned=kept,
            pending_revocation=NOTHING,
        )
