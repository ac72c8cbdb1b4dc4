"""Tasks of a member of a streams group follow its target, step by step."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from minibroker.broker.groups.consumer_member import Rejoin
from minibroker.broker.groups.events import Task, Tasks, UserEndpoint
from minibroker.broker.groups.streams_member import (
    HeldTasks,
    StreamsMember,
    StreamsMemberState,
    TaskProcesses,
    TaskReconciliation,
    by_subtopology,
)
from minibroker.broker.groups.streams_records import (
    StreamsCurrentAssignment,
    StreamsMemberMetadata,
)
from tests.broker.groups.streams_play import tasks

NO_PROCESSES: Mapping[Task, set[str]] = {}


def step(
    member: StreamsMember,
    target: Tasks,
    *,
    epoch: int = 5,
    owned: Tasks | None = None,
    active: Mapping[Task, str] | None = None,
    standby: Mapping[Task, set[str]] = NO_PROCESSES,
    warmup: Mapping[Task, set[str]] = NO_PROCESSES,
) -> StreamsMember:
    """The member after a heartbeat; the rest says which processes have which tasks."""
    owners = active or {}
    processes = TaskProcesses(
        owners.get, lambda task: standby.get(task, set()), lambda task: warmup.get(task, set())
    )
    return TaskReconciliation(
        target_epoch=epoch, target=target, processes=processes, owned=owned
    ).apply(member)


def stable(**held: object) -> StreamsMember:
    assigned = HeldTasks(**held)  # type: ignore[arg-type]
    return StreamsMember(member_id="m", member_epoch=4, process_id="p", assigned=assigned)


def test_free_tasks_are_given_in_the_epoch_of_the_target() -> None:
    member = step(stable(), Tasks(tasks(0, 1), tasks(2)))
    assert (member.state, member.member_epoch, member.previous_member_epoch) == (
        StreamsMemberState.STABLE,
        5,
        4,
    )
    assert member.assigned == HeldTasks({("0", 0): 5, ("0", 1): 5}, tasks(2))
    assert step(member, Tasks(tasks(0, 1), tasks(2))) is member


def test_tasks_outside_the_target_are_given_up_first() -> None:
    before = stable(active={("0", 0): 2, ("0", 1): 2}, standby=tasks(3))
    target = Tasks(tasks(1, 2))
    member = step(before, target)
    assert (member.state, member.member_epoch) == (StreamsMemberState.UNREVOKED_TASKS, 4)
    assert member.assigned == HeldTasks({("0", 1): 2})
    assert member.pending_revocation == HeldTasks({("0", 0): 2}, tasks(3))
    assert step(member, target, owned=Tasks(tasks(1), tasks(3))) is member
    done = step(member, target, owned=Tasks(tasks(1)))
    assert (done.state, done.member_epoch) == (StreamsMemberState.STABLE, 5)
    assert done.assigned == HeldTasks({("0", 1): 2, ("0", 2): 5})


def test_active_task_of_another_process_is_awaited() -> None:
    target = Tasks(tasks(0, 1))
    member = step(stable(), target, active={("0", 1): "q"})
    assert (member.state, member.member_epoch) == (StreamsMemberState.UNRELEASED_TASKS, 5)
    assert member.assigned == HeldTasks({("0", 0): 5})
    done = step(member, target, epoch=6)
    assert (done.state, done.assigned.active) == (
        StreamsMemberState.STABLE,
        {("0", 0): 5, ("0", 1): 6},
    )


@pytest.mark.parametrize("role", ["standby", "warmup"])
def test_copy_in_the_same_process_is_awaited(role: str) -> None:
    target = Tasks(tasks(0))
    waiting = step(stable(), target, **{role: {("0", 0): {"p"}}})  # type: ignore[arg-type]
    assert waiting.state is StreamsMemberState.UNRELEASED_TASKS
    elsewhere = step(stable(), target, **{role: {("0", 0): {"q"}}})  # type: ignore[arg-type]
    assert elsewhere.state is StreamsMemberState.STABLE


def test_standby_waits_for_the_active_task_of_another_thread() -> None:
    target = Tasks(standby=tasks(0))
    assert step(stable(), target, active={("0", 0): "q"}).assigned.standby == tasks(0)
    assert step(stable(), target, active={("0", 0): "p"}).assigned.standby == tasks()
    assert step(stable(), target, standby={("0", 0): {"p"}}).assigned.standby == tasks()


def test_own_copy_becomes_active_at_once() -> None:
    before = stable(standby=tasks(0))
    member = step(before, Tasks(tasks(0)), standby={("0", 0): {"p"}})
    assert (member.state, member.assigned) == (StreamsMemberState.STABLE, HeldTasks({("0", 0): 5}))
    # Until another process has given the active task up, the copy is kept.
    waiting = step(before, Tasks(tasks(0)), active={("0", 0): "q"}, standby={("0", 0): {"p"}})
    assert (waiting.state, waiting.assigned.standby) == (
        StreamsMemberState.UNRELEASED_TASKS,
        tasks(0),
    )


def test_active_task_becomes_an_own_copy_before_it_is_given_up() -> None:
    before = stable(active={("0", 0): 2})
    member = step(before, Tasks(standby=tasks(0)), active={("0", 0): "p"})
    assert member.state is StreamsMemberState.UNREVOKED_TASKS
    assert member.assigned == HeldTasks(standby=tasks(0))
    assert member.pending_revocation == HeldTasks({("0", 0): 2})


def test_copies_change_their_kind_without_being_given_up() -> None:
    before = stable(standby=tasks(0), warmup=tasks(1))
    member = step(
        before,
        Tasks(standby=tasks(1), warmup=tasks(0)),
        standby={("0", 0): {"p"}},
        warmup={("0", 1): {"p"}},
    )
    assert (member.state, member.assigned) == (
        StreamsMemberState.STABLE,
        HeldTasks(standby=tasks(1), warmup=tasks(0)),
    )


def test_member_in_an_unknown_state_must_rejoin_without_tasks() -> None:
    member = StreamsMember(member_id="m", member_epoch=4, state=StreamsMemberState.UNKNOWN)
    for owned in (None, Tasks(tasks(0))):
        with pytest.raises(Rejoin):
            step(member, Tasks(tasks(0)), owned=owned)
    assert step(member, Tasks(tasks(0)), owned=Tasks()).member_epoch == 5


def test_records_give_the_same_member() -> None:
    held = HeldTasks({("0", 1): 3, ("1", 0): 4}, tasks(2), tasks(3))
    member = StreamsMember(
        member_id="m",
        member_epoch=4,
        previous_member_epoch=3,
        state=StreamsMemberState.UNREVOKED_TASKS,
        instance_id="i",
        rack_id="r",
        rebalance_timeout_ms=9,
        client_id="c",
        client_host="/h",
        topology_epoch=1,
        process_id="p",
        endpoint=UserEndpoint("h", 1),
        client_tags={"zone": "z"},
        assigned=held,
        pending_revocation=HeldTasks({("0", 0): 1}),
    )
    loaded = StreamsMember(member_id="m")
    for record in (member.metadata_record("g"), member.assignment_record("g")):
        if isinstance(record.value, StreamsMemberMetadata):
            loaded = loaded.with_metadata(record.value)
        elif isinstance(record.value, StreamsCurrentAssignment):
            loaded = loaded.with_assignment(record.value)
    assert loaded == member
    assert (member.epoch_of(("0", 0)), member.epoch_of(("0", 1)), member.epoch_of(("2", 0))) == (
        1,
        3,
        None,
    )
    assert by_subtopology(held.active) == {"0": [1], "1": [0]}


def test_members_converge_and_never_have_an_active_task_twice(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(200):
        members = {
            name: StreamsMember(member_id=name, process_id=rng.choice("pq")) for name in "abc"
        }
        targets: dict[str, Tasks] = {}
        for epoch in range(1, 5):
            targets = random_targets(rng)
            for _ in range(60):
                name = rng.choice(list(members))
                members[name] = reported(members, name, targets[name], epoch)
                active = [task for each in members.values() for task in everything(each)]
                assert len(active) == len(set(active))
        settle(members, targets, 4)
        assert {name: each.assigned.tasks for name, each in members.items()} == targets


def random_targets(rng: random.Random) -> dict[str, Tasks]:
    """Targets in which no task is in two roles."""
    targets = {name: Tasks() for name in "abc"}
    for partition in range(4):
        name, role = rng.choice("abc"), rng.randrange(3)
        held = list(targets[name])
        held[role] |= tasks(partition)
        targets[name] = Tasks(*held)
    return targets


def everything(member: StreamsMember) -> list[Task]:
    return [*member.assigned.active, *member.pending_revocation.active]


def reported(
    members: Mapping[str, StreamsMember], name: str, target: Tasks, epoch: int
) -> StreamsMember:
    """The member after a heartbeat in which it has given up what it must."""
    active, standby, warmup = owners(members)
    member = members[name]
    return step(
        member,
        target,
        epoch=epoch,
        owned=member.assigned.tasks,
        active=active,
        standby=standby,
        warmup=warmup,
    )


def owners(
    members: Mapping[str, StreamsMember],
) -> tuple[dict[Task, str], dict[Task, set[str]], dict[Task, set[str]]]:
    active: dict[Task, str] = {}
    standby: dict[Task, set[str]] = {}
    warmup: dict[Task, set[str]] = {}
    for member in members.values():
        for held in (member.assigned, member.pending_revocation):
            active.update(dict.fromkeys(held.active, member.process_id))
            for tasks_of, found in ((held.standby, standby), (held.warmup, warmup)):
                for task in tasks_of:
                    found.setdefault(task, set()).add(member.process_id)
    return active, standby, warmup


def settle(members: dict[str, StreamsMember], targets: Mapping[str, Tasks], epoch: int) -> None:
    for _ in range(12):
        for name in members:
            members[name] = reported(members, name, targets[name], epoch)
