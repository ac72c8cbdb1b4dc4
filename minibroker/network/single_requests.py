"""Executes requests about one partition or group in one step, in the process of their owner.

Owns the straight way of such a request, from its bytes to the leaves of its response: neither
objects nor messages are created for it. It must never know what an API does, or the state of a
socket. Invariant: a request that is not executed here has had no effect, so it can go the general
way of ``RequestHandler``, and its response would have had the same bytes there. Only requests that
need no authorization are executed.
"""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from minibroker.apis.registry import APIS
from minibroker.network.activity_events import count_batch_records
from protocol import registry
from protocol.compiler.single import SingleDecoder, SingleEncoder, single_decoder, single_encoder
from protocol.compiler.single import leaves as leaves_of
from protocol.headers import API_BYTES, encode_response_header, quick_request_header
from protocol.registry import ApiKey

if TYPE_CHECKING:
    from minibroker.apis.base import SingleForm, WorkerScope
    from minibroker.cluster.image import Image
    from minibroker.network.request_cost import RequestCost
    from minibroker.process.local_worker import LocalWorker
    from minibroker.process.metadata_client import MetadataClient

_API: Final = struct.Struct(">hh")


class _Codec(NamedTuple):
    """How one version of an API is read, executed and written."""

    key: ApiKey
    version: int
    form: SingleForm
    decode: SingleDecoder
    encode: SingleEncoder
    throttle_at: int
    """Index of the throttle time among the leaves of the response."""
    header_bytes: int
    """Size of the response's header."""


class SingleResponse:
    """A response as leaves, with its throttle time apart."""

    __slots__ = ("_codec", "_correlation_id", "_leaves", "throttle_time_ms")

    def __init__(self, codec: _Codec, correlation_id: int, leaves: tuple[Any, ...]) -> None:
        self._codec = codec
        self._correlation_id = correlation_id
        self._leaves = leaves
        self.throttle_time_ms = 0

    @property
    def header_bytes(self) -> int:
        """Size of the response's header without the length."""
        return self._codec.header_bytes

    def encode(self) -> bytes:
        """Return the response with length and header."""
        leaves = self._leaves
        if self.throttle_time_ms:
            at = self._codec.throttle_at
            leaves = (*leaves[:at], self.throttle_time_ms, *leaves[at + 1 :])
        return self._codec.encode(self._correlation_id, *leaves)


class SingleRequests:
    """Executes requests at the worker of this process. Implements ``apis.base.SingleScope``."""

    def __init__(self, metadata_client: MetadataClient, local_worker: LocalWorker) -> None:
        self._metadata_client = metadata_client
        self._local_worker = local_worker
        self._codecs: dict[bytes, _Codec | None] = {}
        """By API key and version as in requests; None for the other versions that are served."""

    @property
    def image(self) -> Image:
        """The cluster image."""
        return self._metadata_client.image

    @property
    def worker(self) -> WorkerScope:
        """The worker of this process."""
        return self._local_worker.scope

    def execute(self, cost: RequestCost, body: bytes) -> SingleResponse | None:
        """Execute a request; return None if it must go the general way."""
        api = body[:API_BYTES]
        codec = self._codecs[api] if api in self._codecs else self._find_codec(api)
        found = None if codec is None else quick_request_header(body)
        if codec is None or found is None:
            return None
        header, position = found
        request = codec.decode(body, position)
        if request is None:
            return None
        started_ns = time.perf_counter_ns()
        leaves = codec.form.execute(self, codec.version, request)
        if leaves is None:
            return None
        cost.io_ns = cost.owners_ns = time.perf_counter_ns() - started_ns
        self._local_worker.charge(cost.io_ns)
        client = cost.client
        cost.header = header
        cost.is_direct = True
        if client.is_sampled and codec.key == ApiKey.PRODUCE:
            cost.records = count_batch_records(request[-1])
        return SingleResponse(codec, header.correlation_id, leaves)

    def _find_codec(self, api_bytes: bytes) -> _Codec | None:
        if len(api_bytes) < API_BYTES:
            return None
        key, version = _API.unpack(api_bytes)
        api = APIS.get(key)
        if api is None or not api.serves(version):
            return None  # Not kept: clients choose the bytes.
        codec = None if api.single is None else _codec(api.key, version, api.single)
        self._codecs[api_bytes] = codec
        return codec


def _codec(key: ApiKey, version: int, form: SingleForm) -> _Codec:
    schema = registry.schema(key)
    names = [leaf.name for leaf in leaves_of(schema.response, form.singles)]
    return _Codec(
        key,
        version,
        form,
        single_decoder(schema.request, version, form.singles),
        single_encoder(
            schema.response,
            version,
            form.singles,
            tagged_header=bool(schema.response_header_version(version)),
        ),
        names.index("throttle_time_ms"),
        len(encode_response_header(key, version, 0)),
    )
