"""The state of a streams group: its topology, members, epochs and targets, and who has which task.

Owns what the records of a group say, and the processes of tasks, which follow from it. It must
never decide when a record is written. Invariant: the state changes only by ``apply``, so a group
that is loaded is the one that was written. Kafka's ``StreamsGroup`` and ``TasksTuple`` (4.4).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from minibroker.broker.groups.events import Task, Tasks
from minibroker.broker.groups.group import unknown_member
from minibroker.broker.groups.streams_member import (
    NOTHING_HELD,
    StreamsMember,
    TaskProcesses,
    by_subtopology,
)
from minibroker.broker.groups.streams_records import (
    NO_TOPOLOGY_EPOCH,
    LastAssignmentConfig,
    StreamsCopartitionGroup,
    StreamsCurrentAssignment,
    StreamsGroupMetadata,
    StreamsGroupRecord,
    StreamsGroupTopology,
    StreamsMemberMetadata,
    StreamsRecordKind,
    StreamsSubtopology,
    StreamsTargetMember,
    StreamsTargetMetadata,
    StreamsTargetTasks,
    StreamsTopicConfig,
    StreamsTopicInfo,
)
from minibroker.broker.groups.streams_topology import (
    CopartitionGroup,
    InternalTopic,
    StreamsTopology,
    Subtopology,
)
from minibroker_protocol.messages import streams_group_heartbeat as heartbeat

FIRST_EPOCH: Final = 1
"""The group epoch and the assignment epoch before the first member."""


class StreamsGroupState(enum.Enum):
    """The state of a group. The value is its name in responses."""

    EMPTY = "Empty"
    NOT_READY = "NotReady"
    """Topics of the topology are missing, or have the wrong number of partitions."""
    ASSIGNING = "Assigning"
    """The target of the group epoch is not computed yet."""
    RECONCILING = "Reconciling"
    """Members are on their way to their targets."""
    STABLE = "Stable"
    DEAD = "Dead"


class StreamsGroupData:
    """What is stored of a streams group."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.group_epoch = FIRST_EPOCH
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_timestamp = 0
        """When the target was computed (epoch milliseconds); 0 if there is none."""
        self.metadata_hash = 0
        self.validated_topology_epoch = NO_TOPOLOGY_EPOCH
        """The epoch of the topology whose topics are as it needs them."""
        self.assignment_configs: Mapping[str, str] = {}
        """The configs in the group epoch that targets follow from."""
        self.stored_description_epoch = NO_TOPOLOGY_EPOCH
        self.failed_description_epoch = NO_TOPOLOGY_EPOCH
        self.topology: StreamsTopology | None = None
        self.members: dict[str, StreamsMember] = {}
        self.targets: dict[str, Tasks] = {}
        self._static: dict[str, str] = {}
        self._active: dict[Task, str] = {}
        self._standby: dict[Task, set[str]] = {}
        self._warmup: dict[Task, set[str]] = {}
        none: frozenset[str] = frozenset()
        self.processes = TaskProcesses(
            self._active.get,
            lambda task: self._standby.get(task, none),
            lambda task: self._warmup.get(task, none),
        )
        """The processes whose members have a task, also one that they must give up."""

    def static_member(self, instance_id: str | None) -> StreamsMember | None:
        """The member with an instance id, or None."""
        member_id = None if instance_id is None else self._static.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def member(self, member_id: str) -> StreamsMember:
        """The member with an id. Raises RequestRejected."""
        member = self.members.get(member_id)
        if member is None:
            raise unknown_member(self.group_id, member_id)
        return member

    def current_state(self) -> StreamsGroupState:
        """The state that follows from the topology, the epochs and the members."""
        if not self.members:
            return StreamsGroupState.EMPTY
        if self.topology is None or self.topology.epoch != self.validated_topology_epoch:
            return StreamsGroupState.NOT_READY
        if self.group_epoch > self.assignment_epoch:
            return StreamsGroupState.ASSIGNING
        epoch = self.assignment_epoch
        is_stable = all(each.is_reconciled_to(epoch) for each in self.members.values())
        return StreamsGroupState.STABLE if is_stable else StreamsGroupState.RECONCILING

    # ------------------------------------------------------------------------- records

    def apply(self, record: StreamsGroupRecord) -> None:
        """Change the group as a record says, which was written or loaded."""
        name, value = record.name or "", record.value
        if isinstance(value, StreamsGroupMetadata):
            self.group_epoch = value.epoch
            self.metadata_hash = value.metadata_hash
            self.validated_topology_epoch = value.validated_topology_epoch
            configs = value.last_assignment_configs or ()
            self.assignment_configs = {each.key: each.value for each in configs}
            self.stored_description_epoch = value.stored_description_topology_epoch
            self.failed_description_epoch = value.failed_description_topology_epoch
        elif isinstance(value, StreamsTargetMetadata):
            self.assignment_epoch = value.assignment_epoch
            self.assignment_timestamp = value.assignment_timestamp
        elif isinstance(value, StreamsTargetMember):
            self.targets[name] = Tasks(
                _tasks(value.active_tasks), _tasks(value.standby_tasks), _tasks(value.warmup_tasks)
            )
        elif isinstance(value, StreamsMemberMetadata):
            self._set_member(self._member(name).with_metadata(value))
        elif isinstance(value, StreamsCurrentAssignment):
            self._set_member(self._member(name).with_assignment(value))
        elif isinstance(value, StreamsGroupTopology):
            self.topology = topology_of(value)
        elif record.kind is StreamsRecordKind.TARGET:
            self.targets.pop(name, None)
        elif record.kind is StreamsRecordKind.MEMBER:
            self._forget_member(name)
        elif record.kind is StreamsRecordKind.TOPOLOGY:
            self.topology = None
        elif record.kind is StreamsRecordKind.CURRENT and name in self.members:
            self._set_member(
                replace(
                    self.members[name],
                    member_epoch=-1,
                    previous_member_epoch=-1,
                    assigned=NOTHING_HELD,
                    pending_revocation=NOTHING_HELD,
                )
            )

    def _member(self, member_id: str) -> StreamsMember:
        return self.members.get(member_id) or StreamsMember(member_id=member_id)

    def _set_member(self, member: StreamsMember) -> None:
        self._forget_member(member.member_id)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id
        process = member.process_id
        for held in (member.assigned, member.pending_revocation):
            self._active.update(dict.fromkeys(held.active, process))
            for tasks, processes in ((held.standby, self._standby), (held.warmup, self._warmup)):
                for task in tasks:
                    processes.setdefault(task, set()).add(process)

    def _forget_member(self, member_id: str) -> None:
        member = self.members.pop(member_id, None)
        if member is None:
            return
        if member.instance_id is not None and self._static.get(member.instance_id) == member_id:
            del self._static[member.instance_id]
        process = member.process_id
        for held in (member.assigned, member.pending_revocation):
            for task in held.active:
                if self._active.get(task) == process:
                    del self._active[task]
            for tasks, processes in ((held.standby, self._standby), (held.warmup, self._warmup)):
                for task in tasks:
                    _discard(processes, task, process)

    def tombstones(self) -> list[StreamsGroupRecord]:
        """Records that delete the group."""
        members = sorted(self.members.keys() | self.targets.keys())
        kinds = (StreamsRecordKind.CURRENT, StreamsRecordKind.TARGET)
        records = [self.tombstone(kind, each) for kind in kinds for each in members]
        records.append(self.tombstone(StreamsRecordKind.TARGET_EPOCH))
        records += [self.tombstone(StreamsRecordKind.MEMBER, each) for each in members]
        records.append(self.tombstone(StreamsRecordKind.EPOCH))
        records.append(self.tombstone(StreamsRecordKind.TOPOLOGY))
        return records

    def removal(self, member_id: str) -> list[StreamsGroupRecord]:
        """Records that delete a member."""
        kinds = (StreamsRecordKind.CURRENT, StreamsRecordKind.TARGET, StreamsRecordKind.MEMBER)
        return [self.tombstone(kind, member_id) for kind in kinds]

    def tombstone(self, kind: StreamsRecordKind, name: str | None = None) -> StreamsGroupRecord:
        """A record that deletes another."""
        return StreamsGroupRecord(kind, self.group_id, name)

    def epoch_record(
        self,
        epoch: int,
        metadata_hash: int | None = None,
        validated_topology_epoch: int | None = None,
        configs: Mapping[str, str] | None = None,
        described_epoch: int | None = None,
    ) -> StreamsGroupRecord:
        """The record of a group epoch; what is None stays as it is."""
        stored = self.stored_description_epoch
        validated = validated_topology_epoch
        configs = self.assignment_configs if configs is None else configs
        value = StreamsGroupMetadata(
            epoch=epoch,
            metadata_hash=self.metadata_hash if metadata_hash is None else metadata_hash,
            validated_topology_epoch=self.validated_topology_epoch
            if validated is None
            else validated,
            last_assignment_configs=[
                LastAssignmentConfig(key=key, value=configs[key]) for key in sorted(configs)
            ],
            stored_description_topology_epoch=stored
            if described_epoch is None
            else described_epoch,
            failed_description_topology_epoch=self.failed_description_epoch,
        )
        return StreamsGroupRecord(StreamsRecordKind.EPOCH, self.group_id, value=value)

    def target_epoch_record(self, epoch: int, wall_ms: int) -> StreamsGroupRecord:
        """The record of an assignment epoch."""
        value = StreamsTargetMetadata(assignment_epoch=epoch, assignment_timestamp=wall_ms)
        return StreamsGroupRecord(StreamsRecordKind.TARGET_EPOCH, self.group_id, value=value)

    def target_record(self, member_id: str, target: Tasks) -> StreamsGroupRecord:
        """The record of a member's target."""
        active, standby, warmup = map(_listed, target)
        value = StreamsTargetMember(active_tasks=active, standby_tasks=standby, warmup_tasks=warmup)
        return StreamsGroupRecord(StreamsRecordKind.TARGET, self.group_id, member_id, value)

    def topology_record(self, topology: StreamsTopology) -> StreamsGroupRecord:
        """The record of the topology."""
        value = stored_topology(topology)
        return StreamsGroupRecord(StreamsRecordKind.TOPOLOGY, self.group_id, value=value)


def _discard(processes: dict[Task, set[str]], task: Task, process: str) -> None:
    """Remove a process from those that have a task."""
    of_task = processes.get(task, set())
    of_task.discard(process)
    if not of_task:
        processes.pop(task, None)


def _listed(tasks: Iterable[Task]) -> list[StreamsTargetTasks]:
    return [
        StreamsTargetTasks(subtopology_id=subtopology, partitions=partitions)
        for subtopology, partitions in by_subtopology(tasks).items()
    ]


def _tasks(listed: Iterable[StreamsTargetTasks]) -> frozenset[Task]:
    return frozenset((each.subtopology_id, index) for each in listed for index in each.partitions)


def topology_of(value: StreamsGroupTopology | heartbeat.Topology) -> StreamsTopology:
    """The topology of a record or of a heartbeat, which have the same fields."""
    subtopologies: list[StreamsSubtopology | heartbeat.Subtopology] = [*value.subtopologies]
    return StreamsTopology(
        value.epoch,
        tuple(
            Subtopology(
                each.subtopology_id,
                tuple(each.source_topics),
                tuple(each.source_topic_regex),
                tuple(each.repartition_sink_topics),
                _internal_topics(each.repartition_source_topics),
                _internal_topics(each.state_changelog_topics),
                tuple(
                    CopartitionGroup(
                        tuple(group.source_topics),
                        tuple(group.source_topic_regex),
                        tuple(group.repartition_source_topics),
                    )
                    for group in each.copartition_groups
                ),
            )
            for each in sorted(subtopologies, key=lambda each: each.subtopology_id)
        ),
    )


def _internal_topics(
    listed: Iterable[StreamsTopicInfo | heartbeat.TopicInfo],
) -> tuple[InternalTopic, ...]:
    return tuple(
        InternalTopic(
            each.name,
            each.partitions,
            each.replication_factor,
            {config.key: config.value for config in each.topic_configs},
        )
        for each in listed
    )


def stored_topology(topology: StreamsTopology) -> StreamsGroupTopology:
    """The value of the record of a topology."""
    return StreamsGroupTopology(
        epoch=topology.epoch,
        subtopologies=[
            StreamsSubtopology(
                subtopology_id=each.subtopology_id,
                source_topics=list(each.source_topics),
                source_topic_regex=list(each.source_topic_regex),
                state_changelog_topics=_stored_topics(each.changelogs),
                repartition_sink_topics=list(each.repartition_sinks),
                repartition_source_topics=_stored_topics(each.repartition_sources),
                copartition_groups=[
                    StreamsCopartitionGroup(
                        source_topics=list(group.source_topics),
                        source_topic_regex=list(group.source_topic_regex),
                        repartition_source_topics=list(group.repartition_sources),
                    )
                    for group in each.copartition_groups
                ],
            )
            for each in topology.subtopologies
        ],
    )


def _stored_topics(topics: Iterable[InternalTopic]) -> list[StreamsTopicInfo]:
    return [
        StreamsTopicInfo(
            name=each.name,
            partitions=each.partitions,
            replication_factor=each.replication_factor,
            topic_configs=[
                StreamsTopicConfig(key=key, value=value) for key, value in each.config.items()
            ],
        )
        for each in topics
    ]
