"""A member of a streams group is given the next tasks that Kafka gives it.

Kafka's `CurrentAssignmentBuilder` is called by `StreamsMembers.java`, one step a line. Members are
in any state, with tasks that they have, must give up and report, and targets that keep, move and
change the role of tasks; other members of their process and of others have tasks, too.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from minibroker.broker.groups.consumer_member import Rejoin
from minibroker.broker.groups.events import Task, Tasks
from minibroker.broker.groups.streams_member import (
    HeldTasks,
    StreamsMember,
    StreamsMemberState,
    TaskProcesses,
    TaskReconciliation,
)
from system_tests.harness.jars import java_answers

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

STEPS: Final = 10_000
PARTITIONS: Final = range(5)
SUBTOPOLOGY: Final = "0"
PROCESS: Final = "p"

Roles = tuple[set[int], set[int], set[int]]
Processes = dict[int, set[str]]


class Step(NamedTuple):
    """A heartbeat of a member."""

    member: StreamsMember
    target_epoch: int
    target: Tasks
    owned: Tasks | None
    processes: tuple[Processes, Processes, Processes]
    """The processes with a task, by role and partition."""


def some_roles(random: Random, partitions: set[int] | range = PARTITIONS) -> Roles:
    roles: Roles = (set(), set(), set())
    for each in partitions:
        random.choice([*roles, set(), set()]).add(each)
    return roles


def held(random: Random, roles: Roles, epoch: int) -> HeldTasks:
    active = {(SUBTOPOLOGY, each): random.randint(1, epoch) for each in roles[0]}
    return HeldTasks(active, *map(tasks, roles[1:]))


def tasks(partitions: set[int]) -> frozenset[Task]:
    return frozenset((SUBTOPOLOGY, each) for each in partitions)


def generate_step(random: Random) -> Step:
    state = random.choice([*StreamsMemberState, *list(StreamsMemberState)[:3]])
    epoch = random.randint(1, 4)
    assigned, pending = some_roles(random), (set[int](), set[int](), set[int]())
    if state is StreamsMemberState.UNREVOKED_TASKS:
        pending = some_roles(random, set(PARTITIONS).difference(*assigned))
    both = [has | must for has, must in zip(assigned, pending, strict=True)]
    member = StreamsMember(
        member_id="m",
        member_epoch=epoch,
        state=state,
        process_id=PROCESS,
        assigned=held(random, assigned, epoch),
        pending_revocation=held(random, pending, epoch),
    )
    owned = Tasks(*(tasks({each for each in role if random.random() < 0.7}) for role in both))
    return Step(
        member,
        epoch + random.randint(0, 2),
        Tasks(*map(tasks, some_roles(random))),
        owned if random.random() < 0.7 else None,
        (others(random, both[0], 1), others(random, both[1], 2), others(random, both[2], 2)),
    )


def others(random: Random, own: set[int], most: int) -> Processes:
    """The processes with the tasks of a role, of which some are the member's own."""
    found: Processes = {each: {PROCESS} for each in own}
    for partition in PARTITIONS:
        if random.random() < 0.25 and len(found.get(partition, ())) < most:
            found.setdefault(partition, set()).add(random.choice(("p", "q")))
    return found


def line(step: Step) -> str:
    member = step.member
    owned = None if step.owned is None else [partitions(role) for role in step.owned]
    return json.dumps(
        {
            "state": member.state,
            "epoch": member.member_epoch,
            "assigned": shown(member.assigned),
            "pending": shown(member.pending_revocation),
            "target_epoch": step.target_epoch,
            "target": [partitions(role) for role in step.target],
            "owned": owned,
            "processes": [
                {at: sorted(names) for at, names in each.items()} for each in step.processes
            ],
        }
    )


def partitions(role: frozenset[Task]) -> list[int]:
    return sorted(partition for _, partition in role)


def shown(has: HeldTasks) -> list[Any]:
    active = {str(partition): epoch for (_, partition), epoch in sorted(has.active.items())}
    return [active, partitions(has.standby), partitions(has.warmup)]


def next_tasks(step: Step) -> list[Any]:
    active, standby, warmup = step.processes
    processes = TaskProcesses(
        lambda task: next(iter(active.get(task[1], ())), None),
        lambda task: standby.get(task[1], ()),
        lambda task: warmup.get(task[1], ()),
    )
    try:
        after = TaskReconciliation(
            target_epoch=step.target_epoch,
            target=step.target,
            processes=processes,
            owned=step.owned,
        ).apply(step.member)
    except Rejoin:
        return []
    return [
        after.state,
        after.member_epoch,
        after.previous_member_epoch,
        shown(after.assigned),
        shown(after.pending_revocation),
    ]


def test_next_tasks_are_those_of_kafka() -> None:
    random = Random(1071)
    steps = [generate_step(random) for _ in range(STEPS)]
    theirs = java_answers("StreamsMembers", map(line, steps))
    for step, answer in zip(steps, theirs, strict=True):
        assert next_tasks(step) == answer, line(step)
