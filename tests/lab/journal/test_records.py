"""Records become the entries of what was recorded."""

from __future__ import annotations

import pytest

from minibroker.lab.journal.entries import EntryKind, JournalEntry, decoded
from minibroker.lab.journal.records import Record, entry_of, note_record, peer_of, split
from tests.lab.journal.records_of_tests import (
    ANSWER,
    FRAME,
    PEER,
    chunk,
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
