"""Records as processes make them."""

from __future__ import annotations

from minibroker.broker.process.journal_counts import JournalCounts
from minibroker.lab.journal.records import (
    EXCHANGE_KIND,
    REQUEST_KIND,
    RESPONSE_KIND,
    UNKNOWN,
    JournalChunk,
    PackedRecords,
    Record,
    note_record,
    pack,
    peer_of,
    split,
)
from minibroker_protocol.framing import SIZE_BYTES
from tests.lab.journal.entries_of_tests import request_entry, response_entry

FRAME = request_entry().frame or b""
ANSWER = response_entry(27).frame or b""
PEER = peer_of(5, "127.0.0.1", 1234)


def request(time_ns: int, frame: bytes = FRAME, *, is_whole: bool = True) -> Record:
    """A request."""
    return REQUEST_KIND, time_ns, 1.5, PEER, 99, frame, is_whole


def response(time_ns: int, *, is_kept: bool = True, is_sent: bool = True) -> list[object]:
    """Its response."""
    times = (3_000_000, 4_000_000, 5_000_000) if is_sent else (UNKNOWN,) * 3
    frame = ANSWER if is_kept else None
    header = (12, 4, 7, "c")
    start = [RESPONSE_KIND, time_ns, 1.5, PEER, len(ANSWER), frame, header, 100]
    return [*start, 1_000_000, 2_000_000, *times]


def exchange(time_ns: int, answer_ns: int) -> Record:
    """A request with its response."""
    answer = len(ANSWER).to_bytes(SIZE_BYTES, "big") + ANSWER
    start = (EXCHANGE_KIND, time_ns, 1.5, PEER, len(FRAME), FRAME, True)
    times = (1_000_000, 2_000_000, 3_000_000, 4_000_000, 5_000_000)
    return (*start, answer_ns, len(ANSWER), answer, 100, *times)


def noted(time_ns: int, text: str = "") -> Record:
    """A note."""
    return note_record(time_ns, 1.5, "clock", {"to": text or time_ns})


def chunk(number: int, *records: Record, first: int = 0, dropped: int = 0) -> JournalChunk:
    """A chunk with a part for each record, of which the first entry has a position."""
    parts = tuple(packed(each) for each in records)
    return JournalChunk(number, parts, first, 0, dropped, has_more=False)


def packed(*records: Record) -> PackedRecords:
    """Records with the number of their entries."""
    return pack(records, len(records) + sum(each[0] == EXCHANGE_KIND for each in records))


def count() -> memoryview[int]:
    """The count of a buffer."""
    return JournalCounts(["a"]).word("a")


def times(chunk: JournalChunk) -> list[int]:
    """The times of all entries in a chunk."""
    return [time_ns for part in chunk.parts for time_ns, _, _ in split(part.packed)]
