"""Records become the entries of what was recorded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.journal.entries import EntryKind, JournalEntry, decoded
from minibroker.lab.journal.records import (
    PART_BYTES,
    RECORD_BYTES,
    SENT_TIMES,
    JournalBuffer,
    Record,
    entry_of,
    note_record,
    peer_of,
    split,
)
from tests.lab.journal.records_of_tests import (
    ANSWER,
    FRAME,
    PEER,
    chunk,
    count,
    exchange,
    noted,
    packed,
    request,
    response,
    times,
)

STAGES = {"queue": 1.0, "execution": 2.0, "network": 3.0, "send": 4.0, "total": 5.0}


def entries(*records: Record) -> list[JournalEntry]:
    return [entry_of(kind, record, "p", 10.0) for _, kind, record in split(packed(*records).packed)]


def test_request_becomes_an_entry_with_its_header() -> None:
    (entry,) = entries(request(1))
    assert (entry.kind, entry.role, entry.clock_ms) == (EntryKind.REQUEST, "p", 11_500.0)
    assert (entry.connection, entry.address, entry.client_id) == ("5", "127.0.0.1:1234", "c")
    assert (entry.api, entry.version, entry.correlation_id) == ("Heartbeat", 4, 7)
    assert (entry.frame, entry.frame_bytes) == (FRAME, 99)


def test_header_alone_becomes_an_entry_without_a_frame() -> None:
    (entry,) = entries(request(1, FRAME[:13], is_whole=False))
    assert (entry.api, entry.client_id, entry.frame) == ("Heartbeat", "c", None)


@pytest.mark.parametrize("frame", [b"", b"\0\1", b"\x7f\0\0\1\0\0\0\2", b"\0\0\0\7\0\0\0\2\0\x09x"])
def test_request_that_is_not_readable_becomes_an_entry(frame: bytes) -> None:
    (entry,) = entries(request(1, frame))
    assert (entry.client_id, entry.frame) == (None, frame)
    assert entry.correlation_id == (2 if len(frame) >= 8 else None)


def test_response_becomes_an_entry_with_the_header_of_the_request() -> None:
    (entry,) = entries(response(2))
    assert (entry.kind, entry.client_id, entry.api) == (EntryKind.RESPONSE, "c", "Heartbeat")
    assert (entry.version, entry.correlation_id, entry.throttle_time_ms) == (4, 7, 100)
    assert entry.stages == STAGES
    assert decoded(entry) == {"throttle_time_ms": 0, "error_code": 27}


def test_response_that_was_not_sent_lacks_the_stages_that_follow() -> None:
    (entry,) = entries(response(2, is_kept=False, is_sent=False))
    assert entry.stages == {"queue": 1.0, "execution": 2.0}
    assert (entry.frame, entry.frame_bytes) == (None, len(ANSWER))


def test_exchange_becomes_a_request_and_a_response() -> None:
    assert times(chunk(1, exchange(7, 9))) == [7, 9]
    sent, answer = entries(exchange(7, 9))
    assert (sent.kind, sent.frame) == (EntryKind.REQUEST, FRAME)
    assert (answer.kind, answer.frame) == (EntryKind.RESPONSE, ANSWER)
    assert (answer.client_id, answer.correlation_id) == ("c", 7)
    assert answer.stages == STAGES


def test_note_becomes_an_entry_with_its_details() -> None:
    details = {"rule": "1", "action": "delay"}
    record = note_record(1, 1.5, "fault", details, peer=PEER, header=(12, 4, 7, "c"))
    (entry,) = entries(record)
    assert (entry.kind, entry.details) == (EntryKind.FAULT, details)
    assert (entry.api, entry.version, entry.correlation_id) == ("Heartbeat", 4, 7)
    assert (entry.connection, entry.client_id) == ("5", "c")
    assert entries(noted(1))[0].connection is None


def test_address_of_version_6_has_brackets() -> None:
    (entry,) = entries(note_record(1, 0.0, "fault", {}, peer=peer_of(1, "::1", 80)))
    assert entry.address == "[::1]:80"


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
