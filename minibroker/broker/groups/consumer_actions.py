"""Works out how a consumer group changes when a test sets its epoch, targets or a member's epoch.

Owns the records of such a change. It must never write a record or change the state. Invariant:
after the change the group is one that it could have become by itself: no partition is in the target
of two members, and no member is in a later epoch than the target. Kafka has no equivalent;
librdkafka's mock cluster sets target assignments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from minibroker.broker.groups.consumer_change import ChangeContext, replace_member
from minibroker.broker.groups.consumer_member import ConsumerMember, MemberState
from minibroker.broker.groups.consumer_records import (
    ConsumerGroupRecord,
    RecordKind,
    TargetAssignmentMetadata,
)
from minibroker.broker.groups.consumer_state import topics_hash
from minibroker.broker.groups.group import BY_TEST, PlannedAction, RequestRejected
from minibroker.broker.groups.membership import assigned_partitions
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import Uuid

_Targets: TypeAlias = dict[str, dict[Uuid, list[int]]]


def plan_rebalance(context: ChangeContext) -> PlannedAction:
    """Raise the group epoch, so that the assignor computes a target. Raises RequestRejected."""
    data = context.data
    if not data.members:
        raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
    epoch = data.group_epoch + 1
    return PlannedAction(
        [_group_epoch(context, epoch)], f"is in epoch {epoch} {BY_TEST}", len(data.members)
    )


def plan_assignment(context: ChangeContext, assignment: Mapping[str, bytes]) -> PlannedAction:
    """Set the targets of members, in a new epoch. Raises RequestRejected.

    Other members keep theirs, without the partitions that are given to these.
    """
    data = context.data
    targets = _given_targets(context, assignment)
    given = {
        (topic, partition)
        for target in targets.values()
        for topic, partitions in target.items()
        for partition in partitions
    }
    records = [data.target_record(member_id, target) for member_id, target in targets.items()]
    for member_id, target in data.targets.items():
        if member_id in targets:
            continue
        left = {
            topic: [each for each in partitions if (topic, each) not in given]
            for topic, partitions in target.items()
        }
        if any(len(left[topic]) < len(partitions) for topic, partitions in target.items()):
            kept = {topic: partitions for topic, partitions in left.items() if partitions}
            records.append(data.target_record(member_id, kept))
    epoch = data.group_epoch + 1
    records = [
        _group_epoch(context, epoch),
        *records,
        _target_epoch(context, epoch, context.wall_ms),
    ]
    note = f"has the target of epoch {epoch} {BY_TEST}"
    return PlannedAction(records, note, len(assignment))


def _given_targets(context: ChangeContext, assignment: Mapping[str, bytes]) -> _Targets:
    """The assignment by topic id, checked. Raises RequestRejected."""
    data, topics = context.data, context.image.topics
    unknown = [member_id for member_id in assignment if member_id not in data.members]
    if unknown:
        raise RequestRejected(
            ErrorCode.UNKNOWN_MEMBER_ID, f"not in the group: {', '.join(unknown)}"
        )
    targets: _Targets = {member_id: defaultdict(list) for member_id in assignment}
    receivers: dict[tuple[str, int], str] = {}
    for member_id, topic, partition in given_partitions(assignment):
        if topic not in topics or partition >= len(topics[topic].partitions):
            raise RequestRejected(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {topic}-{partition}"
            )
        if topic not in data.subscribed_topics(data.members[member_id]):
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST, f"{member_id} does not subscribe to {topic!r}"
            )
        receiver = receivers.setdefault((topic, partition), member_id)
        if receiver != member_id:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST,
                f"{topic}-{partition} is given to {receiver} and {member_id}: in a consumer group "
                "a partition has one member",
            )
        partitions = targets[member_id][topics[topic].topic_id]
        if partition not in partitions:
            partitions.append(partition)
    return targets


def given_partitions(assignment: Mapping[str, bytes]) -> Iterator[tuple[str, str, int]]:
    """Member, topic and partition of each entry of an assignment."""
    for member_id, encoded in assignment.items():
        for topic, partitions in assigned_partitions(encoded):
            for partition in partitions:
                yield member_id, topic, partition


def plan_fence(context: ChangeContext, member: ConsumerMember) -> PlannedAction:
    """Raise the epoch of a member past the one that it knows, also that of its partitions.

    The targets stay as they are. If they are of an earlier epoch than the group's, so they remain.
    """
    data = context.data
    epoch = data.group_epoch + 1
    is_computed = data.assignment_epoch == data.group_epoch
    is_on_its_way = (
        member.state is MemberState.STABLE and member.member_epoch != data.assignment_epoch
    )
    fenced = replace(
        member,
        member_epoch=epoch,
        previous_member_epoch=epoch,
        state=MemberState.UNRELEASED_PARTITIONS if is_on_its_way else member.state,
        assigned={topic: dict.fromkeys(epochs, epoch) for topic, epochs in member.assigned.items()},
    )
    records = [
        _group_epoch(context, epoch if is_computed else epoch + 1),
        _target_epoch(context, epoch, data.assignment_timestamp),
        fenced.assignment_record(data.group_id),
    ]
    return PlannedAction(records, f"fences member {member.member_id} in epoch {epoch} {BY_TEST}")


def plan_replacement(
    context: ChangeContext, member: ConsumerMember, member_id: str
) -> PlannedAction:
    """Give the place of a static member to another id, which has its target at once."""
    change = replace_member(context, member, member_id, owned=())
    change.plan_reconciliation(context.data.assignment_epoch, context.data.target_of(member))
    note = f"gives the place of static member {member.member_id} to {member_id} {BY_TEST}"
    return PlannedAction(change.records, note)


def _group_epoch(context: ChangeContext, epoch: int) -> ConsumerGroupRecord:
    metadata_hash = topics_hash(context.image, context.data.topics)
    return context.data.epoch_record(epoch, metadata_hash)


def _target_epoch(context: ChangeContext, epoch: int, timestamp: int) -> ConsumerGroupRecord:
    value = TargetAssignmentMetadata(assignment_epoch=epoch, assignment_timestamp=timestamp)
    return ConsumerGroupRecord(RecordKind.TARGET_EPOCH, context.data.group_id, value=value)
