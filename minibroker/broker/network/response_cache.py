"""Cache of encoded responses that depend only on the cluster image, the listener and the request.

Owns the encoded responses of requests that clients repeat: Metadata of all topics, which takes
longer to build than to send, and ApiVersions, the first request of each connection. It must never
know what a response means. Invariant: a response is found only with the image that it was built
from, for the same bytes of the request, so it is the one that would be built now. Kafka builds the
response from ``KRaftMetadataCache`` each time.
"""

from __future__ import annotations

import struct
from copy import copy
from typing import TYPE_CHECKING, Final, NamedTuple

from minibroker.broker.apis.api_versions import software_in
from minibroker.broker.apis.registry import APIS
from minibroker.broker.network.client_connection import LENGTH_BYTES
from minibroker_protocol import registry
from minibroker_protocol.compiler import encode
from minibroker_protocol.headers import (
    API_BYTES,
    RequestHeader,
    encode_response_header,
    quick_request_header,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minibroker.broker.metadata.image import Image
    from minibroker.broker.network.quota_stage import RequestCost
    from minibroker.broker.network.response_sender import Chunk

RESPONSES_MAX: Final = 256
"""Responses in the cache of one network processor."""

RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of all responses in the cache of one network processor."""

REQUEST_BYTES_MAX: Final = 4096
"""Size of the largest request whose response is kept."""

THROTTLE_BYTES: Final = 4
"""Size of a throttle time."""

_PROBE: Final = 0x01010101
"""A throttle time that differs from none in its first byte."""

_KEY_BYTES: Final = 2
_API: Final = struct.Struct(">hh")
_CACHEABLE: Final = frozenset(
    int(api.key).to_bytes(_KEY_BYTES, "big") for api in APIS.values() if api.is_cacheable
)
_Key = tuple[bytes, bytes, str]


class CachedResponse:
    """The response to one request, whose body is in the cache."""

    __slots__ = ("_entry", "_header", "throttle_time_ms")

    def __init__(self, header: bytes, entry: _Entry) -> None:
        self._header = header
        self._entry = entry
        self.throttle_time_ms = 0

    @property
    def header_bytes(self) -> int:
        """Size of the response's header without the length."""
        return len(self._header)

    def encode(self) -> bytes:
        """Return the response with length, header and throttle time."""
        body = self._entry.body
        start = (len(self._header) + len(body)).to_bytes(LENGTH_BYTES, "big") + self._header
        at = self._entry.throttle_at
        if self.throttle_time_ms and at is not None:
            throttle = self.throttle_time_ms.to_bytes(THROTTLE_BYTES, "big")
            rest = memoryview(body)[at + THROTTLE_BYTES :]
            return b"".join((start, memoryview(body)[:at], throttle, rest))
        return start + body


class _Entry(NamedTuple):
    body: bytes
    error: int
    throttle_at: int | None
    """Position of the throttle time in the body; None in versions without it."""
    software: tuple[str, str] | None
    """What the client says of itself in the request (KIP-511)."""


class ResponseCache:
    """The cached responses of one network processor."""

    def __init__(self) -> None:
        self._image: Image | None = None
        self._entries: dict[_Key, _Entry] = {}
        self._size = 0

    def find(self, cost: RequestCost, body: bytes, image: Image) -> CachedResponse | None:
        """Return the response to a request, and set its header, if the response is known."""
        if body[:_KEY_BYTES] not in _CACHEABLE or len(body) > REQUEST_BYTES_MAX:
            return None
        if image is not self._image:
            self._start(image)
        found = _read_header(body)
        if found is None:
            return None
        header, position = found
        key = body[:API_BYTES], body[position:], cost.client.caller.listener
        entry = self._entries.get(key)
        if entry is None:
            return None
        cost.header = header
        cost.is_direct = True
        cost.error = entry.error
        if entry.software is not None:
            cost.client.set_software(*entry.software)
        start = encode_response_header(header.api_key, header.api_version, header.correlation_id)
        return CachedResponse(start, entry)

    def keep(self, cost: RequestCost, body: bytes, image: Image, encoded: Sequence[Chunk]) -> None:
        """Keep a response that was built from an image."""
        if (
            body[:_KEY_BYTES] not in _CACHEABLE
            or image is not self._image
            or len(body) > REQUEST_BYTES_MAX
        ):
            return
        found = _read_header(body)
        if found is None or found[0].api_version != cost.header.api_version:
            return  # An unknown version of ApiVersions is answered in version 0.
        response = b"".join(map(bytes, encoded))  # type: ignore[arg-type]
        if len(self._entries) >= RESPONSES_MAX or self._size + len(response) > RESPONSE_BYTES_MAX:
            self._start(image)
        if len(response) <= RESPONSE_BYTES_MAX:
            key = body[:API_BYTES], body[found[1] :], cost.client.caller.listener
            self._entries[key] = _Entry(
                response,
                cost.error,
                _throttle_position(cost, response),
                software_in(cost.header, cost.request),
            )
            self._size += len(response)

    def _start(self, image: Image) -> None:
        self._image, self._entries, self._size = image, {}, 0


def _read_header(body: bytes) -> tuple[RequestHeader, int] | None:
    if len(body) < API_BYTES:
        return None
    key, version = _API.unpack_from(body)
    return quick_request_header(body, registry.schema(key).request_header_version(version))


def _throttle_position(cost: RequestCost, body: bytes) -> int | None:
    """The position of the throttle time in a response without one, if its version has it."""
    response, version = cost.response, cost.header.api_version
    fields = [item.name for item in type(response).__fields__ if item.versions.has(version)]
    if "throttle_time_ms" not in fields:
        return None
    if fields[0] == "throttle_time_ms":
        return 0
    throttled = copy(response)
    throttled.throttle_time_ms = _PROBE
    changed = encode(throttled, version)
    return next(at for at, byte in enumerate(changed) if byte != body[at])
