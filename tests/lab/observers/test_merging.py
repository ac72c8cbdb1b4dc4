"""Events of several senders are put in the order of their times, each once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.activity.events import ConnectionActivity
from minibroker.lab.observers.recorder import Merger


def event(time_us: int, mark: int) -> ConnectionActivity:
    return time_us, 0, ("PLAINTEXT", mark, "10.0.0.1"), "accepted", None, None


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 50))), max_size=10),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_merged_events_are_taken_once_in_order_of_time(
    sent: list[tuple[int, list[int]]], cuts: list[int]
) -> None:
    merger: Merger[int] = Merger()
    marks = 0
    for sender, times in sent:
        events = [event(time_us, marks + at) for at, time_us in enumerate(times)]
        marks += len(times)
        merger.add(sender, events)
    found: list[int] = []
    counted = 0
    for until in [*cuts, 100]:
        waiting = len(merger)
        taken = merger.take(until)
        times = [one[0] for one in taken.events]
        assert times == sorted(times)
        assert all(time_us <= until for time_us in times)
        assert sum(taken.counts.values()) == len(taken.events) == waiting - len(merger)
        counted += len(taken.events)
        found += [one[2][1] for one in taken.events]
    assert len(merger) == 0
    assert sorted(found) == list(range(counted)) == list(range(marks))


def test_events_of_one_sender_with_equal_times_keep_their_order() -> None:
    merger: Merger[str] = Merger()
    merger.add("a", [event(5, 1), event(5, 2)])
    merger.add("a", [event(5, 3), event(4, 4)])
    assert [one[2][1] for one in merger.take(9).events] == [4, 1, 2, 3]


def test_events_after_given_time_wait_for_other_senders() -> None:
    merger: Merger[str] = Merger()
    merger.add("a", [event(10, 1), event(30, 2)])
    assert merger.take(20).counts == {"a": 1}
    merger.add("b", [event(25, 3)])
    assert [one[0] for one in merger.take(30).events] == [25, 30]
