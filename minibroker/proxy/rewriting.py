"""Addresses of brokers in responses, replaced by those of the proxy.

Owns the list of responses that name brokers, and the places of addresses in them, which follow from
the schemas. It must never know a connection or how an address is chosen. Invariant: every address
of a broker is replaced, and nothing else changes; a response without one keeps its bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from minibroker.config.types import HostPort
from protocol import registry
from protocol.compiler import decode, encode
from protocol.errors import DecodeError, ErrorCode
from protocol.headers import decode_response_header
from protocol.registry import ApiKey
from protocol.schema import Array, Field, Message, Struct

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
"""APIs whose responses name brokers that the client connects to."""

_QUORUM: Final = "names controllers, to each other; clients do not connect to them"
_STREAMS: Final = "names instances of an application, which answer queries of their state"

EXEMPT: Final = {
    ApiKey.VOTE: _QUORUM,
    ApiKey.BEGIN_QUORUM_EPOCH: _QUORUM,
    ApiKey.END_QUORUM_EPOCH: _QUORUM,
    ApiKey.FETCH_SNAPSHOT: _QUORUM,
    ApiKey.DESCRIBE_QUORUM: _QUORUM,
    ApiKey.UPDATE_RAFT_VOTER: _QUORUM,
    ApiKey.STREAMS_GROUP_HEARTBEAT: _STREAMS,
    ApiKey.STREAMS_GROUP_DESCRIBE: _STREAMS,
}
"""APIs whose responses have addresses that stay as they are, and why."""

_PORTS: Final = range(1, 65536)

Translate = Callable[[HostPort], HostPort]
"""The proxy's address for that of a broker."""


def is_address(cls: type[Struct]) -> bool:
    """Whether a struct has the address of a node."""
    return {"host", "port"} <= {item.name for item in cls.__fields__}


@cache
def has_addresses(cls: type[Struct], version: int) -> bool:
    """Whether a version of a struct has addresses, itself or in its fields."""
    names = {item.name for item in cls.__fields__ if item.versions.has(version)}
    return {"host", "port"} <= names or bool(_branches(cls, version))


@cache
def _branches(cls: type[Struct], version: int) -> tuple[Field, ...]:
    """The fields of a struct in which there are addresses."""
    return tuple(
        item
        for item in cls.__fields__
        if item.versions.has(version)
        and (inner := _struct_of(item)) is not None
        and has_addresses(inner, version)
    )


def _struct_of(item: Field) -> type[Struct] | None:
    kind: Any = item.kind.element if isinstance(item.kind, Array) else item.kind
    return kind if isinstance(kind, type) else None


def translate_addresses(struct: Struct, version: int, translate: Translate) -> bool:
    """Replace all addresses in a struct; return whether there were any.

    A response that names no broker has an empty host or no port; that is no address.
    """
    changed = False
    if is_address(type(struct)) and has_addresses(type(struct), version):
        broker: Any = struct
        if broker.host and broker.port in _PORTS:
            broker.host, broker.port = translate(HostPort(broker.host, broker.port))
            changed = True
    for item in _branches(type(struct), version):
        value = getattr(struct, item.name)
        for element in value if isinstance(value, list) else [value]:
            if element is not None:
                changed |= translate_addresses(element, version, translate)
    return changed


# Frames -------------------------------------------------------------------------------------------


def can_name_brokers(api_key: int, version: int) -> bool:
    """Whether responses of a version of an API can name brokers; its schema is then known."""
    if api_key not in REWRITTEN:
        return False
    response = registry.schema(api_key).response
    return response.__versions__.has(version) and has_addresses(response, version)


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
