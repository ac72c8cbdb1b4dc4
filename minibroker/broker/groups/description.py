"""Descriptions of groups, as plain values that are sent between processes.

Owns the description types and builds them from a group; it must never change a group. Metadata,
assignments and the chosen protocol are included only while the group is stable, as in Kafka's
``ClassicGroup.asListedGroup`` and ``describe``. Invariant: descriptions are immutable, picklable
and bounded by the named limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.events import Task, TaskOffset, Tasks, UserEndpoint
from minibroker.broker.groups.group import Group
from minibroker.broker.groups.membership import assigned_partitions
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.groups.share_group import ShareGroup
from minibroker.broker.groups.states import GroupState
from minibroker.broker.groups.streams_assignor import STICKY
from minibroker.broker.groups.streams_group import StreamsGroup
from minibroker.broker.groups.streams_member import NO_OFFSETS, StreamsMember
from minibroker.broker.groups.streams_topology import (
    ConfiguredTopology,
    InternalTopic,
    StreamsTopology,
    Subtopology,
)
from minibroker_protocol.messages.streams_group_describe import TopologyDescription
from minibroker_protocol.types import Uuid


class GroupOverview(NamedTuple):
    """One entry in a list of groups. ``state`` is Kafka's name of the state."""

    group_id: str
    protocol_type: str
    state: str
    generation: int
    members: int
    offsets: int
    group_type: str


class MemberDescription(NamedTuple):
    """A member; ``metadata`` and ``assignment`` are empty unless the group is stable.

    ``partitions`` is the assignment by topic, if it was requested and can be decoded.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    metadata: bytes
    assignment: bytes
    partitions: tuple[tuple[str, tuple[int, ...]], ...]


class GroupDescription(NamedTuple):
    """A group with its members and its offsets by topic and partition.

    ``protocol`` is empty unless the group is stable.
    """

    group_id: str
    state: str
    state_since_ms: int
    protocol_type: str
    protocol: str
    generation: int
    leader: str | None
    members: tuple[MemberDescription, ...]
    offsets: tuple[tuple[str, int, CommittedOffset], ...]


class TopicPartitions(NamedTuple):
    """Partitions of one topic."""

    topic_id: Uuid
    topic: str
    partitions: tuple[int, ...]


class AwaitedPartition(NamedTuple):
    """A partition of a member's target that another member has yet to release."""

    topic: str
    partition: int
    member_id: str


class ConsumerMemberDescription(NamedTuple):
    """A member of a consumer group; what it has includes what it must revoke."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    previous_member_epoch: int
    state: str
    is_classic: bool
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    regex: str | None
    assigned: tuple[TopicPartitions, ...]
    pending_revocation: tuple[TopicPartitions, ...]
    target: tuple[TopicPartitions, ...]
    awaited: tuple[AwaitedPartition, ...]
    is_held: bool = False
    """Whether it has revoked what it must, and a test holds that."""


class ConsumerGroupDescription(NamedTuple):
    """A consumer group with its members and its offsets by topic and partition."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
    offsets: tuple[tuple[str, int, CommittedOffset], ...]


class ShareMemberDescription(NamedTuple):
    """A member of a share group."""

    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assigned: tuple[TopicPartitions, ...]
    target: tuple[TopicPartitions, ...]


class ShareGroupDescription(NamedTuple):
    """A share group with its members, and the partitions that have a state for it."""

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    members: tuple[ShareMemberDescription, ...]
    shared: tuple[TopicPartitions, ...]


class AwaitedTask(NamedTuple):
    """An active task of a member's target that a process has yet to release."""

    task: Task
    process_id: str


class StreamsMemberDescription(NamedTuple):
    """A member of a streams group; what it has includes what it must give up."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    state: str
    client_id: str
    client_host: str
    topology_epoch: int
    process_id: str
    endpoint: UserEndpoint | None
    client_tags: Mapping[str, str]
    task_offsets: tuple[TaskOffset, ...]
    task_end_offsets: tuple[TaskOffset, ...]
    assigned: Tasks
    pending_revocation: Tasks
    target: Tasks
    awaited: tuple[AwaitedTask, ...]
    is_held: bool
    """Whether it has given up what it must, and a test holds that."""


class SubtopologyDescription(NamedTuple):
    """Processors that are connected without a topic between them, and their topics."""

    subtopology_id: str
    source_topics: tuple[str, ...]
    repartition_sinks: tuple[str, ...]
    changelogs: tuple[InternalTopic, ...]
    repartition_sources: tuple[InternalTopic, ...]


class StreamsGroupDescription(NamedTuple):
    """A streams group with its topology, its members and its offsets by topic and partition.

    ``problem`` says what is wrong with the topics of the topology; it is empty if nothing is.
    """

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    assignor: str
    topology_epoch: int
    subtopologies: tuple[SubtopologyDescription, ...]
    problem: str
    topology: TopologyDescription | None
    """What a member has sent for people to read."""
    members: tuple[StreamsMemberDescription, ...]
    offsets: tuple[tuple[str, int, CommittedOffset], ...]


def _named(
    group: ConsumerGroup | ShareGroup, assigned: Mapping[Uuid, Collection[int]]
) -> tuple[TopicPartitions, ...]:
    """Partitions with the names of their topics; topics that were deleted are left out."""
    names = group.image.topic_names
    return tuple(
        TopicPartitions(topic, names[topic], tuple(sorted(partitions)))
        for topic, partitions in assigned.items()
        if topic in names and partitions
    )


def describe_share_group(group: ShareGroup) -> ShareGroupDescription:
    """Describe a share group and its members; topics that were deleted are left out."""
    data = group.data
    return ShareGroupDescription(
        group_id=group.group_id,
        state=group.state_name,
        group_epoch=data.group_epoch,
        assignment_epoch=data.assignment_epoch,
        members=tuple(
            ShareMemberDescription(
                member_id=member.member_id,
                rack_id=member.rack_id,
                member_epoch=member.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                topics=tuple(sorted(member.topics)),
                assigned=_named(group, member.assigned),
                target=_named(group, data.targets.get(member.member_id, {})),
            )
            for member in data.members.values()
        ),
        shared=_named(group, data.shared.initialized),
    )


def describe_streams_group(group: StreamsGroup) -> StreamsGroupDescription:
    """Describe a streams group; internal topics have their partitions if all topics are there."""
    data, topology = group.data, group.data.topology
    configured = None if group.checked is None else group.checked.configured
    problem = None if configured is None else configured.problem
    return StreamsGroupDescription(
        group_id=group.group_id,
        state=group.state_name,
        group_epoch=data.group_epoch,
        assignment_epoch=data.assignment_epoch,
        assignor=STICKY,
        topology_epoch=-1 if topology is None else topology.epoch,
        subtopologies=() if topology is None else describe_topology(topology, configured),
        problem="" if problem is None else problem.detail,
        topology=group.topology_description,
        members=tuple(_streams_member(group, member) for member in data.members.values()),
        offsets=tuple(group.offsets),
    )


def describe_topology(
    topology: StreamsTopology, configured: ConfiguredTopology | None
) -> tuple[SubtopologyDescription, ...]:
    """The subtopologies in order of their ids, with their topics."""
    subtopologies: Iterable[Subtopology] = topology.subtopologies
    if configured is not None and configured.problem is None:
        subtopologies = configured.subtopologies.values()
    return tuple(
        SubtopologyDescription(
            each.subtopology_id,
            tuple(sorted(each.source_topics)),
            tuple(sorted(each.repartition_sinks)),
            tuple(sorted(each.changelogs, key=lambda topic: topic.name)),
            tuple(sorted(each.repartition_sources, key=lambda topic: topic.name)),
        )
        for each in subtopologies
    )


def _streams_member(group: StreamsGroup, member: StreamsMember) -> StreamsMemberDescription:
    reported = group.offsets_of_tasks.get(member.member_id, NO_OFFSETS)
    return StreamsMemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        state=member.state.name,
        client_id=member.client_id,
        client_host=member.client_host,
        topology_epoch=member.topology_epoch,
        process_id=member.process_id,
        endpoint=member.endpoint,
        client_tags=member.client_tags,
        task_offsets=reported.task_offsets,
        task_end_offsets=reported.task_end_offsets,
        assigned=member.assigned.tasks,
        pending_revocation=member.pending_revocation.tasks,
        target=group.data.targets.get(member.member_id, Tasks()),
        awaited=tuple(AwaitedTask(*each) for each in group.awaited_tasks(member)),
        is_held=member.member_id in group.held_revocations,
    )


def describe_consumer_group(group: ConsumerGroup) -> ConsumerGroupDescription:
    """Describe a consumer group and its members; topics that were deleted are left out."""
    names = group.image.topic_names

    return ConsumerGroupDescription(
        group_id=group.group_id,
        state=group.state_name,
        group_epoch=group.data.group_epoch,
        assignment_epoch=group.data.assignment_epoch,
        assignor=group.assignor,
        members=tuple(
            ConsumerMemberDescription(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.member_epoch,
                previous_member_epoch=member.previous_member_epoch,
                state=member.state.name,
                is_classic=member.classic is not None,
                client_id=member.client_id,
                client_host=member.client_host,
                topics=tuple(sorted(member.topics)),
                regex=member.regex,
                assigned=_named(group, member.assigned),
                pending_revocation=_named(group, member.pending_revocation),
                target=_named(group, group.data.targets.get(member.member_id, {})),
                awaited=tuple(
                    AwaitedPartition(names[topic], partition, owner.member_id)
                    for topic, partition, owner in group.data.missing_partitions(member)
                    if topic in names
                ),
                is_held=member.member_id in group.held_revocations,
            )
            for member in group.data.members.values()
        ),
        offsets=tuple(group.offsets),
    )


def overview(group: Group) -> GroupOverview:
    """Summarize a group for a list."""
    return GroupOverview(
        group_id=group.group_id,
        protocol_type=group.protocol_type_name,
        state=group.state_name,
        generation=group.epoch,
        members=group.members_count,
        offsets=len(group.offsets),
        group_type=group.type,
    )


def describe(group: ClassicGroup, *, full: bool) -> GroupDescription:
    """Describe a classic group and its members; ``full`` adds offsets and decoded assignments."""
    name = group.protocol_name if group.state is GroupState.STABLE else None
    is_decoded = full and name is not None and group.is_consumer_group
    return GroupDescription(
        group_id=group.group_id,
        state=group.state.value,
        state_since_ms=group.state_since_ms,
        protocol_type=group.protocol_type or "",
        protocol=name or "",
        generation=group.generation,
        leader=group.membership.leader,
        members=tuple(
            MemberDescription(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                session_timeout_ms=member.session_timeout_ms,
                rebalance_timeout_ms=member.rebalance_timeout_ms,
                metadata=b"" if name is None else member.metadata(name),
                assignment=b"" if name is None else member.assignment,
                partitions=assigned_partitions(member.assignment) if is_decoded else (),
            )
            for member in group.membership
        ),
        offsets=tuple(group.offsets) if full else (),
    )
