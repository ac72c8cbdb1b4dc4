"""Records the requests and responses of a processor for the journal.

Owns what of a connection, a request and a response is recorded. It must never decode a body.
Invariant: a request is recorded before it is executed, and a response before its first byte is
sent, or counted before and recorded in the same step, so a client that has seen a response finds
both in the journal, or a loss if the process was killed. Frames that are large or may contain
secrets are not kept; of requests that authenticate only the header is, and their responses have an
empty ``auth_bytes``. Kafka's ``RequestChannel`` logs a request after its response.
"""

from __future__ import annotations

import marshal
import os
import time
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from minibroker.broker.log.data_directory import JOURNAL_FILE
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.network.client_connection import LENGTH_BYTES
from minibroker.broker.network.request_observer import RequestObserver
from minibroker.broker.process.environment import NotedClient, note
from minibroker.lab.journal.entries import (
    FRAME_BYTES_MAX,
    EntryKind,
    JournalEntry,
    may_have_secrets,
)
from minibroker.lab.journal.records import (
    EXCHANGE_KIND,
    REQUEST_KIND,
    RESPONSE_KIND,
    SENT_TIMES,
    UNKNOWN,
    JournalChunk,
    NoteHeader,
    PackedRecords,
    Peer,
    peer_of,
)
from minibroker_protocol.compiler import encode
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from minibroker_protocol.registry import ApiKey, throttle_versions
from minibroker_protocol.wire import decode_request_header, encode_response_header

if TYPE_CHECKING:
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.quota_stage import RequestCost
    from minibroker.broker.process.environment import Environment
    from minibroker.lab.faults.fault_rule import ActiveRule
    from minibroker.lab.journal.records import JournalBuffer
    from minibroker.runtime.arena import Block
    from minibroker_protocol.wire import RequestHeader


_KEY_BYTES: Final = 2
_FIXED_BYTES: Final = 8
"""API key, version and correlation id."""

_ANSWER_BYTES_MAX: Final = FRAME_BYTES_MAX + LENGTH_BYTES
_UNKNOWN_TIMES: Final = (UNKNOWN,) * 4
_AUTHENTICATED: Final = "authenticated"


class _InFlight:
    """The request of a connection, as far as it is recorded."""

    __slots__ = ("answer_ns", "body", "response")

    def __init__(self, body: bytes | Block | None) -> None:
        self.body = body
        """The request while it is not recorded: if it is quick, it is with its response."""
        self.answer_ns = 0
        """When the response was ready to be sent."""
        self.response: list[Any] | None = None
        """The record of the response, if that was recorded before it was sent."""


class RequestJournal(RequestObserver):
    """Records the requests and responses of one processor while the journal is on."""

    def __init__(self, env: Environment, journal: JournalBuffer) -> None:
        self._env = env
        self._now = env.clock.now
        self._journal = journal
        self._in_flight: dict[int, _InFlight] = {}
        """By connection, each of which has at most one request."""
        self._peers: dict[int, Peer] = {}
        """The connections as they are in records."""
        self._authenticating: dict[int, int] = {}
        """When a request that authenticates was received, by connection."""

    # Connections ------------------------------------------------------------------------------

    def opened(self, client: ClientConnection) -> None:
        """Record a new connection."""
        note(self._env, "connection_opened", {"listener": client.caller.listener}, noted(client))

    def closed(self, client: ClientConnection) -> None:
        """Record that a connection was closed, and why."""
        for kept in (self._in_flight, self._peers, self._authenticating):
            kept.pop(client.number, None)
        details = {
            "listener": client.caller.listener,
            "reason": client.close_reason.value,
            "text": client.close_text,
        }
        header = None, None, None, client.client_id
        note(self._env, "connection_closed", details, noted(client), header)

    def authenticated(self, client: ClientConnection, *, is_first: bool) -> None:
        """Record the session of a client that authenticated with SASL."""
        if client.authentication is None:
            return
        name = str(client.caller.principal)
        before = None if is_first else _AUTHENTICATED
        details = {"what": "session", "name": name, "from": before, "to": _AUTHENTICATED}
        header = None, None, None, client.client_id
        note(self._env, "state", details, noted(client), header)

    def _peer(self, client: ClientConnection) -> Peer:
        peer = self._peers.get(client.number)
        if peer is None:
            peer = self._peers[client.number] = peer_of(*noted(client))
        return peer

    # Requests ---------------------------------------------------------------------------------

    def received(self, request: RequestCost, body: bytes | Block) -> None:
        """Count a request and its response, which are recorded together if that is quick."""
        self._journal.expect(2)
        self._in_flight[request.client.number] = _InFlight(body)

    def detained(self, request: RequestCost) -> None:
        """Record a request by itself; its response will be counted when it is known."""
        in_flight = self._in_flight.get(request.client.number)
        if in_flight is None or in_flight.body is None:
            return
        body, in_flight.body = in_flight.body, None
        size = request.request_bytes
        view = body if isinstance(body, bytes) else body.view
        key = int.from_bytes(view[:_KEY_BYTES], "big", signed=True)
        is_whole = size <= FRAME_BYTES_MAX and not may_have_secrets(key)
        kept = bytes(view) if is_whole else _header_bytes(view)
        peer = self._peer(request.client)
        record = (REQUEST_KIND, request.received_ns, self._now(), peer, size, kept, is_whole)
        self._journal.expect(-1)
        self._journal.add_expected(record, len(kept), 1)

    def answering(self, request: RequestCost, frame: bytes | None, size: int) -> None:
        """Record a response that will be sent, unless that can be done afterwards."""
        in_flight = self._in_flight.get(request.client.number)
        if in_flight is None:  # Received before the journal was on.
            in_flight = self._in_flight[request.client.number] = _InFlight(None)
        if in_flight.response is not None:
            return
        in_flight.answer_ns = time.perf_counter_ns()
        if in_flight.body is not None:
            return
        kept = None
        if frame is not None and size <= _ANSWER_BYTES_MAX:
            kept = None if may_have_secrets(request.header.api_key) else frame[LENGTH_BYTES:]
        in_flight.response = [
            RESPONSE_KIND,
            in_flight.answer_ns,
            self._now(),
            self._peer(request.client),
            size - LENGTH_BYTES,
            kept,
            plain_header(request.header),
            _throttle_ms(request),
            request.queue_ns,
            request.io_ns,
            UNKNOWN,
            UNKNOWN,
            UNKNOWN,
        ]
        self._journal.add(in_flight.response, 0 if kept is None else size)

    def sent(self, request: RequestCost, frame: bytes | None) -> None:
        """Record a request and its response together, or add the times of its response."""
        in_flight = self._in_flight.pop(request.client.number, None)
        if in_flight is None:
            return
        if in_flight.response is not None:
            send_ns = request.received_ns + request.total_ns - in_flight.answer_ns
            # Without effect if it was handed over before.
            in_flight.response[SENT_TIMES] = request.network_ns, send_ns, request.total_ns
        elif isinstance(in_flight.body, bytes) and frame is not None:
            self._record_exchange(request, in_flight.body, frame, in_flight.answer_ns)

    def _record_exchange(
        self, request: RequestCost, kept: bytes, frame: bytes, answer_ns: int
    ) -> None:
        """Record a request and its response, which all happened in one step of this process."""
        size, answer_bytes, is_whole = request.request_bytes, len(frame), True
        answer = frame if answer_bytes <= _ANSWER_BYTES_MAX else None
        if size > FRAME_BYTES_MAX or may_have_secrets(request.header.api_key):
            is_whole, kept, answer = False, _header_bytes(kept), None
        received_ns, total_ns = request.received_ns, request.total_ns
        record = (
            EXCHANGE_KIND,
            received_ns,
            self._now(),
            self._peer(request.client),
            size,
            kept,
            is_whole,
            answer_ns,
            answer_bytes - LENGTH_BYTES,
            answer,
            _throttle_ms(request),
            request.owners_ns - request.io_ns,
            request.io_ns,
            request.network_ns,
            received_ns + total_ns - answer_ns,
            total_ns,
        )
        self._journal.add_expected(record, len(kept) + answer_bytes, 2)

    def failed(self, request: RequestCost) -> None:
        """Forget a request that was recorded when it was detained."""
        self._in_flight.pop(request.client.number, None)

    # Authentication ---------------------------------------------------------------------------

    def authentication_received(
        self, client: ClientConnection, frame: memoryview, *, is_token: bool
    ) -> None:
        """Record the header of a request, or the size of a token without one."""
        received_ns = self._authenticating[client.number] = time.perf_counter_ns()
        kept, is_whole = _kept_step(frame, is_token=is_token)
        peer = self._peer(client)
        record = (REQUEST_KIND, received_ns, self._now(), peer, len(frame), kept, is_whole)
        self._journal.add(record, len(kept))

    def authentication_answering(
        self, client: ClientConnection, header: RequestHeader | None, size: int, response: Any
    ) -> None:
        """Record a response without its secret."""
        received_ns = self._authenticating.pop(client.number, None)
        if received_ns is None:
            return
        fields: NoteHeader = (None, None, None, client.client_id)
        frame = None
        if header is not None:
            fields = plain_header(header)
            frame = encode_response_header(
                header.api_key, header.api_version, header.correlation_id
            ) + encode(_without_secret(response), header.api_version)
        now_ns = time.perf_counter_ns()
        times = *_UNKNOWN_TIMES, now_ns - received_ns
        start = RESPONSE_KIND, now_ns, self._now(), self._peer(client)
        self._journal.add((*start, size, frame, fields, UNKNOWN, *times), len(frame or b""))


def note_fault(
    env: Environment, client: ClientConnection, header: RequestHeader | None, active: ActiveRule
) -> None:
    """Record that a fault rule fired for a request, or for a connection."""
    fields = (None, None, None, client.client_id) if header is None else plain_header(header)
    action = active.rule.action
    details: dict[str, Any] = {"rule": active.id, "action": action.name}
    if action.name == "throttle":
        details["mute"] = action.mutes
    note(env, "fault", details, noted(client), fields)


def noted(client: ClientConnection) -> NotedClient:
    """Return a connection as it is in notes."""
    return client.number, client.caller.client_host, client.caller.client_port


def plain_header(header: RequestHeader) -> NoteHeader:
    """Return a header as it is in records."""
    return int(header.api_key), header.api_version, header.correlation_id, header.client_id


def _throttle_ms(cost: RequestCost) -> int:
    """The throttle time in a response; `UNKNOWN` if its version has none."""
    header = cost.header
    if cost.response is None or not throttle_versions(header.api_key).has(header.api_version):
        return UNKNOWN
    return int(cost.response.throttle_time_ms)


def _header_bytes(view: bytes | memoryview) -> bytes:
    """The header of a request; only its fixed part if the rest is not readable."""
    try:
        _, end = decode_request_header(view)
    except (DecodeError, UnsupportedVersion):
        end = _FIXED_BYTES
    return bytes(view[:end])


def _without_secret(response: Any) -> Any:
    if isinstance(response, SaslAuthenticateResponse):
        response = copy(response)
        response.auth_bytes = b""
    return response


def _kept_step(frame: memoryview, *, is_token: bool) -> tuple[bytes, bool]:
    """What is kept of a request that authenticates, and whether that is all."""
    if is_token:
        return b"", False
    try:
        header, end = decode_request_header(frame)
    except (DecodeError, UnsupportedVersion):
        return b"", False  # It may be a token.
    is_whole = header.api_key == ApiKey.API_VERSIONS and len(frame) <= FRAME_BYTES_MAX
    return bytes(frame if is_whole else frame[:end]), is_whole


# ---------- Parts of the journal in files, so that they survive a process that is killed by request
# Owns the files (the records of each role of a killed process, and the journal of a killed
# controller) and their form. It must never know when a process is killed. Invariant: what is read
# is what was written; a file of another start of the broker, or one that cannot be read, has
# nothing, and any other bytes are ``ValueError``. For processes of one run only, as packed records.
# Nothing is synced: a crash of the machine ends the broker and its journal.


T = TypeVar("T")

_ENTRY: Final = tuple(each.name for each in fields(JournalEntry))
_KIND: Final = _ENTRY.index("kind")
_CHUNK: Final = tuple(each.name for each in fields(JournalChunk))
_PARTS: Final = _CHUNK.index("parts")


def saved(entries: Iterable[JournalEntry]) -> bytes:
    """Return entries as bytes."""
    return marshal.dumps([_plain(entry) for entry in entries])


def _plain(entry: JournalEntry) -> list[Any]:
    values: list[Any] = [getattr(entry, name) for name in _ENTRY]
    values[_KIND] = entry.kind.value
    return values


def restored(data: bytes) -> list[JournalEntry]:
    """Return the entries of these bytes. Raises ``ValueError``."""
    return _restored(data, _entry)


def _entry(values: list[Any]) -> JournalEntry:
    values[_KIND] = EntryKind(values[_KIND])
    return JournalEntry(*values)


def saved_chunks(chunks: Iterable[JournalChunk]) -> bytes:
    """Return chunks as bytes."""
    return marshal.dumps([_plain_chunk(chunk) for chunk in chunks])


def _plain_chunk(chunk: JournalChunk) -> list[Any]:
    values: list[Any] = [getattr(chunk, name) for name in _CHUNK]
    values[_PARTS] = [tuple(part) for part in chunk.parts]
    return values


def restored_chunks(data: bytes) -> list[JournalChunk]:
    """Return the chunks of these bytes. Raises ``ValueError``."""
    return _restored(data, _chunk)


def _chunk(values: list[Any]) -> JournalChunk:
    values[_PARTS] = tuple(PackedRecords(*part) for part in values[_PARTS])
    return JournalChunk(*values)


def _restored(data: bytes, make: Callable[[list[Any]], T]) -> list[T]:
    try:
        return [make(values) for values in marshal.loads(data)]  # noqa: S302 - of this broker
    except (EOFError, TypeError, LookupError) as error:
        raise ValueError(f"not a part of a journal: {error}") from None


_RUN_BYTES: Final = 8
_MODE: Final = 0o600


class JournalFiles:
    """The files of one start of a broker."""

    def __init__(self, directory: Path, run: int, log: EventLog) -> None:
        """``run`` identifies the start."""
        self._directory = directory
        self._run = run.to_bytes(_RUN_BYTES, "big")
        self._log = log

    def save_journal(self, entries: Iterable[JournalEntry]) -> None:
        """Write the journal."""
        self._save(JOURNAL_FILE, saved(entries))

    def take_journal(self) -> Sequence[JournalEntry]:
        """Read the journal and remove its file; without one there are no entries."""
        return self._take(JOURNAL_FILE, restored)

    def save_chunks(self, role: str, chunks: Sequence[JournalChunk]) -> None:
        """Write what a role has recorded."""
        self._save(f"{JOURNAL_FILE}-{role}", saved_chunks(chunks))

    def take_chunks(self, role: str) -> Sequence[JournalChunk]:
        """Read what a former process of a role has written, and remove the file."""
        return self._take(f"{JOURNAL_FILE}-{role}", restored_chunks)

    def _save(self, name: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open(os.open(self._directory / name, flags, _MODE), "wb") as file:
                file.write(self._run + data)
        except OSError as error:
            self._log.warning("entries of the journal are lost", file=name, reason=error)

    def _take(self, name: str, read: Callable[[bytes], list[T]]) -> Sequence[T]:
        path = self._directory / name
        try:
            data = path.read_bytes()
            path.unlink()
            return read(data[_RUN_BYTES:]) if data.startswith(self._run) else ()
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            self._log.warning("entries of the journal are lost", file=name, reason=error)
            return ()
