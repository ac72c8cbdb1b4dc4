"""Records of several processes become one order, within the memory of the journal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.journal.bounded import ENTRY_BYTES, Journal
from minibroker.journal.buffer import JournalBuffer
from minibroker.journal.merging import STEP, JournalMerger
from tests.journal.records_of_tests import chunk, exchange, noted, request


def texts(merger: JournalMerger) -> list[object]:
    return [entry.details["to"] for entry in merger.journal]


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=80))
def test_entries_of_any_processes_are_in_the_order_of_their_times(
    steps: list[tuple[int, bool]],
) -> None:
    buffers = {f"role-{index}": JournalBuffer(index * 10**9) for index in range(3)}
    merger = JournalMerger(Journal(), 0.0)
    now = 0
    for index, collects in steps:
        now += 1
        buffers[f"role-{index}"].add(noted(now))
        if collects:
            until = now
            for later, (role, buffer) in enumerate(buffers.items()):
                merger.add(role, buffer.take(merger.received(role)))
                # This process records before the others have handed over theirs.
                buffer.add(noted(now + later + 1))
            now += len(buffers)
            merger.merge(until)
    for role, buffer in buffers.items():
        merger.add(role, buffer.take(merger.received(role)))
    merger.merge(now)
    assert texts(merger) == list(range(1, now + 1))
    assert [entry.sequence for entry in merger.journal] == list(range(1, now + 1))


def test_record_that_is_too_new_waits() -> None:
    merger = JournalMerger(Journal(), 0.0)
    merger.add("a", chunk(1, noted(5), noted(9)))
    merger.merge(7)
    assert texts(merger) == [5]
    merger.merge(9)
    assert texts(merger) == [5, 9]


def test_chunk_that_arrives_twice_counts_once() -> None:
    merger = JournalMerger(Journal(), 0.0)
    for _ in range(2):
        merger.add("a", chunk(7, noted(1), dropped=3))
    merger.merge(1)
    assert (texts(merger), merger.journal.dropped) == ([1], 3)
    assert (merger.received("a"), merger.received("b")) == (7, 0)


def test_response_in_an_exchange_is_ordered_by_its_own_time() -> None:
    merger = JournalMerger(Journal(), 0.0)
    merger.add("processor-0", chunk(1, exchange(1, 3)))
    merger.add("worker-0", chunk(1, noted(2)))
    merger.merge(3)
    assert [entry.kind.value for entry in merger.journal] == ["request", "clock", "response"]


def test_records_that_are_not_read_are_bounded_as_the_entries_that_they_will_be() -> None:
    merger = JournalMerger(Journal(10 * ENTRY_BYTES), 0.0)
    for number in range(1, 31):
        merger.add("a", chunk(number, request(number)))
    assert 20 < merger.journal.dropped < 30
    merger.merge(30)
    assert merger.journal.dropped + len(merger.journal) == 30


def test_merge_that_is_given_up_is_completed_by_the_next() -> None:
    merger = JournalMerger(Journal(), 0.0)
    count = 3 * STEP
    merger.add("a", chunk(1, *map(noted, range(1, count, 2))))
    merger.add("b", chunk(1, *map(noted, range(2, count + 1, 2))))
    steps = merger.steps(count)
    while not len(merger.journal):
        next(steps)
    assert len(merger.journal) == STEP
    steps.close()
    merger.add("a", chunk(2, noted(count + 1)))
    merger.merge(count + 1)
    assert texts(merger) == list(range(1, count + 2))


def test_new_records_displace_old_entries() -> None:
    merger = JournalMerger(Journal(3 * ENTRY_BYTES), 0.0)
    merger.add("a", chunk(1, noted(1), noted(2), noted(3)))
    merger.merge(3)
    merger.add("a", chunk(2, noted(4, "x" * 100)))
    assert texts(merger) == [3]
    assert merger.journal.dropped == 2


def test_clear_drops_entries_and_records() -> None:
    merger = JournalMerger(Journal(), 0.0)
    merger.add("a", chunk(1, noted(1), noted(9)))
    merger.merge(1)
    merger.add("a", chunk(2, noted(2)))
    merger.clear()
    merger.merge(100)
    assert (texts(merger), merger.journal.dropped) == ([], 0)
