"""Requests and responses that pass through a proxy: their order, and what is changed in them.

Owns the order of requests and responses, the phases of a connection in which frames are no requests
(the tokens of SASL after SaslHandshake version 0), the list of responses that name brokers and the
replacement of the addresses in them, the limit of the versions that clients may use, and the names
of topic ids. It must never do I/O, or know how an address is chosen. Invariants: responses are
matched in the order of their requests, as brokers send them, by correlation ids, which pass
unchanged; every address of a broker to which clients connect is replaced, and nothing else changes;
a response without one keeps its bytes. A client that keeps to what ApiVersions says gets no address
that the proxy could not replace; all other APIs, also unknown ones, have the versions of the
brokers. Kafka's ``InFlightRequests``.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from minibroker.broker.settings.setting import HostPort
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import marked_fields, marks
from minibroker_protocol.errors import DecodeError, ErrorCode, ProtocolError
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker_protocol.messages.metadata import MetadataResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message, Struct
from minibroker_protocol.types import ZERO_UUID
from minibroker_protocol.wire import (
    decode_request_header,
    decode_response_header,
    encode_response_header,
)

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


_ADDRESS: Final = frozenset({Meaning.HOST, Meaning.PORT})

REWRITTEN: Final = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.FIND_COORDINATOR,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.SHARE_FETCH,
        ApiKey.SHARE_ACKNOWLEDGE,
    }
)
"""APIs whose responses name brokers that the client connects to.

The schemas say it too, but to ask them all would load every message.
"""

_PORTS: Final = range(1, 65536)

Translate = Callable[[HostPort], HostPort]
"""The proxy's address for that of a broker."""


def translate_addresses(response: Struct, version: int, translate: Translate) -> bool:
    """Replace all addresses in a response; return whether there were any.

    A response that names no broker has an empty host or no port; that is no address.
    """
    found = list(marks(response, version, _ADDRESS))
    changed = False
    for host, port in zip(found[::2], found[1::2], strict=True):
        if host.value and port.value in _PORTS:
            address = translate(HostPort(host.value, port.value))
            host.replace(address.host)
            port.replace(address.port)
            changed = True
    return changed


# Frames -------------------------------------------------------------------------------------------


def can_name_brokers(api_key: int, version: int) -> bool:
    """Whether responses of a version of an API can name brokers; its schema is then known."""
    if api_key not in REWRITTEN:
        return False
    response = registry.schema(api_key).response
    return response.__versions__.has(version) and bool(marked_fields(response, version, _ADDRESS))


def decode_response(api_key: int, version: int, frame: bytes) -> tuple[Message, int, int]:
    """Return the response in a frame, the version that it has, and the position of its body.

    A broker that does not know the version of an ApiVersions request answers in version 0.
    """
    schema = registry.schema(api_key)
    _, at = decode_response_header(frame, api_key, version)
    if api_key == ApiKey.API_VERSIONS:
        if len(frame) < at + 2:
            raise DecodeError("response is cut short", len(frame))
        if int.from_bytes(frame[at : at + 2], "big") == ErrorCode.UNSUPPORTED_VERSION:
            version = 0
    return decode(schema.response, version, frame, at), version, at


def rewrite(api_key: int, version: int, frame: bytes, change: Callable[[Any, int], bool]) -> bytes:
    """Return a response with what ``change`` changes in it; the same bytes if that is nothing.

    Raises ``DecodeError``.
    """
    response, version, at = decode_response(api_key, version, frame)
    if not change(response, version):
        return frame
    return frame[:at] + encode(response, version)


# Versions -----------------------------------------------------------------------------------------


def is_too_new(api_key: int, version: int) -> bool:
    """Whether the proxy could not read the response to a request, but has to."""
    highest = _highest(api_key)
    return highest is not None and version > highest


def limit_versions(response: ApiVersionsResponse) -> bool:
    """Lower the versions that brokers offer to those that can be read; return whether any was."""
    kept = []
    changed = False
    for offered in response.api_keys:
        highest = _highest(offered.api_key)
        if highest is not None and offered.max_version > highest:
            changed = True
            if offered.min_version > highest:
                continue
            offered.max_version = highest
        kept.append(offered)
    response.api_keys = kept
    return changed


def _highest(api_key: int) -> int | None:
    """The highest version that can be read, of APIs whose responses have to be."""
    if api_key in REWRITTEN or api_key == ApiKey.API_VERSIONS:
        return registry.schema(api_key).valid_versions.high
    return None


def unsupported_api_versions(correlation_id: int) -> bytes:
    """The response to an ApiVersions request that is too new: as Kafka's, in version 0.

    The client repeats its request in a version that the response names.
    """
    key = ApiKey.API_VERSIONS
    versions = registry.schema(key).valid_versions
    response = ApiVersionsResponse(
        error_code=int(ErrorCode.UNSUPPORTED_VERSION),
        api_keys=[ApiVersion(api_key=key, min_version=versions.low, max_version=versions.high)],
    )
    return encode_response_header(key, 0, correlation_id) + encode(response, 0)


# Topic ids ----------------------------------------------------------------------------------------

TOPICS_MAX: Final = 100_000
"""Topics whose names are kept."""


class TopicNames:
    """The names of topic ids, from the Metadata responses that pass.

    A client asks for metadata before it uses an id, so rules select topics also in requests that
    have only their ids. The table is bounded, and forgets the oldest names.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, str] = {}

    def learn(self, response: MetadataResponse) -> None:
        """Keep the names in a response."""
        for topic in response.topics:
            if topic.name and topic.topic_id != ZERO_UUID:
                self._names.pop(topic.topic_id, None)
                self._names[topic.topic_id] = topic.name
        while len(self._names) > TOPICS_MAX:
            del self._names[next(iter(self._names))]

    def get(self, topic_id: Any) -> str | None:
        return self._names.get(topic_id)
