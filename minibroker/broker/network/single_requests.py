"""Executes requests about one partition or group in one step, in the process of their owner.

Owns the straight way of such a request, from its bytes to the leaves of its response: neither
objects nor messages are created for it. It must never know what an API does, or the state of a
socket. Invariant: a request that is not executed here has had no effect, so it can go the general
way of ``RequestHandler``, and its response would have had the same bytes there. Only requests that
need no authorization are executed.
"""

from __future__ import annotations

import os
import struct
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from minibroker.broker.network.request_cost import count_batch_records
from minibroker_protocol import registry
from minibroker_protocol.compiler.single import (
    SingleDecoder,
    SingleEncoder,
    single_decoder,
    single_encoder,
)
from minibroker_protocol.compiler.single import leaves as leaves_of
from minibroker_protocol.headers import API_BYTES, encode_response_header, quick_request_header
from minibroker_protocol.registry import ApiKey

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from minibroker.broker.apis.base import Delayed, ServedApi, SingleForm, Waiter, WorkerScope
    from minibroker.broker.log.slices import FileSlice
    from minibroker.broker.metadata.image import Image
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.open_files import OpenFiles
    from minibroker.broker.network.request_cost import RequestCost
    from minibroker.broker.process.local_worker import LocalWorker
    from minibroker.broker.process.metadata_client import MetadataClient
    from minibroker_protocol.headers import RequestHeader

_API: Final = struct.Struct(">hh")


class _Codec(NamedTuple):
    """How one version of an API is read, executed and written."""

    key: ApiKey
    version: int
    form: SingleForm
    decode: SingleDecoder
    encode: SingleEncoder
    request_header_version: int
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

    @property
    def record_bytes(self) -> int:
        """Size of the records of a Fetch response, which are its last leaf."""
        return len(self._leaves[-1])

    def encode(self) -> bytes:
        """Return the response with length and header."""
        leaves = self._leaves
        if self.throttle_time_ms:
            at = self._codec.throttle_at
            leaves = (*leaves[:at], self.throttle_time_ms, *leaves[at + 1 :])
        return self._codec.encode(self._correlation_id, *leaves)


class SingleDelay:
    """A request that waits for records, and its further attempts."""

    __slots__ = ("_codec", "_delayed", "_local_worker", "_since_ns", "cost")

    def __init__(
        self, local_worker: LocalWorker, cost: RequestCost, codec: _Codec, delayed: Delayed
    ) -> None:
        self._local_worker = local_worker
        self.cost = cost
        self._codec = codec
        self._delayed = delayed
        self._since_ns = time.perf_counter_ns()

    @property
    def deadline(self) -> float:
        """When the wait ends, in seconds of the broker's clock."""
        return self._delayed.deadline

    def watch(self, waiter: Waiter) -> None:
        """Wake a waiter when another attempt may succeed, until `unwatch`."""
        self._local_worker.scope.watch_appended(self._delayed.partitions, waiter)

    def unwatch(self, waiter: Waiter) -> None:
        """Remove the waiter."""
        self._local_worker.scope.unwatch_appended(self._delayed.partitions, waiter)

    def attempt(self, *, is_over: bool) -> SingleResponse | SingleDelay | None:
        """Try again; return this object to wait longer, None if it must go the general way."""
        cost, timer = self.cost, self._local_worker.work_time.step_timer
        started_ns = timer()
        leaves = self._delayed.attempt(is_over=is_over)
        worked_ns = timer() - started_ns
        cost.io_ns += worked_ns
        self._local_worker.charge(worked_ns)
        if leaves is self._delayed:
            return self
        if not isinstance(leaves, tuple):
            cost.io_ns = cost.owners_ns = 0
            return None
        cost.owners_ns += time.perf_counter_ns() - self._since_ns
        cost.is_direct = True
        return SingleResponse(self._codec, cost.header.correlation_id, leaves)


class SingleRequests:
    """Executes requests at the worker of this process. Implements ``apis.base.SingleScope``."""

    def __init__(
        self,
        apis: Mapping[int, ServedApi],
        metadata_client: MetadataClient,
        local_worker: LocalWorker,
        files: OpenFiles,
        fetch_bytes_max: Callable[[ClientConnection, RequestHeader], int],
    ) -> None:
        self._apis = apis
        self._metadata_client = metadata_client
        self._local_worker = local_worker
        self._files = files
        self._fetch_bytes_max = fetch_bytes_max
        self._client: ClientConnection
        self._header: RequestHeader
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

    @property
    def listener(self) -> str:
        """The listener of the present request's client."""
        return self._client.caller.listener

    def fetch_bytes_max(self) -> int:
        """The largest fetch that the quota of the present request's client permits."""
        return self._fetch_bytes_max(self._client, self._header)

    def read(self, records: FileSlice) -> bytes | None:
        """The bytes of records in a file; None if it cannot be read."""
        try:
            descriptor = self._files.get(records.path, records.inode).descriptor
            data = os.pread(descriptor, records.length, records.position)
        except OSError:
            return None
        return data if len(data) == records.length else None

    def execute(self, cost: RequestCost, body: bytes) -> SingleResponse | SingleDelay | None:
        """Execute a request, at once unless it has to wait; None if it must go the general way."""
        api = body[:API_BYTES]
        codec = self._codecs[api] if api in self._codecs else self._find_codec(api)
        if codec is None:
            return None
        found = quick_request_header(body, codec.request_header_version)
        if found is None:
            return None
        header, position = found
        request = codec.decode(body, position)
        if request is None:
            return None
        client = cost.client
        self._client, self._header = client, header
        timer = self._local_worker.work_time.step_timer
        started_ns = timer()
        leaves = codec.form.execute(self, codec.version, request)
        if leaves is None:
            return None
        cost.io_ns = cost.owners_ns = timer() - started_ns
        self._local_worker.charge(cost.io_ns)
        cost.header = header
        if not isinstance(leaves, tuple):
            client.in_flight = codec.key
            return SingleDelay(self._local_worker, cost, codec, leaves)
        cost.is_direct = True
        if client.needs_checks and codec.key == ApiKey.PRODUCE:
            cost.records = count_batch_records(request[-1])
        return SingleResponse(codec, header.correlation_id, leaves)

    def _find_codec(self, api_bytes: bytes) -> _Codec | None:
        if len(api_bytes) < API_BYTES:
            return None
        key, version = _API.unpack(api_bytes)
        api = self._apis.get(key)
        if api is None or not api.serves(version):
            return None  # Not kept: clients choose the bytes.
        codec = None if api.single is None else _codec(api.key, version, api.single)
        self._codecs[api_bytes] = codec
        return codec


def _codec(key: ApiKey, version: int, form: SingleForm) -> _Codec:
    schema = registry.schema(key)
    names = [leaf.name for leaf in leaves_of(schema.response, form.shape)]
    return _Codec(
        key,
        version,
        form,
        single_decoder(schema.request, version, form.shape),
        single_encoder(
            schema.response,
            version,
            form.shape,
            tagged_header=bool(schema.response_header_version(version)),
        ),
        schema.request_header_version(version),
        names.index("throttle_time_ms"),
        len(encode_response_header(key, version, 0)),
    )
