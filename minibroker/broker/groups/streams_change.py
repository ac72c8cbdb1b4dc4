"""Works out how a streams group changes when one of its members does, or when a test changes it.

Owns the steps from a heartbeat to records: which member it is, whether the topology and its topics
are as they must be, whether the group epoch is raised, whether a target is due, and what the member
may have next. It must never write a record or change the state. Invariant: a rejected request
leaves no records. Kafka's ``GroupMetadataManager.streamsGroupHeartbeat``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from minibroker.broker.groups.consumer_actions import given_partitions
from minibroker.broker.groups.consumer_member import JOIN_EPOCH, STATIC_LEAVE_EPOCH, Rejoin
from minibroker.broker.groups.consumer_state import topics_hash
from minibroker.broker.groups.events import (
    AssignmentPlanned,
    MemberFenced,
    RebalanceRequested,
    StreamsHeartbeat,
    Task,
    TaskOffset,
    Tasks,
)
from minibroker.broker.groups.group import (
    BY_TEST,
    GroupTimes,
    PlannedAction,
    RequestRejected,
    StreamsConfig,
    check_instance,
)
from minibroker.broker.groups.streams_assignor import MemberTasks, assign_tasks
from minibroker.broker.groups.streams_member import (
    NO_OFFSETS,
    HeldTasks,
    ReportedOffsets,
    StreamsMember,
    StreamsMemberState,
    TaskReconciliation,
)
from minibroker.broker.groups.streams_records import NO_TOPOLOGY_EPOCH, StreamsGroupRecord
from minibroker.broker.groups.streams_state import StreamsGroupData
from minibroker.broker.groups.streams_topology import (
    ConfiguredTopology,
    InvalidTopology,
    StreamsStatus,
    StreamsTopology,
    configure,
)
from minibroker.broker.metadata.image import Image
from minibroker_protocol.errors import ErrorCode

STALE_TOPOLOGY: Final = 0
SHUTDOWN_APPLICATION: Final = 4
ASSIGNMENT_DELAYED: Final = 5
MISSING_CLIENT_TAGS: Final = 6


class TopologyCheck(NamedTuple):
    """A topology with the topics that exist, which are the same object while none has changed."""

    topology: StreamsTopology
    topics: Mapping[str, Any]
    configured: ConfiguredTopology
    metadata_hash: int

    def is_of(self, topology: StreamsTopology | None, image: Image) -> bool:
        """Whether neither the topology nor a topic has changed since then."""
        return self.topology is topology and self.topics is image.topics


class StreamsContext(NamedTuple):
    """What a change of a group depends on, besides the request."""

    data: StreamsGroupData
    image: Image
    members_max: int
    times: GroupTimes
    config: StreamsConfig
    wall_ms: int
    reported: Mapping[str, ReportedOffsets]
    """The offsets of tasks that members have reported."""

    def compute_targets(
        self, members: Mapping[str, StreamsMember], epoch: int, configured: ConfiguredTopology
    ) -> tuple[dict[str, Tasks], list[StreamsGroupRecord], str]:
        """The targets of members in an epoch, their records, and a line for the log."""
        data = self.data
        found: dict[str, Tasks] = {}
        if configured.problem is None:
            specs = {
                member_id: MemberTasks(
                    member.process_id,
                    member.assigned.active,
                    member.assigned.standby,
                    {
                        each.task: each.offset
                        for each in self.reported.get(member_id, NO_OFFSETS).task_offsets
                    },
                )
                for member_id, member in members.items()
            }
            assigned = assign_tasks(
                specs, configured.task_counts, configured.stateful, self.config.standby_replicas
            )
            found = {member_id: Tasks(*target) for member_id, target in assigned.items()}
        targets = {member_id: found.get(member_id, Tasks()) for member_id in members}
        records = [
            data.target_record(member_id, target)
            for member_id, target in targets.items()
            if data.targets.get(member_id) != target
        ]
        records.append(data.target_epoch_record(epoch, self.wall_ms))
        return targets, records, f"has the target of epoch {epoch}"

    def plan_action(
        self, event: RebalanceRequested | AssignmentPlanned | MemberFenced
    ) -> PlannedAction:
        """What a test requests. Raises RequestRejected."""
        if isinstance(event, RebalanceRequested):
            return self._plan_rebalance()
        if isinstance(event, AssignmentPlanned):
            return self._plan_assignment(event.assignment)
        return self._plan_fence(event.member_id)

    def _plan_rebalance(self) -> PlannedAction:
        """Raise the group epoch, so that the assignor computes a target."""
        data = self.data
        if not data.members:
            raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, "the group has no members")
        epoch = data.group_epoch + 1
        note = f"is in epoch {epoch} {BY_TEST}"
        return PlannedAction([data.epoch_record(epoch)], note, len(data.members))

    def _plan_assignment(self, assignment: Mapping[str, bytes]) -> PlannedAction:
        """Set the active tasks of members, in a new epoch; the "topics" are subtopologies.

        Other members keep theirs, without the tasks that are given to these.
        """
        data = self.data
        given = _given_tasks(data, assignment)
        taken = frozenset(task for tasks in given.values() for task in tasks)
        records = []
        for member_id in data.members:
            before = data.targets.get(member_id, Tasks())
            active = given.get(member_id, before.active - taken)
            copies = (before.standby - active, before.warmup - active)
            after = Tasks(active, *copies)
            if after != before:
                records.append(data.target_record(member_id, after))
        epoch = data.group_epoch + 1
        records = [
            data.epoch_record(epoch),
            *records,
            data.target_epoch_record(epoch, self.wall_ms),
        ]
        note = f"has the target of epoch {epoch} {BY_TEST}"
        return PlannedAction(records, note, len(assignment))

    def _plan_fence(self, member_id: str) -> PlannedAction:
        """Raise the epoch of a member past the one that it knows, also that of its tasks."""
        data = self.data
        member = data.members.get(member_id)
        if member is None:
            raise RequestRejected(ErrorCode.UNKNOWN_MEMBER_ID, f"there is no member {member_id!r}")
        epoch = data.group_epoch + 1
        is_computed = data.assignment_epoch == data.group_epoch
        is_on_its_way = (
            member.state is StreamsMemberState.STABLE
            and member.member_epoch != data.assignment_epoch
        )
        fenced = replace(
            member,
            member_epoch=epoch,
            previous_member_epoch=epoch,
            state=StreamsMemberState.UNRELEASED_TASKS if is_on_its_way else member.state,
            assigned=member.assigned._replace(active=dict.fromkeys(member.assigned.active, epoch)),
        )
        records = [
            data.epoch_record(epoch if is_computed else epoch + 1),
            data.target_epoch_record(epoch, data.assignment_timestamp),
            fenced.assignment_record(data.group_id),
        ]
        return PlannedAction(records, f"fences member {member_id} in epoch {epoch} {BY_TEST}")


class StreamsChange:
    """A change by a heartbeat. The steps are called in the order in which they stand here.

    ``before`` is the member as it was; a new one has reported nothing. ``notes`` are for the log.
    """

    def __init__(self, context: StreamsContext, event: StreamsHeartbeat) -> None:
        """Find or make the member. Raises RequestRejected."""
        self.context = context
        self.data, self.image = context.data, context.image
        self.config, self.times = context.config, context.times
        self.event = event
        self.records: list[StreamsGroupRecord] = []
        self.notes: list[str] = []
        self.statuses: list[StreamsStatus] = []
        self.replaced: str | None = None
        """The former id of a static member that returns with another one."""
        self.before = self.after = self._find_member()
        self.owned = event.owned
        """The tasks that the member has; None if it has not reported them."""
        self.group_epoch = self.data.group_epoch
        self.target_epoch = self.data.assignment_epoch
        self.target = Tasks()
        self.topology: StreamsTopology
        self.checked: TopologyCheck
        self._is_bumped = False

    def _find_member(self) -> StreamsMember:
        data, event = self.data, self.event
        joins = event.member_epoch == JOIN_EPOCH
        existing = data.static_member(event.instance_id)
        if joins and existing is None and event.member_id not in data.members:
            self._check_size()
        if event.instance_id is not None and joins:
            return self._static_member(event.instance_id, existing)
        if event.instance_id is not None:
            member = check_instance(existing, event.member_id, event.instance_id)
        elif joins and event.member_id not in data.members:
            member = self._new_member()
        else:
            member = data.member(event.member_id)
        _check_epoch(member, event)
        return member

    def _check_size(self) -> None:
        limit = self.context.members_max
        if len(self.data.members) >= limit:
            raise RequestRejected(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"The streams group has reached its maximum capacity of {limit} members.",
            )

    def _new_member(self) -> StreamsMember:
        self.notes.append(f"is joined by member {self.event.member_id}")
        return StreamsMember(member_id=self.event.member_id)

    def _static_member(self, instance_id: str, existing: StreamsMember | None) -> StreamsMember:
        """The static member that joins; if it was away, it takes its own former place."""
        data, member_id = self.data, self.event.member_id
        if existing is None:
            return data.members.get(member_id) or self._new_member()
        if existing.member_epoch != STATIC_LEAVE_EPOCH:
            raise RequestRejected(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} cannot join the group "
                f"because the instance id is owned by {existing.member_id} member.",
            )
        member = replace(existing, member_id=member_id, member_epoch=0, previous_member_epoch=0)
        target = data.targets.get(existing.member_id, Tasks())
        self.records += [
            *data.removal(existing.member_id),
            member.metadata_record(data.group_id),
            data.target_record(member_id, target),
            member.assignment_record(data.group_id),
        ]
        if existing.member_id != member_id:
            self.replaced = existing.member_id
        self.notes.append(f"replaces static member {existing.member_id} by {member_id}")
        return member

    def update_member(self) -> None:
        """Note what the heartbeat states of the member."""
        before, event = self.before, self.event
        self.after = after = updated(before, event)
        if after == before:
            return
        self.records.append(after.metadata_record(self.data.group_id))
        self._is_bumped = event.instance_id is None or _is_relevant(before, after)

    def update_topology(self) -> None:
        """Take the topology of a first member, which others must have. Raises RequestRejected."""
        known, received = self.data.topology, self.event.topology
        if known is None:
            if received is None:
                raise RequestRejected(ErrorCode.UNKNOWN_SERVER_ERROR)
            self.topology = received
            self.records.append(self.data.topology_record(received))
            self.notes.append(f"has the topology of epoch {received.epoch}")
            return
        self.topology = known
        if received is not None and received.epoch >= known.epoch and received != known:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet."
            )
        if self.after.topology_epoch < known.epoch:
            self.statuses.append(
                StreamsStatus(
                    STALE_TOPOLOGY,
                    f"The member's topology epoch {self.after.topology_epoch} is behind the "
                    f"group's topology epoch {known.epoch}.",
                )
            )

    def check_topics(self, last: TopologyCheck | None) -> None:
        """Compare the topology with the topics that exist. Raises RequestRejected."""
        topology, topics = self.topology, self.image.topics
        if last is not None and last.is_of(topology, self.image):
            self.checked = last
        else:
            counts = {
                name: len(topics[name].partitions)
                for name in topology.required_topics
                if name in topics
            }
            try:
                configured = configure(topology, counts)
            except InvalidTopology as invalid:
                raise RequestRejected(invalid.error, invalid.text) from None
            metadata_hash = topics_hash(self.image, topology.required_topics)
            self.checked = TopologyCheck(topology, topics, configured, metadata_hash)
        self._check_owned()
        for offsets in (self.event.task_offsets, self.event.task_end_offsets):
            _check_offsets(offsets or ())

    def _check_owned(self) -> None:
        """Check that the tasks that the member reports exist."""
        configured = self.checked.configured
        if configured.problem is not None or self.event.owned is None:
            return
        for subtopology, partition in sorted(set().union(*self.event.owned)):
            count = configured.task_counts.get(subtopology)
            if count is None:
                text = f"Subtopology {subtopology} does not exist in the topology."
                raise RequestRejected(ErrorCode.INVALID_REQUEST, text)
            if not 0 <= partition < count:
                raise RequestRejected(
                    ErrorCode.INVALID_REQUEST,
                    f"Task {partition} for subtopology {subtopology} is invalid. Number of tasks "
                    f"for this subtopology: {count}",
                )

    def plan_group_epoch(self) -> None:
        """Raise the group epoch if the member, a topic, the topology or a config has changed."""
        data, checked = self.data, self.checked
        is_valid = checked.configured.problem is None
        validated = self.topology.epoch if is_valid else NO_TOPOLOGY_EPOCH
        configs = self.config.assignment_configs
        current = data.metadata_hash, data.validated_topology_epoch, data.assignment_configs
        if not self._is_bumped and current == (checked.metadata_hash, validated, configs):
            return
        self.group_epoch += 1
        self.records.append(
            data.epoch_record(self.group_epoch, checked.metadata_hash, validated, configs)
        )
        self.notes.append(f"is in epoch {self.group_epoch}: member {self.after.member_id} changes")

    def plan_target(self, *, is_delayed: bool) -> None:
        """Compute the target of the group epoch if it is due."""
        data, context = self.data, self.context
        if is_delayed:
            text = "Assignment delayed due to the configured initial rebalance delay."
            self.statuses.append(StreamsStatus(ASSIGNMENT_DELAYED, text))
            return
        former = self.replaced or self.after.member_id
        self.target = data.targets.get(former, Tasks())
        if data.assignment_epoch >= self.group_epoch:
            return
        interval_ms = self.times.assignment_interval_ms
        timestamp = data.assignment_timestamp
        if timestamp and context.wall_ms < timestamp + interval_ms:
            text = "Assignment delayed due to the configured assignment interval."
            self.statuses.append(StreamsStatus(ASSIGNMENT_DELAYED, text))
            return
        members = {key: each for key, each in data.members.items() if key != self.replaced}
        members[self.after.member_id] = self.after
        targets, records, note = context.compute_targets(
            members, self.group_epoch, self.checked.configured
        )
        # The target of a static member that returns is among them already.
        self.records += [record for record in records if record not in self.records]
        self.notes.append(note)
        self.target_epoch, self.target = self.group_epoch, targets[self.after.member_id]

    def plan_reconciliation(self) -> None:
        """Let the member follow its target. Raises RequestRejected."""
        try:
            after = TaskReconciliation(
                target_epoch=self.target_epoch,
                target=self.target,
                processes=self.data.processes,
                owned=self.owned,
            ).apply(self.after)
        except Rejoin:
            raise RequestRejected(
                ErrorCode.FENCED_MEMBER_EPOCH,
                "The streams group member is in a unknown state. The member must abandon all its "
                "tasks and rejoin.",
            ) from None
        if after != self.after:
            self.after = after
            self.records.append(after.assignment_record(self.data.group_id))


def _given_tasks(
    data: StreamsGroupData, assignment: Mapping[str, bytes]
) -> dict[str, frozenset[Task]]:
    """The tasks of each member in an assignment, checked. Raises RequestRejected."""
    unknown = [member_id for member_id in assignment if member_id not in data.members]
    if unknown:
        raise RequestRejected(
            ErrorCode.UNKNOWN_MEMBER_ID, f"not in the group: {', '.join(unknown)}"
        )
    known = {task for target in data.targets.values() for task in target.active}
    receivers: dict[Task, str] = {}
    for member_id, subtopology, partition in given_partitions(assignment):
        task = subtopology, partition
        if task not in known:
            text = f"no member has the active task {subtopology}_{partition} in its target"
            raise RequestRejected(ErrorCode.INVALID_REQUEST, text)
        receiver = receivers.setdefault(task, member_id)
        if receiver != member_id:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST,
                f"the active task {subtopology}_{partition} is given to {receiver} and {member_id}",
            )
    return {
        member_id: frozenset(task for task, each in receivers.items() if each == member_id)
        for member_id in assignment
    }


def _check_epoch(member: StreamsMember, event: StreamsHeartbeat) -> None:
    """An older epoch is accepted only if the member has lost the answer that raised it."""
    received, known = event.member_epoch, member.member_epoch
    if received in (JOIN_EPOCH, known):
        return
    if received == member.previous_member_epoch and _is_assigned(event.owned, member.assigned):
        return
    size = "greater" if received > known else "smaller"
    raise RequestRejected(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {size} member epoch ({received}) than the one known by "
        f"the group coordinator ({known}). The member must abandon all its partitions and rejoin.",
    )


def _is_assigned(owned: Tasks | None, assigned: HeldTasks) -> bool:
    """Whether the member reports what it has, and has all of that."""
    return owned is not None and all(
        reported <= set(given) for reported, given in zip(owned, assigned, strict=True)
    )


def _check_offsets(offsets: tuple[TaskOffset, ...]) -> None:
    """Check that a member reports one offset of each task. Raises RequestRejected."""
    for (subtopology, partition), count in Counter(each.task for each in offsets).items():
        if count > 1:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST,
                f"Task offsets contain a duplicate entry for subtopology {subtopology} and "
                f"partition {partition}.",
            )


def updated(member: StreamsMember, event: StreamsHeartbeat) -> StreamsMember:
    """The member with what its heartbeat states; one that joins without an endpoint has none."""
    topology = event.topology
    stated: dict[str, Any] = {
        "instance_id": event.instance_id,
        "rack_id": event.rack_id,
        "rebalance_timeout_ms": None
        if event.rebalance_timeout_ms == -1
        else event.rebalance_timeout_ms,
        "topology_epoch": None if topology is None else topology.epoch,
        "client_id": event.client_id,
        "client_host": event.client_host,
        "process_id": event.process_id,
        "endpoint": event.endpoint,
        "client_tags": event.client_tags,
    }
    changed = {
        name: value
        for name, value in stated.items()
        if value is not None and value != getattr(member, name)
    }
    if event.member_epoch == JOIN_EPOCH and event.endpoint is None:
        changed["endpoint"] = None
    return replace(member, **changed) if changed else member


def _is_relevant(before: StreamsMember, after: StreamsMember) -> bool:
    """Whether a static member has changed in what its tasks follow from."""
    former = before.topology_epoch, before.rack_id, before.client_tags, before.process_id
    return former != (after.topology_epoch, after.rack_id, after.client_tags, after.process_id)
