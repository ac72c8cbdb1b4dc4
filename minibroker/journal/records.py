"""What processes record, before it becomes entries: bytes, cheap to create, to keep and to send.

Owns the layout of records and the entries that they become. It must never know a connection or a
clock. Invariant: a record starts with its length, its kind and its time, by which the records of
all processes are merged; what costs more than a microsecond, such as decoding a header, is left to
whoever reads the journal. Bytes instead of objects, because the garbage collector would visit
objects again and again. For processes of one run only, because ``marshal`` differs between Python
versions.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator, MutableMapping, Sequence
from struct import Struct
from typing import Any, Final, TypeAlias

from minibroker.journal.entries import EntryKind, JournalEntry, api_name
from protocol.errors import DecodeError, UnsupportedVersion
from protocol.framing import SIZE_BYTES
from protocol.headers import decode_request_header

HEAD: Final = Struct("<IBqd")
"""Length of the record, kind, nanoseconds of the machine's monotonic clock, seconds of the broker's
clock."""

REQUEST: Final = Struct("<IBqdIB?")
"""The head; size of the frame, size of the peer, and whether the whole frame is kept. The peer and
the frame, or only its header, follow."""

RESPONSE: Final = Struct("<IBqdIB?hhiiqqqqq")
"""The head; size of the frame, size of the peer, whether the frame is kept; API key, version,
correlation id, throttle time in ms; times in ns: queue, execution, network, send, total. The peer
and the frame follow. The last three times are `UNKNOWN` until the response is sent.
"""

EXCHANGE: Final = Struct("<IBqdIBI?qI?iqqqqq")
"""A request that was answered at once: the head; size of its frame, size of the peer, size of what
is kept of the frame, whether that is all; nanoseconds of the response, size of its frame, whether
it is kept, throttle time in ms; times in ns as in a response. The peer and the two frames follow,
that of the response with its size field.
Both entries have the same time of the broker's clock.
"""

TIMES: Final = Struct("<qqq")
TIMES_AT: Final = RESPONSE.size - TIMES.size
"""Position of the last three times in a response."""

UNKNOWN: Final = -1
REQUEST_KIND, RESPONSE_KIND, NOTE_KIND, EXCHANGE_KIND = 1, 2, 3, 4
ANSWER_KIND: Final = 5
"""The response in an exchange; no record has this kind."""

_ANSWER_NS_AT: Final = 8

PEER: Final = Struct("<q")
"""Number of the connection; host and port of the client follow as text."""

PEER_BYTES_MAX: Final = 255

NoteHeader: TypeAlias = tuple[int | None, int | None, int | None, str | None]
"""API key, version, correlation id and client id."""

STAGES: Final = ("queue", "execution", "network", "send", "total")


def pack_peer(number: int, host: str, port: int) -> bytes:
    """Return a connection as it is in records."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return PEER.pack(number) + address.encode()[: PEER_BYTES_MAX - PEER.size]


def pack_note(
    time_ns: int,
    now: float,
    kind: str,
    details: dict[str, Any],
    *,
    peer: bytes = b"",
    header: NoteHeader | None = None,
) -> bytes:
    """Return the record of anything but a request or response."""
    rest: bytes = marshal.dumps((kind, peer, header, details))
    return HEAD.pack(HEAD.size + len(rest), NOTE_KIND, time_ns, now) + rest


def split(packed: bytes | memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """Yield the time and kind of each entry in records, with its record."""
    view, at = memoryview(packed), 0
    while at < len(view):
        size, kind, time_ns, _ = HEAD.unpack_from(view, at)
        record = view[at : at + size]
        yield time_ns, kind, record
        if kind == EXCHANGE_KIND:
            yield EXCHANGE.unpack_from(record)[_ANSWER_NS_AT], ANSWER_KIND, record
        at += size


def entry_of(
    kind: int,
    record: memoryview,
    role: str,
    epoch_s: float,
    client_ids: MutableMapping[str, str | None],
) -> JournalEntry:
    """Return the entry of a kind in a record, without a sequence.

    ``epoch_s`` are the seconds to add to the broker's clock for seconds since 1970. ``client_ids``
    keeps the client ids of open connections, because responses do not contain them.
    """
    clock_ms = round((HEAD.unpack_from(record)[3] + epoch_s) * 1000, 3)
    if kind == NOTE_KIND:
        return _note_entry(record, clock_ms, role, client_ids)
    if kind == REQUEST_KIND:
        size, peer_bytes, is_whole = REQUEST.unpack_from(record)[4:]
        at = REQUEST.size + peer_bytes
        peer, frame = record[REQUEST.size : at], record[at:]
        return _request_entry(clock_ms, role, client_ids, peer, (size, frame, is_whole))
    if kind == RESPONSE_KIND:
        fields = RESPONSE.unpack_from(record)
        size, peer_bytes, is_kept, key, version, correlation_id, *times = fields[4:]
        at = RESPONSE.size + peer_bytes
        connection, address = _peer(record[RESPONSE.size : at])
        header = key, version, correlation_id, client_ids.get(connection)
        shown = bytes(record[at:]) if is_kept else None
        return _response_entry(
            (clock_ms, role), (connection, address), header, (size, shown), times
        )
    size, peer_bytes, frame_bytes, is_whole, _, *rest = EXCHANGE.unpack_from(record)[4:]
    at = EXCHANGE.size + peer_bytes
    peer, frame = record[EXCHANGE.size : at], record[at : at + frame_bytes]
    if kind == EXCHANGE_KIND:
        return _request_entry(clock_ms, role, client_ids, peer, (size, frame, is_whole))
    size, is_kept, *times = rest
    shown = bytes(record[at + frame_bytes + SIZE_BYTES :]) if is_kept else None
    return _response_entry(
        (clock_ms, role), _peer(peer), _header(bytes(frame)), (size, shown), times
    )


def _note_entry(
    record: memoryview, clock_ms: float, role: str, client_ids: MutableMapping[str, str | None]
) -> JournalEntry:
    name, peer, header, details = marshal.loads(record[HEAD.size :])  # noqa: S302 - of this broker
    key, version, correlation_id, client_id = header or (None, None, None, None)
    connection, address = _peer(peer) if peer else (None, None)
    if name == EntryKind.CONNECTION_CLOSED:
        client_ids.pop(connection or "", None)
    return JournalEntry(
        sequence=0,
        clock_ms=clock_ms,
        kind=EntryKind(name),
        role=role,
        connection=connection,
        client_id=client_id,
        address=address,
        api=None if key is None else api_name(key),
        version=version,
        correlation_id=correlation_id,
        details=details,
    )


def _request_entry(
    clock_ms: float,
    role: str,
    client_ids: MutableMapping[str, str | None],
    peer: memoryview,
    sent: tuple[int, memoryview, bool],
) -> JournalEntry:
    size, kept, is_whole = sent
    frame = bytes(kept)
    connection, address = _peer(peer)
    key, version, correlation_id, client_id = _header(frame)
    client_ids[connection] = client_id
    return JournalEntry(
        sequence=0,
        clock_ms=clock_ms,
        kind=EntryKind.REQUEST,
        role=role,
        connection=connection,
        client_id=client_id,
        address=address,
        api=None if key is None else api_name(key),
        version=version,
        correlation_id=correlation_id,
        frame_bytes=size,
        frame=frame if is_whole else None,
    )


def _response_entry(
    origin: tuple[float, str],
    peer: tuple[str, str],
    header: NoteHeader,
    sent: tuple[int, bytes | None],
    times: Sequence[int],
) -> JournalEntry:
    clock_ms, role = origin
    connection, address = peer
    key, version, correlation_id, client_id = header
    throttle_ms, *stages = times
    size, frame = sent
    return JournalEntry(
        sequence=0,
        clock_ms=clock_ms,
        kind=EntryKind.RESPONSE,
        role=role,
        connection=connection,
        client_id=client_id,
        address=address,
        api=None if key is None else api_name(key),
        version=version,
        correlation_id=correlation_id,
        throttle_time_ms=None if throttle_ms == UNKNOWN else throttle_ms,
        stages={
            name: round(time_ns / 1e6, 3)
            for name, time_ns in zip(STAGES, stages, strict=True)
            if time_ns != UNKNOWN
        },
        frame_bytes=size,
        frame=frame,
    )


def _header(frame: bytes) -> NoteHeader:
    try:
        header, _ = decode_request_header(frame)
    except (DecodeError, UnsupportedVersion):
        if len(frame) < 8:
            return None, None, None, None
        key, version, correlation_id = frame[:2], frame[2:4], frame[4:8]
        return _number(key), _number(version), _number(correlation_id), None
    return header.api_key, header.api_version, header.correlation_id, header.client_id


def _number(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _peer(packed: bytes | memoryview) -> tuple[str, str]:
    (number,) = PEER.unpack_from(packed)
    return str(number), str(packed[PEER.size :], "utf-8", "replace")
