"""Records the requests that authenticate a connection, and their responses, for the journal.

Owns what of them is kept. It must never know how a client is authenticated. Invariant: no byte of a
token is kept: requests have only their header, responses an empty ``auth_bytes``, and a token
without a header only its size. A response is recorded before its first byte is sent.
"""

from __future__ import annotations

import time
from copy import copy
from typing import TYPE_CHECKING, Any, Final

from minibroker.broker.network.journal_recorder import peer_in_records
from minibroker.lab.journal.entries import FRAME_BYTES_MAX
from minibroker.lab.journal.records import REQUEST_KIND, RESPONSE_KIND, UNKNOWN, NoteHeader
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.headers import decode_request_header
from minibroker_protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from minibroker_protocol.registry import ApiKey

if TYPE_CHECKING:
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.process.environment import Environment
    from minibroker_protocol.headers import RequestHeader

_UNKNOWN_TIMES: Final = (UNKNOWN,) * 4


class RecordedStep:
    """A recorded request, whose response is recorded later."""

    def __init__(
        self, env: Environment, client: ClientConnection, frame: memoryview, *, is_token: bool
    ) -> None:
        """Record a request; ``is_token`` says that it is a token without a header."""
        self._env = env
        self._client = client
        self._received_ns = time.perf_counter_ns()
        self._add(REQUEST_KIND, self._received_ns, len(frame), *_kept(frame, is_token=is_token))

    def answered_token(self, size: int) -> None:
        """Record the response to a token without a header."""
        self._answered((None, None, None, self._client.client_id), size, None)

    def answered(self, header: RequestHeader, size: int, frame: bytes) -> None:
        """Record a response; ``frame`` has no secret, which ``size`` includes."""
        fields = int(header.api_key), header.api_version, header.correlation_id, header.client_id
        self._answered(fields, size, frame)

    def _answered(self, header: NoteHeader, size: int, frame: bytes | None) -> None:
        now_ns = time.perf_counter_ns()
        times = *_UNKNOWN_TIMES, now_ns - self._received_ns
        self._add(RESPONSE_KIND, now_ns, size, frame, header, UNKNOWN, *times)

    def _add(self, kind: int, time_ns: int, size: int, frame: bytes | None, *rest: Any) -> None:
        journal = self._env.journal
        if journal is not None:
            start = kind, time_ns, self._env.clock.now(), peer_in_records(self._client)
            journal.add((*start, size, frame, *rest), len(frame or b""))


def without_secret(response: Any) -> Any:
    """The response to be kept."""
    if isinstance(response, SaslAuthenticateResponse):
        response = copy(response)
        response.auth_bytes = b""
    return response


def _kept(frame: memoryview, *, is_token: bool) -> tuple[bytes, bool]:
    """What is kept of a request, and whether that is all."""
    if is_token:
        return b"", False
    try:
        header, end = decode_request_header(frame)
    except (DecodeError, UnsupportedVersion):
        return b"", False  # It may be a token.
    is_whole = header.api_key == ApiKey.API_VERSIONS and len(frame) <= FRAME_BYTES_MAX
    return bytes(frame if is_whole else frame[:end]), is_whole
