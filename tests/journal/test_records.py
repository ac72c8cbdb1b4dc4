"""Records become the entries of what was recorded."""

from __future__ import annotations

import pytest

from minibroker.journal.entries import EntryKind, JournalEntry, decoded
from minibroker.journal.records import entry_of, pack_note, pack_peer, split
from tests.journal.records_of_tests import (
    ANSWER,
    FRAME,
    PEER,
    exchange_record,
    note_record,
    request_record,
    response_record,
)

STAGES = {"queue": 1.0, "execution": 2.0, "network": 3.0, "send": 4.0, "total": 5.0}


def entries(packed: bytes, client_ids: dict[str, str | None] | None = None) -> list[JournalEntry]:
    known = {} if client_ids is None else client_ids
    return [entry_of(kind, record, "p", 10.0, known) for _, kind, record in split(packed)]


def test_request_becomes_an_entry_with_its_header() -> None:
    (entry,) = entries(request_record(1))
    assert (entry.kind, entry.role, entry.clock_ms) == (EntryKind.REQUEST, "p", 11_500.0)
    assert (entry.connection, entry.address, entry.client_id) == ("5", "127.0.0.1:1234", "c")
    assert (entry.api, entry.version, entry.correlation_id) == ("Heartbeat", 4, 7)
    assert (entry.frame, entry.frame_bytes) == (FRAME, 99)


def test_header_alone_becomes_an_entry_without_a_frame() -> None:
    (entry,) = entries(request_record(1, FRAME[:13], is_whole=False))
    assert (entry.api, entry.client_id, entry.frame) == ("Heartbeat", "c", None)


@pytest.mark.parametrize("frame", [b"", b"\0\1", b"\x7f\0\0\1\0\0\0\2", b"\0\0\0\7\0\0\0\2\0\x09x"])
def test_request_that_is_not_readable_becomes_an_entry(frame: bytes) -> None:
    (entry,) = entries(request_record(1, frame))
    assert (entry.client_id, entry.frame) == (None, frame)
    assert entry.correlation_id == (2 if len(frame) >= 8 else None)


def test_response_becomes_an_entry_with_the_client_id_of_the_request() -> None:
    _, entry = entries(request_record(1) + response_record(2))
    assert (entry.kind, entry.client_id, entry.api) == (EntryKind.RESPONSE, "c", "Heartbeat")
    assert (entry.version, entry.correlation_id, entry.throttle_time_ms) == (4, 7, 100)
    assert entry.stages == STAGES
    assert decoded(entry) == {"throttle_time_ms": 0, "error_code": 27}


def test_response_that_was_not_sent_lacks_the_stages_that_follow() -> None:
    (entry,) = entries(response_record(2, is_kept=False, is_sent=False))
    assert entry.stages == {"queue": 1.0, "execution": 2.0}
    assert (entry.client_id, entry.frame, entry.frame_bytes) == (None, None, len(ANSWER))


def test_exchange_becomes_a_request_and_a_response() -> None:
    assert [time_ns for time_ns, _, _ in split(exchange_record(7, 9))] == [7, 9]
    request, response = entries(exchange_record(7, 9))
    assert (request.kind, request.frame) == (EntryKind.REQUEST, FRAME)
    assert (response.kind, response.frame) == (EntryKind.RESPONSE, ANSWER)
    assert (response.client_id, response.correlation_id) == ("c", 7)
    assert response.stages == STAGES


def test_note_becomes_an_entry_with_its_details() -> None:
    details = {"rule": "1", "action": "delay"}
    packed = pack_note(1, 1.5, "fault", details, peer=PEER, header=(12, 4, 7, "c"))
    (entry,) = entries(packed)
    assert (entry.kind, entry.details) == (EntryKind.FAULT, details)
    assert (entry.api, entry.version, entry.correlation_id) == ("Heartbeat", 4, 7)
    assert (entry.connection, entry.client_id) == ("5", "c")
    assert entries(note_record(1))[0].connection is None


def test_closed_connection_is_forgotten() -> None:
    client_ids: dict[str, str | None] = {}
    entries(request_record(1), client_ids)
    assert client_ids == {"5": "c"}
    entries(pack_note(2, 1.5, "connection_closed", {}, peer=PEER), client_ids)
    assert client_ids == {}


def test_address_of_version_6_has_brackets() -> None:
    (entry,) = entries(pack_note(1, 0.0, "fault", {}, peer=pack_peer(1, "::1", 80)))
    assert entry.address == "[::1]:80"
