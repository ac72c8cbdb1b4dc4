"""The assignor of streams groups: sticky.

Owns the computation of a target from the tasks of a topology and what the members have now. Active
tasks stay where they are, or go to a member with the task's state, within an equal share for each
member; the rest go to the *process* with the least load, which is the number of its tasks for each
of its members. Standby tasks likewise, but never two copies of a task into one process. It must
never know a group's state or the time. Invariant: each task has one active owner, and the result is
the one that Kafka computes, also where that depends on the order in which Java's hash maps and
priority queues are read. Kafka's ``StickyTaskAssignor`` and ``ProcessState`` (4.4), which has no
other assignor for brokers: warm-up tasks and tags of racks change nothing yet.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from minibroker.broker.groups.assignors import bucket_of, java_order, java_text

STICKY: Final = "sticky"
"""Kafka's name of the assignor."""

Task = tuple[str, int]
"""A subtopology and a partition of its source topics."""

NO_TASKS: Final[frozenset[Task]] = frozenset()


class MemberTasks(NamedTuple):
    """What the assignor knows of a member."""

    process_id: str
    active: Collection[Task] = NO_TASKS
    standby: Collection[Task] = NO_TASKS
    offsets: Mapping[Task, int] = {}
    """How far the member has restored the state of tasks; also of tasks that it does not have."""


class TargetTasks(NamedTuple):
    """The target of a member."""

    active: frozenset[Task] = NO_TASKS
    standby: frozenset[Task] = NO_TASKS


def assign_tasks(
    members: Mapping[str, MemberTasks],
    task_counts: Mapping[str, int],
    stateful: Collection[str] = (),
    standby_replicas: int = 0,
) -> dict[str, TargetTasks]:
    """Compute the target of each member.

    ``task_counts`` has the number of tasks of each subtopology; ``stateful`` are those whose tasks
    may have standby copies.
    """
    if not members:
        return {}
    assignment = _Assignment(members, task_counts, stateful, standby_replicas)
    assignment.assign_active()
    if standby_replicas > 0:
        assignment.assign_standby()
    return {
        member_id: TargetTasks(
            frozenset(process.active[member_id]), frozenset(process.standby[member_id])
        )
        for process in assignment.processes.values()
        for member_id in process.counts
    }


class _Assignment:
    """An assignment that is being made."""

    def __init__(
        self,
        members: Mapping[str, MemberTasks],
        task_counts: Mapping[str, int],
        stateful: Collection[str],
        standby_replicas: int,
    ) -> None:
        self._members = members
        self._replicas = standby_replicas
        self._active_tasks = [(s, p) for s, count in task_counts.items() for p in range(count)]
        self._stateful_tasks = [task for task in self._active_tasks if task[0] in stateful]
        copies = len(self._stateful_tasks) * standby_replicas
        self._active_share = _Share(len(self._active_tasks), len(members))
        self._share = _Share(len(self._active_tasks) + copies, len(members))
        member_ids = java_order(members)
        self.processes = self._make_processes(member_ids)
        self._former_active = {
            task: member_id for member_id in member_ids for task in members[member_id].active
        }
        self._with_state = self._find_state(member_ids)
        """The members with the state of a task, the best first."""

    def _make_processes(self, member_ids: Iterable[str]) -> dict[str, _Process]:
        """The processes in the order of a map that ``computeIfAbsent`` fills.

        It grows only at the next call, and puts a key before those of the same bucket.
        """
        processes: dict[str, _Process] = {}
        capacity = 1
        while capacity < len(self._members):
            capacity *= 2
        for member_id in member_ids:
            if len(processes) > capacity * 3 // 4:
                capacity *= 2
            process_id = self._members[member_id].process_id
            processes.setdefault(process_id, _Process()).add_member(member_id)
        newest_first = reversed(processes)
        order = sorted(newest_first, key=lambda each: bucket_of(each) & (capacity - 1))
        return {process_id: processes[process_id] for process_id in order}

    def _find_state(self, member_ids: Iterable[str]) -> dict[Task, list[str]]:
        """Former standby tasks come first, then those with the largest offsets."""
        found: dict[Task, list[tuple[bool, int, str]]] = {}
        for member_id in member_ids:
            member = self._members[member_id]
            for task in dict.fromkeys((*member.standby, *member.offsets)):
                key = task not in member.standby, -member.offsets.get(task, 0), member_id
                found.setdefault(task, []).append(key)
        return {
            task: [member_id for *_, member_id in sorted(each, key=lambda key: key[:2])]
            for task, each in found.items()
        }

    def _process_of(self, member_id: str) -> _Process:
        return self.processes[self._members[member_id].process_id]

    # --------------------------------------------------------------------------- active tasks

    def assign_active(self) -> None:
        tasks = sorted(self._active_tasks, key=_by_partition)
        tasks = [task for task in tasks if not self._keep(task, self._former_active.get(task))]
        tasks = [task for task in tasks if not self._keep(task, self._least_loaded(task))]
        queue = _Queue(self.processes.values(), _load)
        for task in sorted(tasks, key=_by_subtopology):
            process = queue.poll()
            self._note_active(process.add_to_least_loaded(task, process.active))
            queue.add(process)

    def _keep(self, task: Task, member_id: str | None) -> bool:
        """Give an active task to the member, if there is one and its share is not used up."""
        if member_id is None:
            return False
        process = self._process_of(member_id)
        if process.counts[member_id] >= self._active_share.per_member:
            return False
        self._note_active(process.add(member_id, task, process.active))
        return True

    def _note_active(self, member_count: int) -> None:
        self._active_share.note(member_count)
        self._share.note(member_count)

    def _least_loaded(self, task: Task, *, is_standby: bool = False) -> str | None:
        """Of the members with the task's state, one that has least to do.

        A member is preferred to an earlier one only if both it and its process have less to do.
        """
        best: str | None = None
        best_load = best_count = 0.0
        for member_id in self._with_state.get(task, ()):
            process = self._process_of(member_id)
            if is_standby and task in process.tasks:
                continue
            load, count = process.load, process.counts[member_id]
            if best is None or (load < best_load and count < best_count):
                best, best_load, best_count = member_id, load, count
        return best

    # -------------------------------------------------------------------------- standby tasks

    def assign_standby(self) -> None:
        remaining: list[tuple[Task, int]] = []
        for task in sorted(self._stateful_tasks, key=_by_partition, reverse=True):
            kept = 0
            while kept < self._replicas and self._keep_standby(task):
                kept += 1
            if kept < self._replicas:
                remaining.append((task, self._replicas - kept))
        queue = _Queue(self.processes.values(), _load)
        for task, copies in sorted(remaining, key=lambda each: _by_subtopology(each[0]))[::-1]:
            for _ in range(copies):
                if not self._add_standby(task, queue):
                    break

    def _keep_standby(self, task: Task) -> bool:
        """Give a copy to the former active owner or a member with state; whether one took it."""
        former = self._former_active.get(task)
        takes = former is not None and task not in self._process_of(former).tasks
        if takes and self._add_within_share(task, former):
            return True
        return self._add_within_share(task, self._least_loaded(task, is_standby=True))

    def _add_within_share(self, task: Task, member_id: str | None) -> bool:
        if member_id is None:
            return False
        process = self._process_of(member_id)
        if process.counts[member_id] >= self._share.per_member:
            return False
        self._share.note(process.add(member_id, task, process.standby))
        return True

    def _add_standby(self, task: Task, queue: _Queue[_Process]) -> bool:
        """Give a copy to the least loaded process that has none; whether there is one."""
        seen = []
        while len(queue):
            seen.append(queue.poll())
            if task not in seen[-1].tasks:
                break
        process = seen[-1]
        is_free = task not in process.tasks
        if is_free:
            self._share.note(process.add_to_least_loaded(task, process.standby))
        for each in reversed(seen):
            queue.add(each)
        return is_free


class _Share:
    """How many tasks a member may have, so that all have about equal numbers."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        """Those that have not reached the share yet, and the tasks for them."""
        self.per_member = -(-tasks // members)

    def note(self, member_count: int) -> None:
        """A member has so many tasks now; if that is the share, the others share the rest."""
        if member_count == self.per_member:
            self._members -= 1
            self._tasks -= member_count
            self.per_member = -(-self._tasks // self._members) if self._members else 0


class _Process:
    """The members of one instance of the application."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """The number of tasks of each member."""
        self.active: dict[str, list[Task]] = {}
        self.standby: dict[str, list[Task]] = {}
        self.tasks: set[Task] = set()
        self._copies = 0
        self._by_load: _Queue[str] | None = None

    @property
    def load(self) -> float:
        return self._copies / len(self.counts)

    def add_member(self, member_id: str) -> None:
        self.counts[member_id] = 0
        self.active[member_id] = []
        self.standby[member_id] = []

    def add(self, member_id: str, task: Task, role: dict[str, list[Task]]) -> int:
        """Give a task to a member; return the member's number of tasks."""
        self._by_load = None
        return self._add(member_id, task, role)

    def add_to_least_loaded(self, task: Task, role: dict[str, list[Task]]) -> int:
        """Give a task to the member with fewest tasks; return the member's number of tasks."""
        if self._by_load is None:
            self._by_load = _Queue(java_order(self.counts), self.counts.__getitem__)
        member_id = self._by_load.poll()
        count = self._add(member_id, task, role)
        self._by_load.add(member_id)
        return count

    def _add(self, member_id: str, task: Task, role: dict[str, list[Task]]) -> int:
        role[member_id].append(task)
        self.tasks.add(task)
        self._copies += 1
        self.counts[member_id] += 1
        return self.counts[member_id]


EntryT = TypeVar("EntryT")


class _Queue(Generic[EntryT]):
    """A heap of entries by load that returns equals in the order of Java's ``PriorityQueue``.

    The load of an entry may change only while it is not in the queue.
    """

    def __init__(self, entries: Iterable[EntryT], load_of: Callable[[EntryT], float]) -> None:
        self._heap: list[EntryT] = []
        self._load_of = load_of
        for each in entries:
            self.add(each)

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, entry: EntryT) -> None:
        heap, load = self._heap, self._load_of(entry)
        heap.append(entry)
        at = len(heap) - 1
        while at and load < self._load_of(heap[parent := (at - 1) // 2]):
            heap[at] = heap[parent]
            at = parent
        heap[at] = entry

    def poll(self) -> EntryT:
        """Remove an entry with the least load and return it."""
        heap = self._heap
        least, last = heap[0], heap.pop()
        if not heap:
            return least
        at, load = 0, self._load_of(last)
        while (child := 2 * at + 1) < len(heap):
            other = child + 1
            if other < len(heap) and self._load_of(heap[child]) > self._load_of(heap[other]):
                child = other
            if load <= self._load_of(heap[child]):
                break
            heap[at] = heap[child]
            at = child
        heap[at] = last
        return least


def _load(process: _Process) -> float:
    return process.load


def _by_partition(task: Task) -> tuple[int, bytes]:
    return task[1], java_text(task[0])


def _by_subtopology(task: Task) -> tuple[bytes, int]:
    return java_text(task[0]), task[1]
