"""The requests of one connection that wait for their responses.

Owns the order of requests and responses, and the phases of a connection in which frames are no
requests: the tokens of SASL after SaslHandshake version 0. It must never change a frame or do I/O.
Invariant: responses are matched in the order of their requests, as brokers send them, by
correlation ids, which pass unchanged. Kafka's ``InFlightRequests``.
"""

from __future__ import annotations

import struct
from collections import deque
from typing import Final, NamedTuple

from minibroker_protocol import registry
from minibroker_protocol.errors import ProtocolError
from minibroker_protocol.headers import decode_request_header
from minibroker_protocol.registry import ApiKey

IN_FLIGHT_MAX: Final = 1000
"""Requests of a connection without a response; the client is not read while there are more."""

CLIENT_ID_BYTES_MAX: Final = 1024
"""Bytes of a client id that are kept."""

_START: Final = struct.Struct(">hhi")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_CLIENT_ID_AT: Final = 10
_ERROR_AT: Final = 4
_COMPACT_PRODUCE: Final = 9
_TRANSACTIONAL_PRODUCE: Final = 3


class UnexpectedFrame(Exception):
    """A frame that has no place in the conversation; the text says why."""


class ProxiedRequest(NamedTuple):
    """A frame of a client: API, version and correlation id, or a token of SASL."""

    api_key: int
    version: int
    correlation_id: int
    is_token: bool = False
    has_response: bool = True
    received_ns: int = 0
    """When it was received, if the journal is on."""
    client_id: str | None = None
    """Its client id, if the journal is on."""


_TOKEN: Final = ProxiedRequest(-1, -1, 0, is_token=True)


class Exchange:
    """The conversation of one connection."""

    def __init__(self) -> None:
        self._waiting: deque[ProxiedRequest] = deque()
        self._expects_tokens = False
        self._client_id: bytes | None = None

    @property
    def is_full(self) -> bool:
        """Whether as many requests wait as may."""
        return len(self._waiting) >= IN_FLIGHT_MAX

    @property
    def is_idle(self) -> bool:
        """Whether no request waits."""
        return not self._waiting

    @property
    def client_id(self) -> str | None:
        """The client id of the last request that had one."""
        return None if self._client_id is None else self._client_id.decode(errors="replace")

    def read(self, frame: bytes) -> ProxiedRequest:
        """Read what a frame of the client is. Raises ``UnexpectedFrame``."""
        if self._expects_tokens:
            if not is_request(frame):
                return _TOKEN
            self._expects_tokens = False
        if len(frame) < _START.size:
            raise UnexpectedFrame(f"a request of {len(frame)} bytes")
        key, version, correlation_id = _START.unpack_from(frame)
        self._note_client_id(frame)
        has_response = key != ApiKey.PRODUCE or _acks(frame, version) != 0
        return ProxiedRequest(key, version, correlation_id, has_response=has_response)

    def _note_client_id(self, frame: bytes) -> None:
        if len(frame) >= _CLIENT_ID_AT:
            (length,) = _INT16.unpack_from(frame, _START.size)
            if 0 <= length <= CLIENT_ID_BYTES_MAX:
                self._client_id = frame[_CLIENT_ID_AT : _CLIENT_ID_AT + length]

    def forwarded(self, request: ProxiedRequest) -> None:
        """Expect the response to a request that was passed on."""
        if request.has_response:
            self._waiting.append(request)

    def match(self, frame: bytes) -> ProxiedRequest:
        """Return the request that a response belongs to. Raises ``UnexpectedFrame``."""
        if not self._waiting:
            raise UnexpectedFrame("a response without a request")
        request = self._waiting[0]
        if request.is_token:
            return request
        if len(frame) < _INT32.size:
            raise UnexpectedFrame(f"a response of {len(frame)} bytes")
        (correlation_id,) = _INT32.unpack_from(frame)
        if correlation_id != request.correlation_id:
            raise UnexpectedFrame(
                f"a response with correlation id {correlation_id}, not {request.correlation_id}"
            )
        if (
            request.api_key == ApiKey.SASL_HANDSHAKE
            and request.version == 0
            and frame[_ERROR_AT : _ERROR_AT + 2] == b"\0\0"
        ):
            self._expects_tokens = True
        return request

    def complete(self) -> None:
        """Remove the request whose response was matched."""
        self._waiting.popleft()


def is_request(frame: bytes) -> bool:
    """Whether a frame is a request of a known API and version, as no token of SASL is.

    Kafka distinguishes them for GSSAPI in the same way.
    """
    if len(frame) < _START.size:
        return False
    key, version, _ = _START.unpack_from(frame)
    try:
        if not registry.schema(key).valid_versions.has(version):
            return False
        decode_request_header(frame)
    except ProtocolError:
        return False
    return True


def _acks(frame: bytes, version: int) -> int | None:
    """The acknowledgements that a Produce request asks for; None if it can't be read."""
    try:
        _, at = decode_request_header(frame)
        if version >= _COMPACT_PRODUCE:
            length = shift = 0
            while True:
                byte = frame[at]
                length |= (byte & 0x7F) << shift
                at, shift = at + 1, shift + 7
                if byte < 0x80:
                    break
            at += max(length - 1, 0)
        elif version >= _TRANSACTIONAL_PRODUCE:
            at += _INT16.size + max(_INT16.unpack_from(frame, at)[0], 0)
        return int(_INT16.unpack_from(frame, at)[0])
    except (ProtocolError, IndexError, struct.error):
        return None
