"""Groups are due in the order of their deadlines, in bounded memory."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.groups.limits import EXTRA_TIMERS_MAX, TIMERS_PER_GROUP_MAX
from minibroker.broker.groups.timers import GroupTimers

TIMES = st.integers(0, 50).map(float)


def due(timers: GroupTimers, now: float) -> list[str]:
    found = []
    while (group := timers.take_due(now)) is not None:
        found.append(group)
    return found


@given(st.lists(st.tuples(st.sampled_from("abc"), TIMES)), TIMES)
def test_each_group_is_due_at_its_earliest_deadline(
    deadlines: list[tuple[str, float]], now: float
) -> None:
    timers = GroupTimers()
    earliest: dict[str, float] = {}
    for group, deadline in deadlines:
        is_next = timers.schedule(group, deadline)
        is_earlier = deadline < earliest.get(group, math.inf)
        earliest[group] = min(deadline, earliest.get(group, math.inf))
        assert is_next == (is_earlier and deadline == min(earliest.values()))
    assert timers.next == min(earliest.values(), default=math.inf)
    expected = sorted((at, group) for group, at in earliest.items() if at <= now)
    assert due(timers, now) == [group for _, group in expected]


def test_memory_is_bounded_by_the_number_of_groups() -> None:
    timers = GroupTimers()
    for number in range(1000, 0, -1):
        timers.schedule("g", float(number))
    assert len(timers) <= TIMERS_PER_GROUP_MAX + EXTRA_TIMERS_MAX + 1
    assert due(timers, 0.5) == []
    assert due(timers, 1.0) == ["g"]


def test_forgotten_groups_and_groups_without_a_deadline_are_not_due() -> None:
    timers = GroupTimers()
    assert not timers.schedule("none", None)
    timers.schedule("a", 1.0)
    timers.forget("a")
    timers.forget("a")
    assert due(timers, 2.0) == []
    timers.schedule("b", 1.0)
    timers.clear()
    assert (due(timers, 2.0), timers.next) == ([], math.inf)
