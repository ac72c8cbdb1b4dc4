"""Addresses of brokers in responses, replaced by those of the proxy.

Owns the list of responses that name brokers, and the replacement of the addresses in them. It must
never know a connection or how an address is chosen. Invariant: every address of a broker to which
clients connect is replaced, and nothing else changes; a response without one keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from minibroker.broker.settings.types import HostPort
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.entities import marked_fields, marks
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.headers import decode_response_header
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Message, Struct

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
