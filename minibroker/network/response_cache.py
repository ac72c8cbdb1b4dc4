"""Cache of encoded responses that depend only on the cluster image, the listener and the request.

Owns the encoded responses of requests that clients repeat, such as Metadata of all topics, which
takes longer to build than to send. It must never know what a response means. Invariant: a response
is found only with the image that it was built from, for the same bytes of the request, so it is the
one that would be built now. Kafka builds the response from ``KRaftMetadataCache`` each time.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from minibroker.apis.registry import APIS
from minibroker.network.request_reader import LENGTH_BYTES
from protocol import registry
from protocol.headers import (
    API_BYTES,
    RequestHeader,
    encode_response_header,
    quick_request_header,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from minibroker.cluster.image import Image
    from minibroker.network.request_cost import RequestCost
    from minibroker.network.response_sender import Chunk

RESPONSES_MAX: Final = 256
"""Responses in the cache of one network processor."""

RESPONSE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of all responses in the cache of one network processor."""

REQUEST_BYTES_MAX: Final = 4096
"""Size of the largest request whose response is kept."""

THROTTLE_BYTES: Final = 4
"""Size of a throttle time; the first field of the responses that have one and are kept."""

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
        if self.throttle_time_ms and self._entry.has_throttle_time:
            throttle = self.throttle_time_ms.to_bytes(THROTTLE_BYTES, "big")
            return b"".join((start, throttle, memoryview(body)[THROTTLE_BYTES:]))
        return start + body


class _Entry(NamedTuple):
    body: bytes
    error: int
    has_throttle_time: bool


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
        if found is None:
            return
        response = b"".join(map(bytes, encoded))  # type: ignore[arg-type]
        if len(self._entries) >= RESPONSES_MAX or self._size + len(response) > RESPONSE_BYTES_MAX:
            self._start(image)
        if len(response) <= RESPONSE_BYTES_MAX:
            key = body[:API_BYTES], body[found[1] :], cost.client.caller.listener
            has_throttle_time = _has_throttle_time(cost.header)
            self._entries[key] = _Entry(response, cost.error, has_throttle_time)
            self._size += len(response)

    def _start(self, image: Image) -> None:
        self._image, self._entries, self._size = image, {}, 0


def _read_header(body: bytes) -> tuple[RequestHeader, int] | None:
    if len(body) < API_BYTES:
        return None
    key, version = _API.unpack_from(body)
    return quick_request_header(body, registry.schema(key).request_header_version(version))


def _has_throttle_time(header: RequestHeader) -> bool:
    first = registry.schema(header.api_key).response.__fields__[0]
    return first.name == "throttle_time_ms" and first.versions.has(header.api_version)
