"""Records the requests and responses of a processor for the journal.

Owns what of a connection, a request and a response is recorded. It must never decode a body.
Invariant: a request is recorded before it is executed, and a response before its first byte is
sent, or counted before and recorded in the same step, so a client that has seen a response finds
both in the journal, or a loss if the process was killed; frames that are large or may
contain secrets are not kept. Kafka's ``RequestChannel`` logs a request after its response.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from minibroker.broker.network.request_reader import LENGTH_BYTES
from minibroker.broker.process.journal_notes import note
from minibroker.lab.journal.entries import FRAME_BYTES_MAX, SECRET_APIS
from minibroker.lab.journal.records import (
    EXCHANGE_KIND,
    REQUEST_KIND,
    RESPONSE_KIND,
    SENT_TIMES,
    UNKNOWN,
    Peer,
    peer_of,
)
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.headers import decode_request_header
from minibroker_protocol.registry import throttle_versions

if TYPE_CHECKING:
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.request_cost import RequestCost
    from minibroker.broker.process.environment import Environment
    from minibroker.lab.faults.rules import ActiveRule
    from minibroker.runtime.arena import Block
    from minibroker_protocol.headers import RequestHeader

_KEY_BYTES: Final = 2
_FIXED_BYTES: Final = 8
"""API key, version and correlation id."""

_ANSWER_BYTES_MAX: Final = FRAME_BYTES_MAX + LENGTH_BYTES
_SECRET: Final = frozenset(int(key).to_bytes(_KEY_BYTES, "big") for key in SECRET_APIS)
_SECRET_KEYS: Final = frozenset(map(int, SECRET_APIS))
_AUTHENTICATED: Final = "authenticated"


class JournalRecorder:
    """Records the requests and responses of one processor."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._now = env.clock.now

    def request(self, cost: RequestCost, body: bytes | Block) -> None:
        """Record a request that was expected with its response, which will be counted by itself."""
        journal, client, size = self._env.journal, cost.client, cost.request_bytes
        assert journal is not None
        view = body if isinstance(body, bytes) else body.view
        is_whole = size <= FRAME_BYTES_MAX and bytes(view[:_KEY_BYTES]) not in _SECRET
        kept = bytes(view) if is_whole else _header_bytes(view)
        peer = client.journal_peer or peer_in_records(client)
        record = (REQUEST_KIND, cost.received_ns, self._now(), peer, size, kept, is_whole)
        journal.expect(-1)
        journal.add_expected(record, len(kept), 1)

    def response(self, cost: RequestCost, frame: bytes | None, size: int) -> None:
        """Record a response that will be sent.

        ``frame``, which is None if it is not in memory, and ``size`` include the length.
        """
        journal = self._env.journal
        assert journal is not None
        cost.journal_ns = time.perf_counter_ns()
        kept = None
        if frame is not None and size <= _ANSWER_BYTES_MAX:
            kept = None if cost.header.api_key in _SECRET_KEYS else frame[LENGTH_BYTES:]
        cost.journal_record = [
            RESPONSE_KIND,
            cost.journal_ns,
            self._now(),
            cost.client.journal_peer or peer_in_records(cost.client),
            size - LENGTH_BYTES,
            kept,
            _plain(cost.header),
            _throttle_ms(cost),
            cost.queue_ns,
            cost.io_ns,
            UNKNOWN,
            UNKNOWN,
            UNKNOWN,
        ]
        journal.add(cost.journal_record, 0 if kept is None else size)

    def exchange(self, cost: RequestCost, frame: bytes) -> None:
        """Record a request and its response, which was sent since ``cost.journal_ns``.

        Both were expected. ``frame`` includes the length. All happened in one step of this process.
        """
        journal, client, kept = self._env.journal, cost.client, cost.journal_body
        if journal is None or not isinstance(kept, bytes):
            return
        size, answer_bytes, is_whole = cost.request_bytes, len(frame), True
        answer = frame if answer_bytes <= _ANSWER_BYTES_MAX else None
        if size > FRAME_BYTES_MAX or cost.header.api_key in _SECRET_KEYS:
            is_whole, kept, answer = False, _header_bytes(kept), None
        received_ns, journal_ns, total_ns = cost.received_ns, cost.journal_ns, cost.total_ns
        record = (
            EXCHANGE_KIND,
            received_ns,
            self._now(),
            client.journal_peer or peer_in_records(client),
            size,
            kept,
            is_whole,
            journal_ns,
            answer_bytes - LENGTH_BYTES,
            answer,
            _throttle_ms(cost),
            cost.owners_ns - cost.io_ns,
            cost.io_ns,
            cost.network_ns,
            received_ns + total_ns - journal_ns,
            total_ns,
        )
        journal.add_expected(record, len(kept) + answer_bytes, 2)

    def sent(self, cost: RequestCost) -> None:
        """Add the times of a recorded response that was sent, unless it was handed over before."""
        if cost.journal_record is not None:
            send_ns = cost.received_ns + cost.total_ns - cost.journal_ns
            cost.journal_record[SENT_TIMES] = cost.network_ns, send_ns, cost.total_ns


def note_connection(env: Environment, client: ClientConnection, reason: str | None = None) -> None:
    """Record that a connection was opened, or closed for a reason."""
    if env.journal is None:
        return
    details = {"listener": client.caller.listener}
    if reason is None:
        note(env, "connection_opened", details, peer_in_records(client))
        return
    details |= {"reason": reason, "text": client.close_text}
    note(
        env,
        "connection_closed",
        details,
        peer_in_records(client),
        (None, None, None, client.client_id),
    )


def note_session(env: Environment, client: ClientConnection, *, is_first: bool) -> None:
    """Record that a client authenticated with SASL, for the first time or again (KIP-368)."""
    if client.authentication is None:
        return
    name = str(client.caller.principal)
    before = None if is_first else _AUTHENTICATED
    details = {"what": "session", "name": name, "from": before, "to": _AUTHENTICATED}
    note(env, "state", details, peer_in_records(client), (None, None, None, client.client_id))


def note_fault(
    env: Environment, client: ClientConnection, header: RequestHeader | None, active: ActiveRule
) -> None:
    """Record that a fault rule fired for a request, or for a connection."""
    fields = (None, None, None, client.client_id) if header is None else _plain(header)
    details: dict[str, Any] = {"rule": active.id, "action": active.rule.action}
    if active.rule.action == "throttle":
        details["mute"] = active.rule.mute is not False
    note(env, "fault", details, peer_in_records(client), fields)


def _throttle_ms(cost: RequestCost) -> int:
    """The throttle time in a response; `UNKNOWN` if its version has none."""
    header = cost.header
    if cost.response is None or not throttle_versions(header.api_key).has(header.api_version):
        return UNKNOWN
    return int(cost.response.throttle_time_ms)


def _plain(header: RequestHeader) -> tuple[int, int, int, str | None]:
    return int(header.api_key), header.api_version, header.correlation_id, header.client_id


def peer_in_records(client: ClientConnection) -> Peer:
    """The connection as it is in records."""
    if client.journal_peer is None:
        caller = client.caller
        client.journal_peer = peer_of(client.number, caller.client_host, caller.client_port)
    return client.journal_peer


def _header_bytes(view: bytes | memoryview) -> bytes:
    """The header of a request; only its fixed part if the rest is not readable."""
    try:
        _, end = decode_request_header(view)
    except (DecodeError, UnsupportedVersion):
        end = _FIXED_BYTES
    return bytes(view[:end])
