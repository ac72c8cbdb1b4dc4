"""A buffer hands over all records once, in order, within its memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.journal.buffer import JournalBuffer, JournalChunk
from minibroker.journal.records import TIMES, TIMES_AT, entry_of, split
from tests.journal.records_of_tests import exchange_record, note_record, response_record

RECORD_BYTES = len(note_record(1))


def times(chunk: JournalChunk) -> list[int]:
    return [time_ns for time_ns, _, _ in split(chunk.packed)]


@given(
    st.lists(st.one_of(st.none(), st.integers(1, 400)), max_size=60),
    st.integers(RECORD_BYTES, 20 * RECORD_BYTES),
)
def test_buffer_of_any_records_loses_only_the_oldest_and_counts_them(
    steps: list[int | None], bytes_max: int
) -> None:
    buffer = JournalBuffer(1000, bytes_max)
    arrived: list[int] = []
    added = dropped = received = 0
    for step in [*steps, *[None] * len(steps)]:
        if step is None:
            chunk = buffer.take(received, bytes_max // 2)
            received = chunk.number
            dropped += chunk.dropped
            arrived += times(chunk)
            assert not chunk.has_more or len(buffer)
        else:
            added += 1
            buffer.add(note_record(added, "x" * step))
            assert len(buffer) <= bytes_max
    assert arrived == sorted(set(arrived))
    assert len(arrived) + dropped == added
    assert not len(buffer)


def test_chunk_whose_receipt_is_unknown_is_handed_over_again() -> None:
    buffer = JournalBuffer(0)
    buffer.add(note_record(1))
    first = buffer.take()
    buffer.add(note_record(2))
    assert buffer.take(0) == first
    assert buffer.take(first.number - 1) == first
    second = buffer.take(first.number)
    assert times(second) == [2]
    assert second.number != first.number


def test_numbers_of_buffers_started_later_are_different() -> None:
    first, second = JournalBuffer(1_000_000), JournalBuffer(2_000_000)
    assert first.take().number != second.take().number


def test_large_records_are_handed_over_one_by_one() -> None:
    buffer = JournalBuffer(0)
    for time_ns in (1, 2):
        buffer.add(note_record(time_ns, "x" * 500))
    first = buffer.take(0, 100)
    assert (times(first), first.has_more) == ([1], True)
    second = buffer.take(first.number, 100)
    assert (times(second), second.has_more) == ([2], False)


def test_exchange_that_is_dropped_counts_as_two_entries() -> None:
    record = exchange_record(1, 2)
    buffer = JournalBuffer(0, len(record))
    buffer.add(record)
    buffer.add(record)
    assert buffer.take().dropped == 2


def test_amended_response_has_the_times() -> None:
    buffer = JournalBuffer(0)
    buffer.add(note_record(1))
    mark = buffer.mark()
    buffer.add(response_record(2, is_sent=False))
    buffer.amend(mark, TIMES_AT, TIMES.pack(7_000_000, 8_000_000, 9_000_000))
    _, (_, kind, record) = split(buffer.take().packed)
    stages = entry_of(kind, record, "p", 0.0, {}).stages
    assert (stages["network"], stages["send"], stages["total"]) == (7.0, 8.0, 9.0)


def test_response_that_was_handed_over_is_not_amended() -> None:
    buffer = JournalBuffer(0)
    mark = buffer.mark()
    buffer.add(response_record(2, is_sent=False))
    chunk = buffer.take()
    buffer.add(note_record(3))
    buffer.amend(mark, TIMES_AT, TIMES.pack(7, 8, 9))
    assert buffer.take(chunk.number).packed == note_record(3)
