"""The state of a share group: its members, epochs and targets, and the partitions that it has.

Owns what the records of a group say. It must never decide when a record is written. Invariant: the
state changes only by ``apply``, so a group that is loaded is the one that was written. Kafka's
``ShareGroup``, ``ShareGroupMember`` and ``ShareGroupStatePartitionMetadataInfo``.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from minibroker.broker.groups.consumer_member import Target
from minibroker.broker.groups.share_records import (
    ShareCurrentAssignment,
    SharedTopic,
    SharedTopicPartitions,
    ShareGroupMetadata,
    ShareGroupRecord,
    ShareMemberMetadata,
    SharePartitionsMetadata,
    ShareRecordKind,
    ShareTargetMember,
    ShareTargetMetadata,
    ShareTopicPartitions,
)
from minibroker.broker.metadata.image import Image
from minibroker_protocol.types import Uuid

FIRST_EPOCH: Final = 1
"""The group epoch and the assignment epoch before the first member."""


class ShareGroupState(enum.Enum):
    """The state of a group. The value is its name in responses."""

    EMPTY = "Empty"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareMember:
    """A member. It never changes; a new one replaces it."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = -1
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: frozenset[str] = frozenset()
    assigned: Target = field(default_factory=dict)

    def metadata_record(self, group_id: str) -> ShareGroupRecord:
        """The record of the member's subscription."""
        value = ShareMemberMetadata(
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topics),
        )
        return ShareGroupRecord(ShareRecordKind.MEMBER, group_id, self.member_id, value)

    def assignment_record(self, group_id: str) -> ShareGroupRecord:
        """The record of the member's epoch and partitions."""
        value = ShareCurrentAssignment(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=0,
            assigned_partitions=_listed(self.assigned),
        )
        return ShareGroupRecord(ShareRecordKind.CURRENT, group_id, self.member_id, value)


class SharedPartitions(NamedTuple):
    """Partitions by topic id: with a state, being given one, and losing it."""

    initialized: Mapping[Uuid, frozenset[int]] = {}
    initializing: Mapping[Uuid, frozenset[int]] = {}
    deleting: frozenset[Uuid] = frozenset()


class PartitionsOfImage(NamedTuple):
    """What the records of a group say about partitions of subscribed topics in an image."""

    image: Image
    unshared: Mapping[Uuid, frozenset[int]]
    """Existing partitions that have no state yet."""
    is_unassigned: bool
    """Whether partitions have a state and no member, or the reverse.

    A target that a test has set may leave partitions out.
    """


class ShareGroupData:
    """What is stored of a share group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp = 0
        """When the target was computed (epoch milliseconds); 0 if no assignor computed it."""
        self.metadata_hash = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Target] = {}
        self.shared = SharedPartitions()
        self.hashed_image: Image | None = None
        """The image in which the hash of the topics was found to be current."""
        self.topics: Counter[str] = Counter()
        """How many members subscribe to each topic."""
        self._shares: PartitionsOfImage | None = None
        """What `shares` has returned, until a record changes it."""

    def topics_with(self, member: ShareMember) -> Counter[str]:
        """How many members subscribe to each topic, if this one replaces the one of its id."""
        before = self.members.get(member.member_id)
        if before is not None and before.topics == member.topics:
            return self.topics
        return self._topics_after(before, member)

    def topics_without(self, member_ids: Collection[str]) -> Counter[str]:
        """How many members subscribe to each topic, without some of them."""
        topics = Counter(self.topics)
        for member_id in member_ids:
            if member_id in self.members:
                topics.subtract(self.members[member_id].topics)
        return +topics

    def _topics_after(self, before: ShareMember | None, after: ShareMember | None) -> Counter[str]:
        """How many members subscribe to each topic when one is replaced."""
        topics = Counter(self.topics)
        topics.subtract(() if before is None else before.topics)
        topics.update(() if after is None else after.topics)
        return +topics

    def shares(self, image: Image) -> PartitionsOfImage:
        """Compare the partitions of subscribed topics with those that have a state or a member."""
        if self._shares is None or self._shares.image is not image:
            self._shares = PartitionsOfImage(
                image, self._unshared(image), self._is_unassigned(image)
            )
        return self._shares

    def _unshared(self, image: Image) -> dict[Uuid, frozenset[int]]:
        found = {}
        for name in sorted(self.topics):
            topic = image.topics.get(name)
            if topic is not None:
                known = self.shared.initialized.get(topic.topic_id, frozenset())
                missing = frozenset(range(len(topic.partitions))) - known
                if missing:
                    found[topic.topic_id] = missing
        return found

    def _is_unassigned(self, image: Image) -> bool:
        if not self.assignment_timestamp:
            return False
        assigned: dict[Uuid, set[int]] = {}
        for target in self.targets.values():
            for topic, partitions in target.items():
                assigned.setdefault(topic, set()).update(partitions)
        return any(
            assigned.get(topic, set()) != set(partitions)
            for topic, partitions in self.shared.initialized.items()
            if image.topic_names.get(topic) in self.topics
        )

    def current_state(self) -> ShareGroupState:
        """The state that follows from the members."""
        return ShareGroupState.STABLE if self.members else ShareGroupState.EMPTY

    # ------------------------------------------------------------------------- records

    def apply(self, record: ShareGroupRecord) -> None:
        """Change the group as a record says, which was written or loaded."""
        name, value = record.name or "", record.value
        if record.kind not in (ShareRecordKind.CURRENT, ShareRecordKind.MEMBER):
            self._shares = None
        if isinstance(value, ShareGroupMetadata):
            self.group_epoch = value.epoch
            self.metadata_hash = value.metadata_hash
            self.hashed_image = None
        elif isinstance(value, ShareTargetMetadata):
            self.assignment_epoch = value.assignment_epoch
            self.assignment_timestamp = value.assignment_timestamp
        elif isinstance(value, ShareTargetMember):
            self.targets[name] = _target(value.topic_partitions)
        elif isinstance(value, ShareMemberMetadata):
            member = replace(
                self._member(name),
                rack_id=value.rack_id,
                client_id=value.client_id,
                client_host=value.client_host,
                topics=frozenset(value.subscribed_topic_names),
            )
            self._note_topics(self.members.get(name), member)
            self.members[name] = member
        elif isinstance(value, ShareCurrentAssignment):
            self.members[name] = replace(
                self._member(name),
                member_epoch=value.member_epoch,
                previous_member_epoch=value.previous_member_epoch,
                assigned=_target(value.assigned_partitions),
            )
        elif isinstance(value, SharePartitionsMetadata):
            self.shared = SharedPartitions(
                _partitions(value.initialized_topics),
                _partitions(value.initializing_topics),
                frozenset(each.topic_id for each in value.deleting_topics),
            )
        elif record.kind is ShareRecordKind.TARGET:
            self.targets.pop(name, None)
        elif record.kind is ShareRecordKind.MEMBER:
            self._note_topics(self.members.pop(name, None), None)
        elif record.kind is ShareRecordKind.PARTITIONS:
            self.shared = SharedPartitions()

    def _note_topics(self, before: ShareMember | None, after: ShareMember | None) -> None:
        topics = self._topics_after(before, after)
        if topics.keys() != self.topics.keys():
            self._shares = None
        self.topics = topics

    def _member(self, member_id: str) -> ShareMember:
        return self.members.get(member_id) or ShareMember(member_id=member_id)

    def tombstones(self) -> list[ShareGroupRecord]:
        """Records that delete the group."""
        members = sorted(self.members.keys() | self.targets.keys())
        kinds = (ShareRecordKind.CURRENT, ShareRecordKind.TARGET)
        records = [self.tombstone(kind, each) for kind in kinds for each in members]
        records.append(self.tombstone(ShareRecordKind.TARGET_EPOCH))
        records += [self.tombstone(ShareRecordKind.MEMBER, each) for each in members]
        records.append(self.tombstone(ShareRecordKind.PARTITIONS))
        records.append(self.tombstone(ShareRecordKind.EPOCH))
        return records

    def removal(self, member_id: str) -> list[ShareGroupRecord]:
        """Records that delete a member."""
        kinds = (ShareRecordKind.CURRENT, ShareRecordKind.TARGET, ShareRecordKind.MEMBER)
        return [self.tombstone(kind, member_id) for kind in kinds]

    def tombstone(self, kind: ShareRecordKind, name: str | None = None) -> ShareGroupRecord:
        """A record that deletes another."""
        return ShareGroupRecord(kind, self.group_id, name)

    def epoch_record(self, epoch: int, metadata_hash: int) -> ShareGroupRecord:
        """The record of a group epoch."""
        value = ShareGroupMetadata(epoch=epoch, metadata_hash=metadata_hash)
        return ShareGroupRecord(ShareRecordKind.EPOCH, self.group_id, value=value)

    def target_epoch_record(self, epoch: int, wall_ms: int) -> ShareGroupRecord:
        """The record of an assignment epoch."""
        value = ShareTargetMetadata(assignment_epoch=epoch, assignment_timestamp=wall_ms)
        return ShareGroupRecord(ShareRecordKind.TARGET_EPOCH, self.group_id, value=value)

    def target_record(self, member_id: str, target: Target) -> ShareGroupRecord:
        """The record of a member's target."""
        value = ShareTargetMember(topic_partitions=_listed(target))
        return ShareGroupRecord(ShareRecordKind.TARGET, self.group_id, member_id, value)

    def shared_record(self, shared: SharedPartitions, image: Image) -> ShareGroupRecord:
        """The record of the partitions that the group has."""
        value = SharePartitionsMetadata(
            initializing_topics=_named(shared.initializing, image),
            initialized_topics=_named(shared.initialized, image),
            deleting_topics=[
                SharedTopic(topic_id=each, topic_name=_name(each, image))
                for each in sorted(shared.deleting)
            ],
        )
        return ShareGroupRecord(ShareRecordKind.PARTITIONS, self.group_id, value=value)


def _listed(target: Target) -> list[ShareTopicPartitions]:
    return [
        ShareTopicPartitions(topic_id=topic, partitions=list(partitions))
        for topic, partitions in target.items()
    ]


def _target(listed: Iterable[ShareTopicPartitions]) -> Target:
    return {each.topic_id: tuple(each.partitions) for each in listed}


def _partitions(listed: Iterable[SharedTopicPartitions]) -> dict[Uuid, frozenset[int]]:
    return {each.topic_id: frozenset(each.partitions) for each in listed}


def _named(partitions: Mapping[Uuid, frozenset[int]], image: Image) -> list[SharedTopicPartitions]:
    return [
        SharedTopicPartitions(
            topic_id=topic, topic_name=_name(topic, image), partitions=sorted(each)
        )
        for topic, each in partitions.items()
        if each
    ]


def _name(topic: Uuid, image: Image) -> str:
    return image.topic_names.get(topic, "<UNKNOWN>")
