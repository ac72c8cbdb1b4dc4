"""Works out how a share group changes when a test sets its epoch, targets or a member's epoch.

Owns the records of such a change. It must never write a record or change the state. Invariant:
after the change no member is in a later epoch than the target, and only partitions with a state are
in targets. A target that no assignor computed has the timestamp 0. Kafka has no equivalent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from minibroker.broker.groups.consumer_actions import given_partitions
from minibroker.broker.groups.consumer_state import topics_hash
from minibroker.broker.groups.group import BY_TEST, PlannedAction, RequestRejected
from minibroker.broker.groups.share_records import ShareGroupRecord
from minibroker.broker.groups.share_state import ShareGroupData, ShareMember
from minibroker.broker.metadata.image import Image
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import Uuid

_Targets: TypeAlias = dict[str, dict[Uuid, list[int]]]


def plan_share_rebalance(data: ShareGroupData, image: Image) -> PlannedAction:
    """Raise the group epoch, so that the assignor computes a target. Raises RequestRejected."""
    if not data.members:
        raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
    epoch = data.group_epoch + 1
    note = f"is in epoch {epoch} {BY_TEST}"
    return PlannedAction([_group_epoch(data, image, epoch)], note, len(data.members))


def plan_share_assignment(
    data: ShareGroupData, image: Image, assignment: Mapping[str, bytes]
) -> PlannedAction:
    """Set the targets of members, in a new epoch; others keep theirs. Raises RequestRejected."""
    targets = _given_targets(data, image, assignment)
    epoch = data.group_epoch + 1
    records = [
        _group_epoch(data, image, epoch),
        *(
            data.target_record(
                member_id, {topic: tuple(partitions) for topic, partitions in target.items()}
            )
            for member_id, target in targets.items()
        ),
        data.target_epoch_record(epoch, 0),
    ]
    note = f"has the target of epoch {epoch} {BY_TEST}"
    return PlannedAction(records, note, len(assignment))


def _given_targets(data: ShareGroupData, image: Image, assignment: Mapping[str, bytes]) -> _Targets:
    """The assignment by topic id, checked. Raises RequestRejected."""
    unknown = [member_id for member_id in assignment if member_id not in data.members]
    if unknown:
        raise RequestRejected(
            ErrorCode.UNKNOWN_MEMBER_ID, f"not in the group: {', '.join(unknown)}"
        )
    targets: _Targets = {member_id: defaultdict(list) for member_id in assignment}
    for member_id, name, partition in given_partitions(assignment):
        topic = image.topics.get(name)
        if topic is None or partition >= len(topic.partitions):
            raise RequestRejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {name}-{partition}"
            )
        if name not in data.members[member_id].topics:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST, f"{member_id} does not subscribe to {name!r}"
            )
        if partition not in data.shared.initialized.get(topic.topic_id, ()):
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST, f"{name}-{partition} has no state in the group yet"
            )
        partitions = targets[member_id][topic.topic_id]
        if partition not in partitions:
            partitions.append(partition)
    return targets


def plan_share_fence(data: ShareGroupData, image: Image, member_id: str) -> PlannedAction:
    """Raise the epoch of a member past the one that it knows. Raises RequestRejected.

    It has its target at once. The targets stay as they are; if they are of an earlier epoch than
    the group's, so they remain.
    """
    member = data.members.get(member_id)
    if member is None:
        raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no member {member_id!r}")
    epoch = data.group_epoch + 1
    is_current = data.assignment_epoch == data.group_epoch
    fenced = replace(
        member,
        member_epoch=epoch,
        previous_member_epoch=epoch,
        assigned=_subscribed_target(data, image, member),
    )
    records = [
        _group_epoch(data, image, epoch if is_current else epoch + 1),
        data.target_epoch_record(epoch, data.assignment_timestamp),
        fenced.assignment_record(data.group_id),
    ]
    return PlannedAction(records, f"fences member {member_id} in epoch {epoch} {BY_TEST}")


def _subscribed_target(
    data: ShareGroupData, image: Image, member: ShareMember
) -> dict[Uuid, tuple[int, ...]]:
    target = data.targets.get(member.member_id, {})
    return {
        topic: tuple(partitions)
        for topic, partitions in target.items()
        if image.topic_names.get(topic) in member.topics
    }


def _group_epoch(data: ShareGroupData, image: Image, epoch: int) -> ShareGroupRecord:
    return data.epoch_record(epoch, topics_hash(image, data.topics))
