"""Records as processes make them."""

from __future__ import annotations

from minibroker.journal.records import (
    EXCHANGE,
    EXCHANGE_KIND,
    REQUEST,
    REQUEST_KIND,
    RESPONSE,
    RESPONSE_KIND,
    UNKNOWN,
    pack_note,
    pack_peer,
)
from protocol.framing import SIZE_BYTES
from tests.journal.entries_of_tests import request_entry, response_entry

FRAME = request_entry().frame or b""
ANSWER = response_entry(27).frame or b""
PEER = pack_peer(5, "127.0.0.1", 1234)


def request_record(time_ns: int, frame: bytes = FRAME, *, is_whole: bool = True) -> bytes:
    """A request."""
    size = REQUEST.size + len(PEER) + len(frame)
    head = REQUEST.pack(size, REQUEST_KIND, time_ns, 1.5, 99, len(PEER), is_whole)
    return head + PEER + frame


def response_record(time_ns: int, *, is_kept: bool = True, is_sent: bool = True) -> bytes:
    """Its response."""
    frame = ANSWER if is_kept else b""
    times = (3_000_000, 4_000_000, 5_000_000) if is_sent else (UNKNOWN,) * 3
    head = RESPONSE.pack(
        RESPONSE.size + len(PEER) + len(frame),
        *(RESPONSE_KIND, time_ns, 1.5, len(ANSWER), len(PEER), is_kept),
        *(12, 4, 7, 100, 1_000_000, 2_000_000, *times),
    )
    return head + PEER + frame


def exchange_record(time_ns: int, answer_ns: int) -> bytes:
    """A request with its response."""
    head = EXCHANGE.pack(
        EXCHANGE.size + len(PEER) + len(FRAME) + SIZE_BYTES + len(ANSWER),
        *(EXCHANGE_KIND, time_ns, 1.5, len(FRAME), len(PEER), len(FRAME), True),
        *(answer_ns, len(ANSWER), True, 100),
        *(1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000),
    )
    return head + PEER + FRAME + len(ANSWER).to_bytes(SIZE_BYTES, "big") + ANSWER


def note_record(time_ns: int, text: str = "") -> bytes:
    """A note."""
    return pack_note(time_ns, 1.5, "clock", {"to": text or time_ns})
