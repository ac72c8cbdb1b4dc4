"""What processes record, before it becomes entries: cheap tuples, kept until they are handed over.

Owns the layout of records, the entries that they become, and the memory of those that one process
has not handed over yet. It must never know a connection or a clock. Invariants: a record starts
with its kind and its time, by which the records of all processes are merged; what costs more than a
microsecond, such as decoding a header, is left to whoever reads the journal. Adding a record never
waits and never packs it, and memory is bounded by dropping the oldest records. Every entry has a
position among all entries of its role, from 0, and a chunk says the position of its first one, so
that each entry that is missing before it is known, also those of a former process. A chunk whose
receipt is unknown is handed over again, so that none is lost or counted twice.

Records consist of what ``marshal`` packs, so they are plain tuples or lists, and named only to be
read; packed ones are no objects that the garbage collector would visit again and again. For
processes of one run only, because ``marshal`` differs between Python versions.
"""

from __future__ import annotations

import marshal
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker.lab.journal.entries import EntryKind, JournalEntry, api_name
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.framing import SIZE_BYTES
from minibroker_protocol.wire import decode_request_header

Record: TypeAlias = tuple[Any, ...] | list[Any]
"""One of the named tuples below as a plain tuple or list."""

Peer: TypeAlias = tuple[int, str]
"""Number of the connection; host and port of the client."""

NoteHeader: TypeAlias = tuple[int | None, int | None, int | None, str | None]
"""API key, version, correlation id and client id."""

UNKNOWN: Final = -1
REQUEST_KIND, RESPONSE_KIND, NOTE_KIND, EXCHANGE_KIND = 1, 2, 3, 4
ANSWER_KIND: Final = 5
"""The response in an exchange; no record has this kind."""

STAGES: Final = ("queue", "execution", "network", "send", "total")
NO_HEADER: Final[NoteHeader] = (None, None, None, None)
_FORMAT: Final = 2
"""Of ``marshal``: without references, which take longer to find than they save."""


class RequestRecord(NamedTuple):
    """A request. Times are in ns of the machine's monotonic clock, in all records."""

    kind: int
    time_ns: int
    now: float
    """Seconds of the broker's clock."""
    peer: Peer
    size: int
    """Size of the frame, without its size field."""
    kept: bytes
    """The frame, or only its header."""
    is_whole: bool


class ResponseRecord(NamedTuple):
    """A response; a list, so that its last three times can be set when it was sent."""

    kind: int
    time_ns: int
    now: float
    peer: Peer
    size: int
    frame: bytes | None
    header: NoteHeader
    """Of the request."""
    throttle_ms: int
    queue_ns: int
    execution_ns: int
    network_ns: int
    """`UNKNOWN` until the response is sent, as the two below."""
    send_ns: int
    total_ns: int


SENT_TIMES: Final = slice(-3, None)
"""The times of a response that are known when it was sent."""


class ExchangeRecord(NamedTuple):
    """A request that was answered at once. Both entries have the same time of the broker's clock.

    The first fields are those of a request, the last ones those of a response.
    """

    kind: int
    time_ns: int
    now: float
    peer: Peer
    size: int
    kept: bytes
    is_whole: bool
    answer_ns: int
    answer_bytes: int
    answer: bytes | None
    """The frame of the response with its size field."""
    throttle_ms: int
    queue_ns: int
    execution_ns: int
    network_ns: int
    send_ns: int
    total_ns: int


_EXCHANGED_REQUEST: Final = len(RequestRecord._fields)
_ANSWER_NS_AT: Final = ExchangeRecord._fields.index("answer_ns")
_TIMES: Final = slice(-len(STAGES), None)


class PackedRecords(NamedTuple):
    """Packed records, the number of their entries, and the time of the last record."""

    packed: bytes
    entries: int
    last_ns: int


def peer_of(number: int, host: str, port: int) -> Peer:
    """Return a connection as it is in records."""
    return number, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def note_record(
    time_ns: int,
    now: float,
    kind: str,
    details: dict[str, Any],
    *,
    peer: Peer | None = None,
    header: NoteHeader | None = None,
) -> Record:
    """Return the record of anything but a request or response."""
    # Packed at once: an error, or a change of the details, belongs to the caller that records them.
    return NOTE_KIND, time_ns, now, marshal.dumps((kind, peer, header, details))


def pack(records: Sequence[Record], entries: int) -> PackedRecords:
    """Pack records of so many entries."""
    plain: list[Any] = list(records)
    return PackedRecords(marshal.dumps(plain, _FORMAT), entries, records[-1][1])


def split(packed: bytes) -> Iterator[tuple[int, int, Record]]:
    """Yield the time and kind of each entry in packed records, with its record."""
    for record in marshal.loads(packed):  # noqa: S302 - of this broker
        kind, time_ns = record[:2]
        yield time_ns, kind, record
        if kind == EXCHANGE_KIND:
            yield record[_ANSWER_NS_AT], ANSWER_KIND, record


def entry_of(kind: int, record: Record, role: str, epoch_s: float) -> JournalEntry:
    """Return the entry of a kind in a record, without a sequence.

    ``epoch_s`` are the seconds to add to the broker's clock for seconds since 1970.
    """
    origin = round((record[2] + epoch_s) * 1000, 3), role
    if kind == NOTE_KIND:
        name, peer, header, details = marshal.loads(record[3])  # noqa: S302 - of this broker
        return _entry(EntryKind(name), origin, peer, header or NO_HEADER, details=details)
    if kind == REQUEST_KIND:
        return _request_entry(origin, RequestRecord(*record))
    if kind == EXCHANGE_KIND:
        return _request_entry(origin, RequestRecord(*record[:_EXCHANGED_REQUEST]))
    return _response_entry(origin, _response(kind, record))


def _request_entry(origin: tuple[float, str], request: RequestRecord) -> JournalEntry:
    return _entry(
        EntryKind.REQUEST,
        origin,
        request.peer,
        _header(request.kept),
        frame_bytes=request.size,
        frame=request.kept if request.is_whole else None,
    )


def _response(kind: int, record: Record) -> ResponseRecord:
    if kind == RESPONSE_KIND:
        return ResponseRecord(*record)
    found = ExchangeRecord(*record)
    return ResponseRecord(
        kind,
        found.answer_ns,
        found.now,
        found.peer,
        found.answer_bytes,
        None if found.answer is None else found.answer[SIZE_BYTES:],
        _header(found.kept),
        found.throttle_ms,
        *record[_TIMES],
    )


def _response_entry(origin: tuple[float, str], response: ResponseRecord) -> JournalEntry:
    times = (
        response.queue_ns,
        response.execution_ns,
        response.network_ns,
        response.send_ns,
        response.total_ns,
    )
    return _entry(
        EntryKind.RESPONSE,
        origin,
        response.peer,
        response.header,
        throttle_time_ms=None if response.throttle_ms == UNKNOWN else response.throttle_ms,
        stages={
            name: round(time_ns / 1e6, 3)
            for name, time_ns in zip(STAGES, times, strict=True)
            if time_ns != UNKNOWN
        },
        frame_bytes=response.size,
        frame=response.frame,
    )


def _entry(
    kind: EntryKind,
    origin: tuple[float, str],
    peer: Peer | None,
    header: NoteHeader,
    **rest: Any,
) -> JournalEntry:
    """An entry with what all have; ``origin`` is the time of the clock in ms and the role."""
    clock_ms, role = origin
    connection, address = (None, None) if peer is None else (str(peer[0]), peer[1])
    key, version, correlation_id, client_id = header
    return JournalEntry(
        sequence=0,
        clock_ms=clock_ms,
        kind=kind,
        role=role,
        connection=connection,
        client_id=client_id,
        address=address,
        api=None if key is None else api_name(key),
        version=version,
        correlation_id=correlation_id,
        **rest,
    )


def _header(frame: bytes) -> NoteHeader:
    try:
        header, _ = decode_request_header(frame)
    except (DecodeError, UnsupportedVersion):
        if len(frame) < 8:
            return NO_HEADER
        key, version, correlation_id = frame[:2], frame[2:4], frame[4:8]
        return _number(key), _number(version), _number(correlation_id), None
    return header.api_key, header.api_version, header.correlation_id, header.client_id


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Memory of the records that a process keeps; they are fetched four times a second."""

CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of the records that are handed over at once."""

PART_BYTES: Final = 256 * 1024
"""Size of the records that are packed and dropped together."""

RECORD_BYTES: Final = 256
"""Estimate of the memory of a record without frames."""


@dataclass(frozen=True, slots=True)
class JournalChunk:
    """Records of one process, in order."""

    number: int
    """Different for every chunk of all processes, also after a restart."""
    parts: tuple[PackedRecords, ...]
    first: int
    """Position of the first entry: the number of entries that its role recorded before it."""
    since_ns: int
    """A time after all entries before the first one and before all others."""
    dropped: int
    """Entries that the process dropped since the last chunk."""
    has_more: bool
    """Whether another chunk is ready."""

    @property
    def end(self) -> int:
        """The position after the last entry."""
        return self.first + sum(part.entries for part in self.parts)


class JournalBuffer:
    """The records of one process."""

    def __init__(
        self, started_ns: int, count: memoryview[int], bytes_max: int = BUFFER_BYTES_MAX
    ) -> None:
        """``started_ns`` is the current time of records.

        ``count`` is the word of ``JournalCounts`` with the number of entries that this role has
        recorded, in former processes too; ``bytes_max`` is the limit of memory.
        """
        self._bytes_max = bytes_max
        self._part_bytes = min(PART_BYTES, bytes_max // 2)
        self._count = count
        self._counted = self._recorded = self._packed = self._first = count[0]
        """Positions: the next one that is not expected, the next entry, the first one in no part,
        the first one that is kept.
        """
        self._open: list[Record] = []
        self._open_bytes = 0
        """Estimate of their memory."""
        self._parts: deque[PackedRecords] = deque()
        self._bytes = 0
        """Memory of the parts."""
        self._dropped = 0
        self._since_ns = self._number = started_ns
        self._sent: JournalChunk | None = None
        """The last chunk, until its receipt is known."""

    def __len__(self) -> int:
        """Memory of the records that are not in a chunk."""
        return self._bytes + self._open_bytes

    def expect(self, entries: int) -> None:
        """Count entries that ``add_expected`` will add in this step, before they happen.

        A process that is killed in between has lost them.
        """
        # Written only, because reading shared memory takes as long again.
        self._counted = counted = self._counted + entries
        self._count[0] = counted

    def add(self, record: Record, frame_bytes: int = 0) -> None:
        """Add a record of one entry, whose frames have a size.

        A list may be changed until it is packed.
        """
        self.expect(1)
        self.add_expected(record, frame_bytes, 1)

    def add_expected(self, record: Record, frame_bytes: int, entries: int) -> None:
        """Do the same with a record whose entries are counted already."""
        self._recorded += entries
        self._open.append(record)
        self._open_bytes += RECORD_BYTES + frame_bytes
        if self._open_bytes > self._part_bytes:
            self._close_part()

    def _close_part(self) -> None:
        """Pack the open records, and drop the oldest parts if another one would be too much."""
        if not self._open:
            return
        part = pack(self._open, self._recorded - self._packed)
        self._packed = self._recorded
        self._parts.append(part)
        self._bytes += len(part.packed)
        self._open = []
        self._open_bytes = 0
        while self._bytes + self._part_bytes > self._bytes_max and len(self._parts) > 1:
            oldest = self._parts.popleft()
            self._bytes -= len(oldest.packed)
            self._dropped += oldest.entries
            self._first += oldest.entries
            self._since_ns = oldest.last_ns

    def take_all(self, received: int) -> list[JournalChunk]:
        """Return all records, also those of which it is unknown whether they arrived."""
        chunks = [self.take(received)]
        while chunks[-1].parts:
            chunks.append(self.take(chunks[-1].number))
        return chunks

    def take(self, received: int = 0, bytes_max: int = CHUNK_BYTES_MAX) -> JournalChunk:
        """Return the oldest records, of at most so many bytes unless one part has more.

        ``received`` is the number of the last chunk that arrived; if it is not the last one that
        was returned, that one is returned again.
        """
        if self._sent is not None and self._sent.number != received:
            return self._sent
        self._close_part()
        self._count[0] = self._counted = self._recorded  # What else was expected never will be.
        taken: list[PackedRecords] = []
        size = 0
        while self._parts and (not taken or size + len(self._parts[0].packed) <= bytes_max):
            taken.append(self._parts.popleft())
            size += len(taken[-1].packed)
        self._bytes -= size
        self._number += 1
        chunk = self._sent = JournalChunk(
            self._number,
            tuple(taken),
            self._first,
            self._since_ns,
            self._dropped,
            bool(self._parts),
        )
        self._first = chunk.end
        self._dropped = 0
        if taken:
            self._since_ns = taken[-1].last_ns
        return chunk
