"""What a proxy records for the journal: connections, requests, responses and fired rules.

Owns the records of one connection, and what the journal needs of the process. It must never know
how the journal is kept or read. Invariant: a request is recorded before it is passed on, and a
response before its first byte is sent to the client, as the client gets it; SASL tokens and
frames that are large or may contain secrets are not kept. While the journal is off, it costs a
comparison a frame.
"""

from __future__ import annotations

import struct
import time
from typing import Any, Final

import trio

from minibroker.broker.process.journal_counts import JournalCounts
from minibroker.lab.faults.fault_rule import ActiveRule
from minibroker.lab.journal.entries import FRAME_BYTES_MAX, EntryKind, may_have_secrets
from minibroker.lab.journal.records import (
    NO_HEADER,
    REQUEST_KIND,
    RESPONSE_KIND,
    UNKNOWN,
    JournalBuffer,
    NoteHeader,
    note_record,
    peer_of,
)
from minibroker.lab.proxy.exchange import ProxiedRequest, decode_response
from minibroker.runtime.clock import SharedClock
from minibroker_protocol import registry
from minibroker_protocol.errors import ProtocolError
from minibroker_protocol.wire import RequestHeader, decode_request_header, decode_response_header

ROLE: Final = "proxy"

_FIXED_BYTES: Final = 8
_INT32: Final = struct.Struct(">i")
_THROTTLE: Final = "throttle_time_ms"


class ProxyClock:
    """The clock of a proxy: that of its event loop, with the time since 1970."""

    def __init__(self) -> None:
        self.epoch_s: Final = SharedClock().wall_ms() / 1000 - trio.current_time()
        self.now: Final = trio.current_time
        self.real_s: Final = trio.current_time
        self.sleep_real: Final = trio.sleep


class JournaledProcess:
    """What the journal needs of this process."""

    def __init__(self) -> None:
        self.name: Final = ROLE
        self.clock: Final = ProxyClock()
        self.journal: JournalBuffer | None = None
        """None while the journal is off."""
        self.journal_counts: Final = JournalCounts([ROLE])

    def switch(self, journal: JournalBuffer | None) -> None:
        """Record into a journal from now on, or stop."""
        self.journal = journal


class ConnectionRecorder:
    """Records what happens on one connection."""

    def __init__(
        self, process: JournaledProcess, number: int, client: tuple[str, int], listener: str
    ) -> None:
        self._process = process
        self._peer = peer_of(number, *client)
        self._listener = listener

    def opened(self) -> None:
        """Record that the connection was opened."""
        self._note(EntryKind.CONNECTION_OPENED, {"listener": self._listener})

    def closed(self, reason: str, text: str, client_id: str | None) -> None:
        """Record that the connection was closed."""
        details = {"listener": self._listener, "reason": reason, "text": text}
        self._note(EntryKind.CONNECTION_CLOSED, details, (None, None, None, client_id))

    def fired(
        self, active: ActiveRule, header: RequestHeader | None, client_id: str | None
    ) -> None:
        """Record that a rule fired: for a request with this header, or for the connection."""
        details = {"rule": active.id, "action": active.rule.action.name}
        plain = (
            (None, None, None, client_id)
            if header is None
            else (int(header.api_key), *header[1:3], header.client_id)
        )
        self._note(EntryKind.FAULT, details, plain)

    def request(self, request: ProxiedRequest, frame: bytes) -> ProxiedRequest:
        """Record a request that was received, and return it with what its response needs."""
        journal = self._process.journal
        if journal is None:
            return request
        now_ns = time.perf_counter_ns()
        client_id, end = (None, 0) if request.is_token else _header(frame)
        is_whole = _is_kept(request, frame)
        kept = frame if is_whole else frame[:end]
        now = self._process.clock.now()
        record = (REQUEST_KIND, now_ns, now, self._peer, len(frame), kept, is_whole)
        journal.add(record, len(kept))
        return request._replace(received_ns=now_ns, client_id=client_id)

    def response(self, request: ProxiedRequest, frame: bytes) -> None:
        """Record a response that will be sent."""
        journal = self._process.journal
        if journal is None:
            return
        now_ns = time.perf_counter_ns()
        is_whole = _is_kept(request, frame)
        key, version = request.api_key, request.version
        header: NoteHeader = (key, version, request.correlation_id, request.client_id)
        record = [
            RESPONSE_KIND,
            now_ns,
            self._process.clock.now(),
            self._peer,
            len(frame),
            frame if is_whole else None,
            NO_HEADER if request.is_token else header,
            UNKNOWN if request.is_token else throttle_time_ms(key, version, frame),
            *(UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN),
            now_ns - request.received_ns if request.received_ns else UNKNOWN,
        ]
        journal.add(record, len(frame) if is_whole else 0)

    def _note(
        self, kind: EntryKind, details: dict[str, Any], header: NoteHeader | None = None
    ) -> None:
        journal = self._process.journal
        if journal is not None:
            now_ns, now = time.perf_counter_ns(), self._process.clock.now()
            record = note_record(now_ns, now, kind.value, details, peer=self._peer, header=header)
            journal.add(record, len(record[-1]))


def throttle_time_ms(api_key: int, version: int, frame: bytes) -> int:
    """The throttle time in a response; `UNKNOWN` if it has none or cannot be read."""
    try:
        schema = registry.schema(api_key)
        fields = [item for item in schema.response.__fields__ if item.versions.has(version)]
        names = [item.name for item in fields]
        if _THROTTLE not in names or not schema.response.__versions__.has(version):
            return UNKNOWN
        if names[0] == _THROTTLE:
            _, at = decode_response_header(frame, api_key, version)
            return int(_INT32.unpack_from(frame, at)[0])
        response, _, _ = decode_response(api_key, version, frame)
    except (ProtocolError, struct.error):
        return UNKNOWN
    return int(getattr(response, _THROTTLE, UNKNOWN))


def _is_kept(request: ProxiedRequest, frame: bytes) -> bool:
    """Whether a frame of a request or its response is kept; of tokens, only the size is."""
    is_secret = request.is_token or may_have_secrets(request.api_key)
    return not is_secret and len(frame) <= FRAME_BYTES_MAX


def _header(frame: bytes) -> tuple[str | None, int]:
    """The client id of a request, and the end of its header.

    Only that of its fixed part if the rest is not readable.
    """
    try:
        header, end = decode_request_header(frame)
    except ProtocolError:
        return None, _FIXED_BYTES
    return header.client_id, end
