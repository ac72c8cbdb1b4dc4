"""What a proxy reads and changes in responses: addresses of brokers, versions, names of topics.

Owns the list of responses that name brokers and the replacement of the addresses in them, the limit
of the versions that clients may use, and the names of topic ids. It must never know a connection or
how an address is chosen. Invariant: every address of a broker to which clients connect is replaced,
and nothing else changes; a response without one keeps its bytes. A client that keeps to what
ApiVersions says gets no address that the proxy could not replace; all other APIs, also unknown
ones, have the versions of the brokers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from minibroker.broker.settings.setting import HostPort
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import marked_fields, marks
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.headers import decode_response_header, encode_response_header
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker_protocol.messages.metadata import MetadataResponse
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message, Struct
from minibroker_protocol.types import ZERO_UUID

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
        """The name of a topic id."""
        return self._names.get(topic_id)
