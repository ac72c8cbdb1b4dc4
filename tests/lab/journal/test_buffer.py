"""A buffer hands over all records once, in order, within its memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.journal.buffer import PART_BYTES, RECORD_BYTES, JournalBuffer
from minibroker.lab.journal.records import SENT_TIMES, entry_of, split
from tests.lab.journal.records_of_tests import count, exchange, noted, response, times


@given(
    st.lists(st.one_of(st.none(), st.integers(1, 1000)), max_size=60),
    st.integers(4 * RECORD_BYTES, 20 * RECORD_BYTES),
)
def test_buffer_of_any_records_loses_only_the_oldest_and_counts_them(
    steps: list[int | None], bytes_max: int
) -> None:
    word = count()
    buffer = JournalBuffer(1000, word, bytes_max)
    arrived: list[int] = []
    added = dropped = received = 0
    for step in [*steps, *[None] * len(steps)]:
        if step is None:
            chunk = buffer.take(received, bytes_max // 2)
            received = chunk.number
            dropped += chunk.dropped
            assert chunk.first == len(arrived) + dropped
            arrived += times(chunk)
            assert chunk.end == len(arrived) + dropped
            assert chunk.has_more == bool(len(buffer))
        else:
            added += 1
            buffer.add(noted(added, "x" * step), step)
            assert len(buffer) <= bytes_max + 1000 + RECORD_BYTES
    assert arrived == sorted(set(arrived))
    assert len(arrived) + dropped == added == word[0]
    assert not len(buffer)


def test_chunk_whose_receipt_is_unknown_is_handed_over_again() -> None:
    buffer = JournalBuffer(0, count())
    buffer.add(noted(1))
    first = buffer.take()
    buffer.add(noted(2))
    assert buffer.take(0) == first
    assert buffer.take(first.number - 1) == first
    second = buffer.take(first.number)
    assert times(second) == [2]
    assert second.number != first.number


def test_numbers_of_buffers_started_later_are_different() -> None:
    first, second = (JournalBuffer(at, count()) for at in (1_000_000, 2_000_000))
    assert first.take().number != second.take().number


def test_large_records_are_handed_over_one_by_one() -> None:
    buffer = JournalBuffer(0, count())
    for time_ns in (1, 2):
        buffer.add(noted(time_ns, "x" * PART_BYTES), PART_BYTES)
    first = buffer.take(0, 100)
    assert (times(first), first.has_more) == ([1], True)
    second = buffer.take(first.number, 100)
    assert (times(second), second.has_more) == ([2], False)


def test_exchange_that_is_dropped_counts_as_two_entries() -> None:
    buffer = JournalBuffer(0, count(), 1)
    for _ in range(2):
        buffer.add_expected(exchange(1, 2), 0, 2)
    chunk = buffer.take()
    assert (chunk.dropped, chunk.first, chunk.end) == (2, 2, 4)


def test_entries_are_counted_before_they_are_added() -> None:
    word = count()
    buffer = JournalBuffer(0, word)
    buffer.expect(1)
    buffer.expect(1)
    assert word[0] == 2
    buffer.add(noted(1))
    assert word[0] == 3
    buffer.add_expected(exchange(2, 3), 0, 2)
    assert word[0] == 3
    assert buffer.take().end == 3


def test_expected_entries_that_never_happened_are_not_counted_after_the_next_chunk() -> None:
    word = count()
    buffer = JournalBuffer(0, word)
    buffer.expect(1)
    buffer.take()
    assert word[0] == 0


def test_buffer_of_the_next_process_continues_after_all_that_was_recorded() -> None:
    word = count()
    former = JournalBuffer(0, word)
    former.add(noted(1))
    former.expect(1)
    later = JournalBuffer(50, word)
    later.add(noted(60))
    chunk = later.take()
    assert (chunk.first, chunk.end, chunk.since_ns, chunk.dropped) == (2, 3, 50, 0)


def test_response_that_is_sent_later_has_its_times() -> None:
    buffer = JournalBuffer(0, count())
    buffer.add(noted(1))
    record = response(2, is_sent=False)
    buffer.add(record)
    record[SENT_TIMES] = 7_000_000, 8_000_000, 9_000_000
    (part,) = buffer.take().parts
    _, (_, kind, found) = split(part.packed)
    stages = entry_of(kind, found, "p", 0.0).stages
    assert (stages["network"], stages["send"], stages["total"]) == (7.0, 8.0, 9.0)


def test_all_records_are_taken_also_those_that_may_have_arrived() -> None:
    buffer = JournalBuffer(0, count(), 10 * PART_BYTES)
    buffer.add(noted(1))
    buffer.take()
    buffer.add(noted(2))
    assert [each for chunk in buffer.take_all(0) for each in times(chunk)] == [1, 2]
