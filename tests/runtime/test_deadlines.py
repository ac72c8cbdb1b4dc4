"""Keys are due once and in order, and forgotten keys use bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.runtime.deadlines import FORGOTTEN_MAX, Deadlines


@given(st.lists(st.integers(0, 100)), st.lists(st.integers(0, 30)), st.sets(st.integers(0, 20)))
def test_each_key_is_due_once_unless_it_is_forgotten(
    ends: list[int], waits: list[int], forgotten: set[int]
) -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number, end in enumerate(ends):
        is_next = deadlines.add(number, end)
        assert is_next == all(end < earlier for earlier in ends[:number])
    for number in forgotten:
        deadlines.forget(number)
        assert number not in deadlines
    kept = {number: end for number, end in enumerate(ends) if number not in forgotten}
    assert len(deadlines) == len(kept)
    now, gone = 0, list[int]()
    for wait in [*waits, 100]:
        now += wait
        due = deadlines.due(now)
        gone += [kept[number] for number in due]
        assert sorted(gone) == gone == sorted(end for end in kept.values() if end <= now)
        assert deadlines.next() is None or len(deadlines) or len(forgotten)


def test_forgotten_keys_use_bounded_memory() -> None:
    deadlines: Deadlines[int] = Deadlines()
    deadlines.add(-1, 5)
    for number in range(10 * FORGOTTEN_MAX):
        deadlines.add(number, 10**9)
        deadlines.forget(number)
        deadlines.forget(number)
    assert len(deadlines._ends) <= FORGOTTEN_MAX + 3
    assert deadlines.next() == 5
    assert deadlines.due(10**10) == [-1]
    assert deadlines.next() is None
