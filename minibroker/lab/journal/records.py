"""What processes record, before it becomes entries: tuples, cheap to create, to keep and to send.

Owns the layout of records and the entries that they become. It must never know a connection or a
clock. Invariant: a record starts with its kind and its time, by which the records of all processes
are merged; what costs more than a microsecond, such as decoding a header, is left to whoever reads
the journal. Records consist of what ``marshal`` packs, so they are plain tuples or lists, and named
only to be read; packed ones are no objects that the garbage collector would visit again and again.
For processes of one run only, because ``marshal`` differs between Python versions.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker.lab.journal.entries import EntryKind, JournalEntry, api_name
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.framing import SIZE_BYTES
from minibroker_protocol.headers import decode_request_header

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
    """The response in a record."""
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
