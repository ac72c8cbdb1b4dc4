"""Conversion of groups between the classic and the consumer type, while they have members.

Owns what members, their assignments and the generation become in the other type. It must never
decide when a group is converted. Invariant: members keep their ids, partitions and sessions, and
the generation of a classic group and the epoch of a consumer group are one sequence. Kafka's
``ConsumerGroup.fromClassicGroup`` and ``ClassicGroup.fromConsumerGroup``.
"""

from __future__ import annotations

from collections.abc import Mapping

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.consumer_member import ClassicSession, ConsumerMember, Target
from minibroker.broker.groups.consumer_records import (
    ConsumerGroupMetadata,
    ConsumerGroupRecord,
    RecordKind,
    TargetAssignmentMember,
    TargetAssignmentMetadata,
    TargetTopicPartitions,
)
from minibroker.broker.groups.events import GroupRecord
from minibroker.broker.groups.membership import (
    CONSUMER_PROTOCOL_TYPE,
    ClassicMember,
    Membership,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from minibroker.broker.groups.records import GroupEntry, GroupMetadataValue
from minibroker.broker.metadata.image import Image
from minibroker_protocol.types import Uuid


class ConversionRejected(Exception):
    """A group cannot become one of the other type; the text says why."""


def consumer_group_problem(group: ClassicGroup) -> str:
    """Why a classic group with members may not become a consumer group; empty if it may."""
    limits = group.limits.consumer
    reason = ""
    if not limits.may_upgrade:
        reason = "online upgrade is disabled"
    elif not group.is_consumer_group:
        reason = "the group does not use the consumer embedded protocol"
    elif group.members_count > limits.members_max:
        reason = "the group size exceeds the consumer group maximum size"
    if not reason:
        return ""
    return f"Cannot upgrade classic group {group.group_id} to consumer group because {reason}."


def consumer_group_records(group: ClassicGroup, image: Image) -> list[GroupRecord]:
    """Records that delete a classic group, and those of the consumer group that it becomes.

    Raises ConversionRejected.
    """
    members = [_consumer_member(group, member, image) for member in group.membership]
    group_id, generation = group.group_id, group.generation
    targets = [
        ConsumerGroupRecord(
            RecordKind.TARGET,
            group_id,
            member.member_id,
            TargetAssignmentMember(
                topic_partitions=[
                    TargetTopicPartitions(topic_id=topic, partitions=list(epochs))
                    for topic, epochs in member.assigned.items()
                ]
            ),
        )
        for member in members
    ]
    epoch = ConsumerGroupMetadata(epoch=generation)
    target_epoch = TargetAssignmentMetadata(assignment_epoch=generation)
    return [
        GroupEntry(group_id, None),
        *(member.metadata_record(group_id) for member in members),
        ConsumerGroupRecord(RecordKind.EPOCH, group_id, value=epoch),
        *targets,
        ConsumerGroupRecord(RecordKind.TARGET_EPOCH, group_id, value=target_epoch),
        *(member.assignment_record(group_id) for member in members),
    ]


def _consumer_member(group: ClassicGroup, member: ClassicMember, image: Image) -> ConsumerMember:
    text = f"Cannot upgrade classic group {group.group_id} to consumer group because "
    assigned: dict[Uuid, dict[int, int]] = {}
    if member.assignment:
        assignment = decode_assignment(member.assignment)
        if assignment is None:
            raise ConversionRejected(f"{text}the embedded consumer protocol is malformed.")
        if assignment.user_data:
            raise ConversionRejected(
                f"{text}an unsupported custom assignor is in use. Please refer to the "
                "documentation or switch to a default assignor before re-attempting the upgrade."
            )
        for each in assignment.assigned_partitions:
            topic = image.topics.get(each.topic)
            if topic is not None:
                assigned[topic.topic_id] = dict.fromkeys(each.partitions, group.generation)
    subscription = decode_subscription(
        member.protocols[0][1]
        if group.protocol_name is None
        else member.metadata(group.protocol_name)
    )
    if subscription is None:
        raise ConversionRejected(f"{text}the embedded consumer protocol is malformed.")
    return ConsumerMember(
        member_id=member.member_id,
        member_epoch=group.generation,
        previous_member_epoch=group.generation,
        instance_id=member.group_instance_id,
        rack_id=subscription.rack_id or None,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=frozenset(subscription.topics),
        classic=ClassicSession(member.session_timeout_ms, member.protocols),
        assigned=assigned,
    )


def classic_membership(
    members: Mapping[str, tuple[ConsumerMember, Target]], image: Image
) -> Membership:
    """Members of a classic group, made from those of a consumer group and their targets."""
    membership = Membership()
    for member_id, (member, target) in members.items():
        session = member.classic
        assert session is not None
        names = image.topic_names
        assigned = {names[topic]: tuple(at) for topic, at in target.items() if topic in names}
        version = int.from_bytes(session.protocols[0][1][:2], "big", signed=True)
        membership.add(
            ClassicMember(
                member_id=member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=session.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                protocols=session.protocols,
                assignment=encode_assignment(assigned, version),
            )
        )
    return membership


def classic_group_record(
    group_id: str, membership: Membership, epoch: int, wall_ms: int
) -> GroupEntry:
    """The record of a stable classic group, whose generation is the group epoch."""
    protocol = membership.select_protocol()
    metadata = GroupMetadataValue(
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        generation=epoch,
        protocol=protocol,
        leader=membership.leader,
        current_state_timestamp=wall_ms,
        members=[member.stored(protocol, member.assignment) for member in membership],
    )
    return GroupEntry(group_id, metadata)
