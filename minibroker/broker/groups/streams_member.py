"""A member of a streams group, and how its tasks follow its target.

A member is a thread of an instance of the application; threads of one instance have the same
*process id*. It has *active* tasks, which process records, and *standby* and *warm-up* tasks, which
keep a copy of the state. Owns the member's record and its reconciliation: first the member gives up
what is not in its target any more, in its old epoch; when it no longer reports these tasks it
enters the new epoch and is given the tasks of its target that are free. It must never know the
group or the time. Invariants: an active task that another member has is never given; a process
never has a task twice. Kafka's ``StreamsGroupMember`` and ``CurrentAssignmentBuilder`` (4.4).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final, NamedTuple

from minibroker.broker.groups.consumer_member import Rejoin
from minibroker.broker.groups.events import Task, TaskOffset, Tasks, UserEndpoint
from minibroker.broker.groups.streams_records import (
    StreamsClientTag,
    StreamsCurrentAssignment,
    StreamsCurrentTasks,
    StreamsEndpoint,
    StreamsGroupRecord,
    StreamsMemberMetadata,
    StreamsRecordKind,
)


class HeldTasks(NamedTuple):
    """Tasks that a member has; active ones with the epoch in which they were given."""

    active: Mapping[Task, int] = {}
    standby: frozenset[Task] = frozenset()
    warmup: frozenset[Task] = frozenset()

    def __bool__(self) -> bool:
        return any(self[:])

    @property
    def tasks(self) -> Tasks:
        """The tasks without epochs."""
        return Tasks(frozenset(self.active), self.standby, self.warmup)


NOTHING_HELD: Final = HeldTasks()


class ReportedOffsets(NamedTuple):
    """The offsets of tasks that a member has reported; they are not stored."""

    task_offsets: tuple[TaskOffset, ...] = ()
    task_end_offsets: tuple[TaskOffset, ...] = ()


NO_OFFSETS: Final = ReportedOffsets()


class StreamsMemberState(IntEnum):
    """Where a member is on its way to its target; the value is that of the record."""

    STABLE = 1
    UNREVOKED_TASKS = 2
    """It must give up tasks before it enters the next epoch."""
    UNRELEASED_TASKS = 3
    """It is in the current epoch and waits for tasks that others have."""
    UNKNOWN = 127


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMember:
    """A member. It never changes; a new one replaces it."""

    member_id: str
    member_epoch: int = 0
    previous_member_epoch: int = 0
    state: StreamsMemberState = StreamsMemberState.STABLE
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    client_id: str = ""
    client_host: str = ""
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: UserEndpoint | None = None
    client_tags: Mapping[str, str] = field(default_factory=dict)
    assigned: HeldTasks = NOTHING_HELD
    pending_revocation: HeldTasks = NOTHING_HELD

    def is_reconciled_to(self, epoch: int) -> bool:
        """Whether the member has its whole target of an assignment epoch."""
        return self.state is StreamsMemberState.STABLE and self.member_epoch == epoch

    def epoch_of(self, task: Task) -> int | None:
        """The epoch in which an active task was given, also one that it must give up."""
        epoch = self.assigned.active.get(task)
        return self.pending_revocation.active.get(task) if epoch is None else epoch

    def metadata_record(self, group_id: str) -> StreamsGroupRecord:
        """The record of what the member has reported of itself."""
        endpoint = self.endpoint
        value = StreamsMemberMetadata(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topology_epoch=self.topology_epoch,
            process_id=self.process_id,
            user_endpoint=None
            if endpoint is None
            else StreamsEndpoint(host=endpoint.host, port=endpoint.port),
            client_tags=[
                StreamsClientTag(key=key, value=value)
                for key, value in sorted(self.client_tags.items())
            ],
        )
        return StreamsGroupRecord(StreamsRecordKind.MEMBER, group_id, self.member_id, value)

    def with_metadata(self, value: StreamsMemberMetadata) -> StreamsMember:
        """The member with what a record says of it."""
        endpoint = value.user_endpoint
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            endpoint=None if endpoint is None else UserEndpoint(endpoint.host, endpoint.port),
            client_tags={each.key: each.value for each in value.client_tags},
        )

    def assignment_record(self, group_id: str) -> StreamsGroupRecord:
        """The record of the member's epoch and tasks."""
        assigned, pending = self.assigned, self.pending_revocation
        value = StreamsCurrentAssignment(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            active_tasks=_stored_active(assigned.active),
            standby_tasks=_stored(assigned.standby),
            warmup_tasks=_stored(assigned.warmup),
            active_tasks_pending_revocation=_stored_active(pending.active),
            standby_tasks_pending_revocation=_stored(pending.standby),
            warmup_tasks_pending_revocation=_stored(pending.warmup),
        )
        return StreamsGroupRecord(StreamsRecordKind.CURRENT, group_id, self.member_id, value)

    def with_assignment(self, value: StreamsCurrentAssignment) -> StreamsMember:
        """The member with the epoch and tasks of a record."""
        known = value.state in StreamsMemberState.__members__.values()
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=StreamsMemberState(value.state) if known else StreamsMemberState.UNKNOWN,
            assigned=HeldTasks(
                _loaded_active(value.active_tasks),
                _loaded(value.standby_tasks),
                _loaded(value.warmup_tasks),
            ),
            pending_revocation=HeldTasks(
                _loaded_active(value.active_tasks_pending_revocation),
                _loaded(value.standby_tasks_pending_revocation),
                _loaded(value.warmup_tasks_pending_revocation),
            ),
        )


def by_subtopology(tasks: Iterable[Task]) -> dict[str, list[int]]:
    """The partitions of tasks by subtopology, both in order."""
    found: dict[str, list[int]] = {}
    for subtopology, partition in sorted(tasks):
        found.setdefault(subtopology, []).append(partition)
    return found


def _stored(tasks: Iterable[Task]) -> list[StreamsCurrentTasks]:
    return [
        StreamsCurrentTasks(subtopology_id=subtopology, partitions=partitions)
        for subtopology, partitions in by_subtopology(tasks).items()
    ]


def _stored_active(tasks: Mapping[Task, int]) -> list[StreamsCurrentTasks]:
    return [
        StreamsCurrentTasks(
            subtopology_id=subtopology,
            partitions=partitions,
            assignment_epochs=[tasks[subtopology, each] for each in partitions],
        )
        for subtopology, partitions in by_subtopology(tasks).items()
    ]


def _loaded(stored: Iterable[StreamsCurrentTasks]) -> frozenset[Task]:
    return frozenset((each.subtopology_id, index) for each in stored for index in each.partitions)


def _loaded_active(stored: Iterable[StreamsCurrentTasks]) -> dict[Task, int]:
    """Brokers before 4.3 store no epochs of tasks: then all commits are accepted."""
    found: dict[Task, int] = {}
    for each in stored:
        epochs = each.assignment_epochs
        if epochs is None or len(epochs) != len(each.partitions):
            epochs = [0] * len(each.partitions)
        for partition, epoch in zip(each.partitions, epochs, strict=True):
            found[each.subtopology_id, partition] = epoch
    return found


def has_revoked(member: StreamsMember, owned: Tasks | None) -> bool:
    """Whether a member reports that it no longer has what it must give up."""
    is_asked = member.state is StreamsMemberState.UNREVOKED_TASKS
    return is_asked and not _has_any(owned, member.pending_revocation)


def _has_any(owned: Tasks | None, tasks: HeldTasks) -> bool:
    """Whether a member that reports these may still have one of the tasks."""
    if owned is None:
        return True
    return any(not reported.isdisjoint(given) for reported, given in zip(owned, tasks, strict=True))


# Reconciliation -----------------------------------------------------------------------------------


class TaskProcesses(NamedTuple):
    """The processes whose members have a task, by the role of the task."""

    active: Callable[[Task], str | None]
    standby: Callable[[Task], Collection[str]]
    warmup: Callable[[Task], Collection[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReconciliation:
    """What the tasks of a member follow from; ``owned`` is None if it reports none."""

    target_epoch: int
    target: Tasks
    processes: TaskProcesses
    owned: Tasks | None

    def apply(self, member: StreamsMember) -> StreamsMember:
        """Return the member with its next tasks. Raises Rejoin."""
        state, epoch = member.state, member.member_epoch
        if member.is_reconciled_to(self.target_epoch):
            return member
        if state is StreamsMemberState.UNKNOWN:
            if self.owned is None or any(self.owned):
                raise Rejoin
            return self._next(member, self.target_epoch)
        if state is StreamsMemberState.UNREVOKED_TASKS:
            if not has_revoked(member, self.owned):
                return member
            return self._next(member, epoch + 1)
        return self._next(member, epoch)

    def _next(self, member: StreamsMember, epoch: int) -> StreamsMember:
        """Give up what is not in the target; if nothing is left to give up, enter its epoch."""
        had, target = member.assigned, self.target
        missing = Tasks(
            target.active.difference(had.active),
            target.standby - had.standby,
            target.warmup - had.warmup,
        )
        given = self._free(member, missing)
        waits = given != missing
        kept = HeldTasks(
            {task: since for task, since in had.active.items() if task in target.active},
            had.standby & target.standby,
            had.warmup & target.warmup,
        )
        # A copy of a task that is kept in another role is not given up.
        moved = _moved_roles(had, given)
        kept = kept._replace(
            standby=kept.standby | moved.standby, warmup=kept.warmup | moved.warmup
        )
        given = given._replace(
            standby=given.standby - moved.standby, warmup=given.warmup - moved.warmup
        )
        lost = HeldTasks(
            {task: since for task, since in had.active.items() if task not in target.active},
            had.standby - target.standby - moved.warmup - target.active,
            had.warmup - target.warmup - moved.standby - target.active,
        )
        revokes = bool(lost) and _has_any(self.owned, lost)
        # A copy that becomes active is kept until the active task is given.
        promoted = frozenset() if revokes else given.active
        kept = kept._replace(
            standby=kept.standby | ((had.standby & target.active) - promoted),
            warmup=kept.warmup | ((had.warmup & target.active) - promoted),
        )
        if revokes:
            return replace(
                member,
                state=StreamsMemberState.UNREVOKED_TASKS,
                member_epoch=epoch,
                previous_member_epoch=member.member_epoch,
                assigned=kept,
                pending_revocation=lost,
            )
        active = {**kept.active, **dict.fromkeys(given.active, self.target_epoch)}
        state = StreamsMemberState.UNRELEASED_TASKS if waits else StreamsMemberState.STABLE
        return replace(
            member,
            state=state,
            member_epoch=self.target_epoch,
            previous_member_epoch=member.member_epoch,
            assigned=HeldTasks(active, kept.standby | given.standby, kept.warmup | given.warmup),
            pending_revocation=NOTHING_HELD,
        )

    def _free(self, member: StreamsMember, missing: Tasks) -> Tasks:
        """The tasks that the member can have now."""
        process, had, processes = member.process_id, member.assigned, self.processes

        def runs(task: Task) -> bool:
            return processes.active(task) == process

        def has_standby(task: Task) -> bool:
            """Whether another member of the process has it."""
            return process in processes.standby(task) and task not in had.standby

        def has_warmup(task: Task) -> bool:
            return process in processes.warmup(task) and task not in had.warmup

        return Tasks(
            frozenset(
                task
                for task in missing.active
                if processes.active(task) is None and not has_standby(task) and not has_warmup(task)
            ),
            frozenset(
                task
                for task in missing.standby
                if not (runs(task) and task not in had.active)
                and process not in processes.standby(task)
                and not has_warmup(task)
            ),
            frozenset(
                task
                for task in missing.warmup
                if not runs(task)
                and not has_standby(task)
                and process not in processes.warmup(task)
            ),
        )


def _moved_roles(had: HeldTasks, given: Tasks) -> Tasks:
    """Tasks that the member has in one role and keeps as a copy in another."""
    standby = given.standby.intersection({*had.active, *had.warmup})
    return Tasks(standby=standby, warmup=given.warmup & had.standby)
