"""The state of a consumer group: members, epochs, targets and owners of partitions.

Owns what the records of a group say, and the counts that follow from it. It must never decide when
a record is written. Invariant: the state changes only by ``apply``, so a group that is loaded is
the one that was written; the owners of partitions are those of the members. Kafka's
``ConsumerGroup`` and ``ModernGroup``.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from struct import Struct, pack
from typing import Final, NamedTuple

from xxhash import xxh3_64_intdigest

from minibroker.broker.groups.consumer_member import (
    NOTHING,
    ConsumerMember,
    Target,
)
from minibroker.broker.groups.consumer_records import (
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
from minibroker.broker.groups.group import unknown_member
from minibroker.broker.metadata.image import Image, Topic
from minibroker_protocol.types import Uuid

FIRST_EPOCH: Final = 1
"""The group epoch and the assignment epoch of a new group."""

NO_TIMESTAMP: Final = 0

_HASH_VERSION: Final = b"\0"
_INT32: Final = Struct("<i")


class ConsumerGroupState(enum.Enum):
    """The state of a group. The value is its name in responses."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    """The target of the group epoch is not computed yet."""
    RECONCILING = "Reconciling"
    """Members are on their way to their targets."""
    STABLE = "Stable"
    DEAD = "Dead"


class ResolvedRegex(NamedTuple):
    """The topics that a regular expression matches, and when and in which image they were found."""

    topics: frozenset[str] = frozenset()
    version: int = 0
    timestamp: int = 0


class Owner(NamedTuple):
    """The member that has a partition, and the epoch in which it was when it was given."""

    member_id: str
    epoch: int


class ConsumerGroupData:
    """What is stored of a consumer group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp = NO_TIMESTAMP
        """When the target was computed (epoch milliseconds)."""
        self.metadata_hash = 0
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Target] = {}
        self.owners: dict[tuple[Uuid, int], Owner] = {}
        """The member that has each partition, also if it must revoke it."""
        self.names: Counter[str] = Counter()
        """How many members subscribe to a topic by its name."""
        self.regexes: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()
        self.resolved: dict[str, ResolvedRegex] = {}
        self.hashed_image: Image | None = None
        """The image in which the hash of the topics was found to be current."""
        self.matched_image: Image | None = None
        """The image in which regular expressions were matched."""
        self._static: dict[str, str] = {}

    @property
    def topics(self) -> set[str]:
        """Names of the topics that members subscribe to."""
        return all_topics(self.names, self.resolved)

    def static_member(self, instance_id: str | None) -> ConsumerMember | None:
        """The member with an instance id, or None."""
        member_id = None if instance_id is None else self._static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def static_id(self, instance_id: str) -> str | None:
        """The id of the member with an instance id, or None."""
        return self._static.get(instance_id)

    def is_free(self, topic: Uuid, partition: int) -> bool:
        """Whether no member has a partition."""
        return (topic, partition) not in self.owners

    def member(self, member_id: str, *, may_be_new: bool = False) -> ConsumerMember:
        """The member with an id, or a new one. Raises RequestRejected."""
        member = self.members.get(member_id)
        if member is not None:
            return member
        if not may_be_new:
            raise unknown_member(self.group_id, member_id)
        return ConsumerMember(member_id=member_id)

    def target_of(self, member: ConsumerMember) -> Target:
        """The target of a member; a static member that returns has that of its earlier id."""
        if member.instance_id is None:
            return self.targets.get(member.member_id, {})
        return self.targets.get(self._static.get(member.instance_id, ""), {})

    def subscribed_topics(self, member: ConsumerMember) -> frozenset[str]:
        """Names of the topics that a member subscribes to, by name and by regular expression."""
        resolved = self.resolved.get(member.regex) if member.regex else None
        return member.topics if resolved is None else member.topics | resolved.topics

    def subscribed_ids(self, member: ConsumerMember, image: Image) -> frozenset[Uuid]:
        """Ids of the topics of a subscription that exist."""
        topics = image.topics
        return frozenset(
            topics[name].topic_id for name in self.subscribed_topics(member) if name in topics
        )

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

    def current_state(self) -> ConsumerGroupState:
        """The state that follows from the epochs and the members."""
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        epoch = self.assignment_epoch
        is_stable = all(each.is_reconciled_to(epoch) for each in self.members.values())
        return ConsumerGroupState.STABLE if is_stable else ConsumerGroupState.RECONCILING

    # ------------------------------------------------------------------------- records

    def apply(self, record: ConsumerGroupRecord) -> None:
        """Change the group as a record says, which was written or loaded."""
        name, value = record.name or "", record.value
        if isinstance(value, ConsumerGroupMetadata):
            self.group_epoch = value.epoch
            self.metadata_hash = value.metadata_hash
            self.hashed_image = None
        elif isinstance(value, TargetAssignmentMetadata):
            self.assignment_epoch = value.assignment_epoch
            self.assignment_timestamp = value.assignment_timestamp
        elif isinstance(value, TargetAssignmentMember):
            self.targets[name] = {
                each.topic_id: tuple(each.partitions) for each in value.topic_partitions
            }
        elif isinstance(value, RegularExpression):
            topics = frozenset(value.topics)
            self.resolved[name] = ResolvedRegex(topics, value.version, value.timestamp)
        elif isinstance(value, ConsumerMemberMetadata):
            member = self.members.get(name) or ConsumerMember(member_id=name)
            self._set_member(member.with_metadata(value))
        elif isinstance(value, CurrentMemberAssignment):
            member = self.members.get(name) or ConsumerMember(member_id=name)
            self._set_member(member.with_assignment(value))
        elif record.kind is RecordKind.TARGET:
            self.targets.pop(name, None)
        elif record.kind is RecordKind.REGEX:
            self.resolved.pop(name, None)
        elif record.kind is RecordKind.MEMBER:
            self._forget_member(name)
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
        before = self.members.pop(member.member_id, None)
        self.members[member.member_id] = member
        if before is None or _subscription(before) != _subscription(member):
            self._uncount(before)
            self._count(member)
        self._free_partitions(before)
        owner = Owner(member.member_id, member.member_epoch)
        for partition in _partitions(member):
            self.owners[partition] = owner

    def _forget_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        self._uncount(member)
        self._free_partitions(member)

    def _count(self, member: ConsumerMember) -> None:
        """Count what a member subscribes to."""
        self.names.update(topics_of(member))
        self.regexes.update(regexes_of(member))
        self.assignors.update(assignors_of(member))
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def _uncount(self, member: ConsumerMember | None) -> None:
        if member is None:
            return
        for counter, counted in (
            (self.names, topics_of),
            (self.regexes, regexes_of),
            (self.assignors, assignors_of),
        ):
            for each in counted(member):
                counter[each] -= 1
                if counter[each] == 0:
                    del counter[each]
        instance_id = member.instance_id
        if instance_id is not None and self._static.get(instance_id) == member.member_id:
            del self._static[instance_id]

    def _free_partitions(self, member: ConsumerMember | None) -> None:
        if member is None:
            return
        for partition in _partitions(member):
            owner = self.owners.get(partition)
            if owner is not None and owner.member_id == member.member_id:
                del self.owners[partition]

    def tombstones(self) -> list[ConsumerGroupRecord]:
        """Records that delete the group."""
        members = sorted(self.members.keys() | self.targets.keys())
        kinds = (RecordKind.CURRENT, RecordKind.TARGET)
        records = [self.tombstone(kind, each) for kind in kinds for each in members]
        records.append(self.tombstone(RecordKind.TARGET_EPOCH))
        records += [self.tombstone(RecordKind.MEMBER, each) for each in members]
        records += [self.tombstone(RecordKind.REGEX, each) for each in self.resolved]
        records.append(self.tombstone(RecordKind.PARTITION_METADATA))
        records.append(self.tombstone(RecordKind.EPOCH))
        return records

    def removal(self, member_id: str) -> list[ConsumerGroupRecord]:
        """Records that delete a member."""
        kinds = (RecordKind.CURRENT, RecordKind.TARGET, RecordKind.MEMBER)
        return [self.tombstone(kind, member_id) for kind in kinds]

    def tombstone(self, kind: RecordKind, name: str | None = None) -> ConsumerGroupRecord:
        """A record that deletes another."""
        return ConsumerGroupRecord(kind, self.group_id, name)

    def epoch_record(self, epoch: int, metadata_hash: int) -> ConsumerGroupRecord:
        """The record of a group epoch."""
        value = ConsumerGroupMetadata(epoch=epoch, metadata_hash=metadata_hash)
        return ConsumerGroupRecord(RecordKind.EPOCH, self.group_id, value=value)

    def target_record(self, member_id: str, target: Target) -> ConsumerGroupRecord:
        """The record of a member's target."""
        value = TargetAssignmentMember(
            topic_partitions=[
                TargetTopicPartitions(topic_id=topic, partitions=list(partitions))
                for topic, partitions in target.items()
            ]
        )
        return ConsumerGroupRecord(RecordKind.TARGET, self.group_id, member_id, value)


def topics_hash(image: Image, names: Iterable[str]) -> int:
    """Kafka's hash of the topics that exist: their names, ids, partitions and racks (KIP-1101).

    It is stored with the group epoch, so a group that Kafka wrote keeps its epoch here, and the
    other way round.
    """
    topics = [image.topics[name] for name in sorted(names) if name in image.topics]
    if not topics:
        return 0
    racks = {each: broker.rack for each, broker in image.brokers.items() if broker.rack is not None}
    hashes = [xxh3_64_intdigest(_hashed_topic(topic, racks)) for topic in topics]
    digest = xxh3_64_intdigest(b"".join(each.to_bytes(8, "little") for each in hashes))
    return int.from_bytes(digest.to_bytes(8, "little"), "little", signed=True)


def _hashed_topic(topic: Topic, racks: Mapping[int, str]) -> bytes:
    """The bytes of which the hash of a topic is computed; integers are little-endian."""
    most, least = topic.topic_id[:8], topic.topic_id[8:]
    parts = [_HASH_VERSION, most[::-1], least[::-1], _hashed_text(topic.name)]
    count = len(topic.partitions)
    parts.append(_INT32.pack(count))
    if not racks:  # As below, in a fraction of the time.
        return b"".join((*parts, pack(f"<{count}i", *range(count))))
    for index, partition in enumerate(topic.partitions):
        parts.append(_INT32.pack(index))
        for rack in sorted(racks[each] for each in partition.replicas if each in racks):
            parts += (_INT32.pack(len(rack)), _hashed_text(rack))
    return b"".join(parts)


def _hashed_text(text: str) -> bytes:
    """UTF-16, and the number of its code units."""
    encoded = text.encode("utf-16-le")
    return encoded + _INT32.pack(len(encoded) // 2)


def _subscription(member: ConsumerMember) -> tuple[object, ...]:
    """What is counted of a member, and its instance id."""
    return member.topics, member.regex, member.assignor, member.instance_id


def topics_of(member: ConsumerMember) -> Iterable[str]:
    """The topics that a member subscribes to by name."""
    return member.topics


def regexes_of(member: ConsumerMember) -> Iterable[str]:
    """The regular expression of a member, if it has one."""
    return (member.regex,) if member.regex else ()


def assignors_of(member: ConsumerMember) -> Iterable[str]:
    """The assignor that a member prefers, if it does."""
    return (member.assignor,) if member.assignor is not None else ()


def _partitions(member: ConsumerMember) -> Iterator[tuple[Uuid, int]]:
    for assigned in (member.assigned, member.pending_revocation):
        for topic, epochs in assigned.items():
            for partition in epochs:
                yield topic, partition


def all_topics(names: Iterable[str], resolved: Mapping[str, ResolvedRegex]) -> set[str]:
    """Topics that are subscribed to by name or by a regular expression."""
    return {*names, *(topic for each in resolved.values() for topic in each.topics)}


def is_homogeneous(
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
