"""The assignor of streams groups gives each task one owner, keeps what it can, and copies state."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.groups.streams_assignor import MemberTasks, TargetTasks, Task, assign_tasks


def tasks(*names: str) -> frozenset[Task]:
    """Tasks of names such as 0_1: the subtopology and the partition."""
    return frozenset((name.split("_")[0], int(name.split("_")[1])) for name in names)


def test_tasks_are_spread_over_processes_and_their_members() -> None:
    members = {"a": MemberTasks("p"), "b": MemberTasks("p"), "c": MemberTasks("q")}
    target = assign_tasks(members, {"0": 3, "1": 3})
    assert {name: len(each.active) for name, each in target.items()} == {"a": 2, "b": 2, "c": 2}


def test_active_tasks_stay_within_an_equal_share() -> None:
    former = tasks("0_0", "0_1", "0_2", "0_3")
    members = {"a": MemberTasks("p", active=former), "b": MemberTasks("q")}
    target = assign_tasks(members, {"0": 4})
    assert target["a"].active == tasks("0_0", "0_1")
    assert target["b"].active == tasks("0_2", "0_3")


def test_an_orphaned_task_goes_to_the_member_with_its_state() -> None:
    members = {
        "a": MemberTasks("p", active=tasks("0_0")),
        "b": MemberTasks("q", standby=tasks("0_1")),
        "c": MemberTasks("r"),
    }
    target = assign_tasks(members, {"0": 2}, {"0"})
    assert target["b"].active == tasks("0_1")


def test_the_member_that_has_restored_most_is_preferred() -> None:
    members = {
        "a": MemberTasks("p", offsets={("0", 0): 10}),
        "b": MemberTasks("q", offsets={("0", 0): 11}),
    }
    assert assign_tasks(members, {"0": 1})["b"].active == tasks("0_0")


def test_standby_tasks_are_copies_of_tasks_with_state_in_other_processes() -> None:
    members = {"a": MemberTasks("p"), "b": MemberTasks("p"), "c": MemberTasks("q")}
    target = assign_tasks(members, {"0": 1, "1": 1}, {"1"}, standby_replicas=3)
    copies = [task for each in target.values() for task in each.standby]
    assert copies == [("1", 0)]
    owner = next(name for name, each in target.items() if ("1", 0) in each.active)
    copy = next(name for name, each in target.items() if each.standby)
    assert members[owner].process_id != members[copy].process_id


def test_a_group_without_members_has_no_target() -> None:
    assert assign_tasks({}, {"0": 3}) == {}


SUBTOPOLOGIES = st.dictionaries(st.sampled_from("0123"), st.integers(1, 6), min_size=1)
TASKS = st.tuples(st.sampled_from("0123"), st.integers(0, 6))
MEMBER = st.builds(
    MemberTasks,
    st.sampled_from("pqrs"),
    st.frozensets(TASKS, max_size=6),
    st.frozensets(TASKS, max_size=6),
    st.dictionaries(TASKS, st.integers(0, 9), max_size=6),
)
MEMBERS = st.dictionaries(st.text("abc", min_size=1, max_size=3), MEMBER, min_size=1, max_size=9)


def copies(
    target: dict[str, TargetTasks], members: dict[str, MemberTasks]
) -> Counter[tuple[str, Task]]:
    """How often a process has a task, in any role."""
    return Counter(
        (members[name].process_id, task)
        for name, each in target.items()
        for task in (*each.active, *each.standby)
    )


@given(MEMBERS, SUBTOPOLOGIES, st.integers(0, 3))
def test_each_task_has_one_owner_and_its_copies_are_in_other_processes(
    members: dict[str, MemberTasks], counts: dict[str, int], replicas: int
) -> None:
    stateful = set("01")
    target = assign_tasks(members, counts, stateful, replicas)
    assert target.keys() == members.keys()
    everything = [(name, at) for name, count in counts.items() for at in range(count)]
    active = [task for each in target.values() for task in each.active]
    assert sorted(active) == sorted(everything)
    assert set(copies(target, members).values()) <= {1}
    processes = len({each.process_id for each in members.values()})
    standby = Counter(task for each in target.values() for task in each.standby)
    wanted = min(replicas, processes - 1)
    assert standby == {task: wanted for task in everything if task[0] in stateful and wanted}


@given(MEMBERS, SUBTOPOLOGIES, st.integers(0, 2))
def test_no_active_task_moves_while_nothing_changes(
    members: dict[str, MemberTasks], counts: dict[str, int], replicas: int
) -> None:
    fresh = {name: MemberTasks(each.process_id) for name, each in members.items()}
    target = assign_tasks(fresh, counts, set("01"), replicas)
    settled = {name: MemberTasks(each.process_id, *target[name]) for name, each in members.items()}
    again = assign_tasks(settled, counts, set("01"), replicas)
    assert {name: each.active for name, each in again.items()} == {
        name: each.active for name, each in target.items()
    }
