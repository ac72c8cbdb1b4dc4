"""Records of several processes become one order, within the memory of the journal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.journal.bounded import ENTRY_BYTES, Journal
from minibroker.journal.buffer import JournalBuffer, JournalChunk
from minibroker.journal.merging import JournalMerger
from tests.journal.records_of_tests import exchange_record, note_record, request_record


def chunk(number: int, *records: bytes, dropped: int = 0) -> JournalChunk:
    return JournalChunk(number, b"".join(records), dropped, has_more=False)


def noted(merger: JournalMerger) -> list[object]:
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
        buffers[f"role-{index}"].add(note_record(now))
        if collects:
            until = now
            for later, (role, buffer) in enumerate(buffers.items()):
                merger.add(role, buffer.take(merger.received(role)))
                # This process records before the others have handed over theirs.
                buffer.add(note_record(now + later + 1))
            now += len(buffers)
            merger.merge(until)
    for role, buffer in buffers.items():
        merger.add(role, buffer.take(merger.received(role)))
    merger.merge(now)
    assert noted(merger) == list(range(1, now + 1))
    assert [entry.sequence for entry in merger.journal] == list(range(1, now + 1))


def test_record_that_is_too_new_waits() -> None:
    merger = JournalMerger(Journal(), 0.0)
    merger.add("a", chunk(1, note_record(5), note_record(9)))
    merger.merge(7)
    assert noted(merger) == [5]
    merger.merge(9)
    assert noted(merger) == [5, 9]


def test_chunk_that_arrives_twice_counts_once() -> None:
    merger = JournalMerger(Journal(), 0.0)
    for _ in range(2):
        merger.add("a", chunk(7, note_record(1), dropped=3))
    merger.merge(1)
    assert (noted(merger), merger.journal.dropped) == ([1], 3)
    assert (merger.received("a"), merger.received("b")) == (7, 0)


def test_response_in_an_exchange_is_ordered_by_its_own_time() -> None:
    merger = JournalMerger(Journal(), 0.0)
    merger.add("processor-0", chunk(1, exchange_record(1, 3)))
    merger.add("worker-0", chunk(1, note_record(2)))
    merger.merge(3)
    assert [entry.kind.value for entry in merger.journal] == ["request", "clock", "response"]


def test_records_that_are_not_read_are_bounded() -> None:
    size = len(request_record(1))
    merger = JournalMerger(Journal(10 * size), 0.0)
    for number in range(1, 31):
        merger.add("a", chunk(number, request_record(number)))
    assert merger.journal.dropped == 20
    merger.merge(30)
    assert merger.journal.dropped + len(merger.journal) == 30


def test_new_records_displace_old_entries() -> None:
    merger = JournalMerger(Journal(3 * ENTRY_BYTES), 0.0)
    merger.add("a", chunk(1, note_record(1), note_record(2), note_record(3)))
    merger.merge(3)
    merger.add("a", chunk(2, note_record(4, "x" * ENTRY_BYTES)))
    assert noted(merger) == [3]
    assert merger.journal.dropped == 2


def test_clear_drops_entries_and_records() -> None:
    merger = JournalMerger(Journal(), 0.0)
    merger.add("a", chunk(1, note_record(1), note_record(9)))
    merger.merge(1)
    merger.add("a", chunk(2, note_record(2)))
    merger.clear()
    merger.merge(100)
    assert (noted(merger), merger.journal.dropped) == ([], 0)
