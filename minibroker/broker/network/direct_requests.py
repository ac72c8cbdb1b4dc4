"""Requests that are answered in one call: executed in a single step, or found in the cache.

Owns the straight way of a request about one partition or group of this process, from its bytes to
the leaves of its response (neither objects nor messages are created for it), and the cache of
responses. It must never know what an API does, or the state of a socket. Only requests that need no
authorization are executed. Those that wait for records are attempted again, by a deadline or when
some were appended: an append only notes the requests that wait for it, and they are attempted when
the request that appended was answered, so a consumer never delays a producer. Invariant: a request
that is not executed here has had no effect, so it can go the general way of ``RequestHandler``, and
its response would have had the same bytes there. A request that waits is completed once, unless it
is cancelled, and is watched only until then; there is at most one for each connection. Kafka's
``DelayedOperationPurgatory``.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Awaitable, Generator
from copy import copy
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import trio

from minibroker.broker.apis.api_versions import software_in
from minibroker.broker.apis.registry import APIS
from minibroker.broker.network.client_connection import LENGTH_BYTES
from minibroker.broker.network.quota_stage import count_batch_records
from minibroker.runtime.deadlines import Deadlines
from minibroker_protocol import registry
from minibroker_protocol.compiler import encode
from minibroker_protocol.compiler.single import (
    SingleDecoder,
    SingleEncoder,
    single_decoder,
    single_encoder,
)
from minibroker_protocol.compiler.single import leaves as leaves_of
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import (
    API_BYTES,
    RequestHeader,
    encode_response_header,
    quick_request_header,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from minibroker.broker.apis.base import (
        Caller,
        Delayed,
        Repeat,
        ServedApi,
        SingleForm,
        Waiter,
        WorkerScope,
    )
    from minibroker.broker.log.log import FileSlice
    from minibroker.broker.metadata.image import Image
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.quota_stage import RequestCost
    from minibroker.broker.network.response_sender import Chunk, OpenFiles
    from minibroker.broker.process.local_worker import LocalWorker
    from minibroker.broker.process.metadata_client import MetadataClient
    from minibroker.runtime.worktime import WorkTime
    from minibroker_protocol.types import Uuid


# Places among the leaves of a Fetch response.
_TOPIC_AT: Final = 3
_TOPIC_ID_AT: Final = 4

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
    repeated: RepeatedRequests | None
    """Requests that were executed and may be repeated, if clients repeat such requests."""


class SingleResponse:
    """A response as leaves, with its throttle time apart."""

    __slots__ = ("_codec", "_correlation_id", "_frame", "leaves", "throttle_time_ms")

    def __init__(
        self, codec: _Codec, correlation_id: int, leaves: tuple[Any, ...], frame: bytes = b""
    ) -> None:
        """``frame`` are the bytes of the response without throttle time, if they are known."""
        self._codec = codec
        self._correlation_id = correlation_id
        self.leaves = leaves
        self._frame = frame
        self.throttle_time_ms = 0

    @property
    def header_bytes(self) -> int:
        """Size of the response's header without the length."""
        return self._codec.header_bytes

    @property
    def topic(self) -> tuple[str, Uuid]:
        """Name and id of the topic of a Fetch response, one of which is empty."""
        return self.leaves[_TOPIC_AT], self.leaves[_TOPIC_ID_AT]

    @property
    def record_bytes(self) -> int:
        """Size of the records of a Fetch response, which are its last leaf."""
        return len(self.leaves[-1])

    def encode(self) -> bytes:
        """Return the response with length and header."""
        leaves = self.leaves
        if self.throttle_time_ms:
            at = self._codec.throttle_at
            leaves = (*leaves[:at], self.throttle_time_ms, *leaves[at + 1 :])
        elif self._frame:
            return self._frame
        return self._codec.encode(self._correlation_id, *leaves)


class SingleDelay:
    """A request that waits for records, and its further attempts."""

    __slots__ = ("_codec", "_delayed", "_local_worker", "cost")

    def __init__(
        self, local_worker: LocalWorker, cost: RequestCost, codec: _Codec, delayed: Delayed
    ) -> None:
        self._local_worker = local_worker
        self.cost = cost
        self._codec = codec
        self._delayed = delayed

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
        cost.owners_ns += worked_ns
        self._local_worker.work_time.move(self._local_worker.account, worked_ns)
        if leaves is self._delayed:
            return self
        if not isinstance(leaves, tuple):
            cost.io_ns = cost.owners_ns = 0
            return None
        cost.is_direct = True
        return SingleResponse(self._codec, cost.header.correlation_id, leaves)


REPEATS_MAX: Final = 8_192
"""Repeated requests that are known for one version of an API: members of groups."""

REPEAT_BYTES_MAX: Final = 512
"""Size of the largest request that is recognized when it is repeated."""

_CORRELATION_AT: Final = API_BYTES
_CORRELATION_END: Final = API_BYTES + 4
_FRAME_CORRELATION_AT: Final = LENGTH_BYTES
_FRAME_CORRELATION_END: Final = LENGTH_BYTES + 4


class _Repeated:
    """An executed request that its client repeats, and its response."""

    __slots__ = ("client_host", "header", "leaves", "length", "repeat", "rest")

    def __init__(
        self,
        client_host: str,
        header: RequestHeader,
        repeat: Repeat,
        leaves: tuple[Any, ...],
        frame: bytes,
    ) -> None:
        self.client_host = client_host
        self.header = header
        self.repeat = repeat
        self.leaves = leaves
        self.length = frame[:_FRAME_CORRELATION_AT]
        self.rest = frame[_FRAME_CORRELATION_END:]


class RepeatedRequests:
    """Requests of one version of an API that clients repeat, by their bytes.

    The bytes are those after the correlation id, with the client id. A request is recognized only
    with the image with which it was executed, and from the same host; principals and listeners do
    not matter, as only requests that need no authorization are executed here.
    """

    def __init__(self) -> None:
        self._image: Image | None = None
        self._known: dict[bytes, _Repeated] = {}

    def __len__(self) -> int:
        """Number of known requests."""
        return len(self._known)

    def execute(self, request: bytes, client_host: str, image: Image) -> _Repeated | None:
        """Execute a known request again; None, and nothing is done, if that does not suffice."""
        if image is not self._image:
            return None
        found = self._known.get(request)
        if found is None or found.client_host != client_host:
            return None
        if found.repeat():
            return found
        del self._known[request]
        return None

    def keep(self, request: bytes, image: Image, repeated: _Repeated) -> None:
        """Recognize a request from now on."""
        if image is not self._image or len(self._known) >= REPEATS_MAX:
            self._image, self._known = image, {}
        self._known[request] = repeated


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
        self._repeat: Repeat | None = None

    @property
    def image(self) -> Image:
        """The cluster image."""
        return self._metadata_client.image

    @property
    def worker(self) -> WorkerScope:
        """The worker of this process."""
        return self._local_worker.scope

    @property
    def caller(self) -> Caller:
        """The present request's client."""
        return self._client.caller

    @property
    def client_id(self) -> str | None:
        """The client id in the header of the present request."""
        return self._header.client_id

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

    def repeat_by(self, repeat: Repeat) -> None:
        """Let a function execute the present request when this host sends it again."""
        self._repeat = repeat

    def execute(self, cost: RequestCost, body: bytes) -> SingleResponse | SingleDelay | None:
        """Execute a request, at once unless it has to wait; None if it must go the general way."""
        api = body[:API_BYTES]
        codec = self._codecs[api] if api in self._codecs else self._find_codec(api)
        if codec is None:
            return None
        if codec.repeated is not None and len(body) <= REPEAT_BYTES_MAX:
            return self._execute_repeated(cost, body, codec, codec.repeated)
        return self._execute(cost, body, codec)

    def _execute(
        self, cost: RequestCost, body: bytes, codec: _Codec
    ) -> SingleResponse | SingleDelay | None:
        found = quick_request_header(body, codec.request_header_version)
        if found is None:
            return None
        header, position = found
        request = codec.decode(body, position)
        if request is None:
            return None
        client = cost.client
        self._client, self._header = client, header
        work_time = self._local_worker.work_time
        timer = work_time.step_timer
        started_ns = timer()
        leaves = codec.form.execute(self, codec.version, request)
        if leaves is None:
            return None
        cost.io_ns = cost.owners_ns = timer() - started_ns
        work_time.move(self._local_worker.account, cost.io_ns)
        cost.header = header
        if not isinstance(leaves, tuple):
            client.in_flight = codec.key
            return SingleDelay(self._local_worker, cost, codec, leaves)
        cost.is_direct = True
        if client.needs_checks and codec.key == ApiKey.PRODUCE:
            cost.records = count_batch_records(request[-1])
        return SingleResponse(codec, header.correlation_id, leaves)

    def _execute_repeated(
        self, cost: RequestCost, body: bytes, codec: _Codec, repeated: RepeatedRequests
    ) -> SingleResponse | SingleDelay | None:
        """Execute a request that its client may have sent before, or may repeat."""
        local_worker, client_host = self._local_worker, cost.client.caller.client_host
        image = local_worker.scope.image
        request = body[_CORRELATION_END:]
        timer = local_worker.work_time.step_timer
        started_ns = timer()
        known = repeated.execute(request, client_host, image)
        if known is not None:
            cost.io_ns = cost.owners_ns = timer() - started_ns
            local_worker.work_time.move(local_worker.account, cost.io_ns)
            key, version, _, client_id = known.header
            correlation = body[_CORRELATION_AT:_CORRELATION_END]
            correlation_id = int.from_bytes(correlation, "big", signed=True)
            cost.header = RequestHeader(key, version, correlation_id, client_id)
            cost.is_direct = True
            frame = known.length + correlation + known.rest
            return SingleResponse(codec, correlation_id, known.leaves, frame)
        self._repeat = None
        response = self._execute(cost, body, codec)
        repeat = self._repeat_of_request()
        if repeat is not None and isinstance(response, SingleResponse):
            leaves, frame = response.leaves, response.encode()
            repeated.keep(
                request, image, _Repeated(client_host, cost.header, repeat, leaves, frame)
            )
        return response

    def _repeat_of_request(self) -> Repeat | None:
        """What the request has called `repeat_by` with; type checkers don't follow that call."""
        return self._repeat

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
        RepeatedRequests() if form.repeats else None,
    )


def _do_nothing() -> None:
    """Before the request's connection knows of it."""


class DelayedRequest(Awaitable[None]):
    """One request that waits; its connection awaits it or sets ``on_due``.

    ``on_due`` is called when the wait has ended; then `complete` must be called.
    """

    def __init__(
        self,
        requests: DelayedRequests,
        delay: SingleDelay,
        respond: Callable[[SingleResponse | None], Awaitable[None] | None],
    ) -> None:
        self._requests = requests
        self.delay = delay
        self._respond = respond
        self._response: SingleResponse | None = None
        self._error: Exception | None = None
        self.on_due: Callable[[], object] = _do_nothing
        self.is_noted = False

    @property
    def client(self) -> ClientConnection:
        """The connection that sent the request."""
        return self.delay.cost.client

    def set(self) -> None:
        """Attempt the request again soon."""
        self._requests.note(self)

    def attempt(self, *, is_over: bool) -> bool:
        """Return whether the wait has ended."""
        try:
            found = self.delay.attempt(is_over=is_over)
        except Exception as error:  # noqa: BLE001 - closes the connection, see `complete`
            self._error = error
            return True
        if found is self.delay:
            return False
        self._response = cast("SingleResponse | None", found)
        return True

    def complete(self) -> Awaitable[None] | None:
        """Respond now; return what remains to be awaited. Raises what the attempt raised."""
        if self._error is not None:
            raise self._error
        return self._respond(self._response)

    def cancel(self) -> None:
        """End the wait without a response."""
        self._requests.forget(self)

    def __await__(self) -> Generator[object, None, None]:
        """Wait, and respond."""
        return self._wait().__await__()

    async def _wait(self) -> None:
        due = trio.Event()
        self.on_due = due.set
        try:
            await due.wait()
        except BaseException:
            self.cancel()
            raise
        rest = self.complete()
        if rest is not None:
            await rest


class DelayedRequests:
    """The waiting requests of one processor; ``run`` must be running."""

    def __init__(self, now: Callable[[], float], work_time: WorkTime) -> None:
        self._now = now
        self._work_time = work_time
        self._deadlines: Deadlines[DelayedRequest] = Deadlines()
        self._noted: list[DelayedRequest] = []
        self._wake = trio.Event()
        self._timer = trio.CancelScope()
        """Ends the sleep of `run` at the next deadline; moving it is cheaper than waking `run`."""
        self.is_attended = False
        """Whether `attempt_noted` will be called before other tasks run."""

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._deadlines)

    def start(
        self,
        delay: SingleDelay,
        respond: Callable[[SingleResponse | None], Awaitable[None] | None],
    ) -> DelayedRequest:
        """Let a request wait; ``respond`` is called with its response, or None for other ways."""
        request = DelayedRequest(self, delay, respond)
        delay.watch(request)
        if self._deadlines.add(request, delay.deadline):
            self._timer.deadline = delay.deadline
        return request

    def note(self, request: DelayedRequest) -> None:
        """Attempt a request soon."""
        if not request.is_noted:
            request.is_noted = True
            self._noted.append(request)
            if not self.is_attended:
                self._wake.set()

    def forget(self, request: DelayedRequest) -> None:
        """Forget a request."""
        if request in self._deadlines:
            self._deadlines.forget(request)
            request.delay.unwatch(request)

    def attempt_noted(self) -> None:
        """Attempt the noted requests, and complete those whose wait has ended."""
        while self._noted:
            noted, self._noted = self._noted, []
            for request in noted:
                request.is_noted = False
                if request in self._deadlines:
                    self._attempt(request, is_over=False)

    async def run(self) -> None:
        """Attempt requests when they are noted or due, until cancelled."""
        while True:
            self._wake = trio.Event()
            self.attempt_noted()
            for request in self._deadlines.due(self._now()):
                request.delay.unwatch(request)
                self._attempt(request, is_over=True)
            self._work_time.switch(None)
            end = self._deadlines.next()
            with trio.CancelScope(deadline=math.inf if end is None else end) as self._timer:
                await self._wake.wait()

    def _attempt(self, request: DelayedRequest, *, is_over: bool) -> None:
        self._work_time.switch(request.client.account)
        if request.attempt(is_over=is_over):
            self.forget(request)
            request.on_due()


# --------------------------------------------------------------------------------------------------
# Cache of encoded responses that depend only on the cluster image, the request, and the listener or
# address that the client connected to.
#
# Owns the encoded responses of requests that clients repeat: Metadata of all topics, which takes
# longer to build than to send, and ApiVersions, the first request of each connection. It must never
# know what a response means. Invariant: a response is found only with the image that it was built
# from, for the same bytes of the request, so it is the one that would be built now. Kafka builds
# the response from ``KRaftMetadataCache`` each time.

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
_CACHEABLE: Final = frozenset(
    int(api.key).to_bytes(_KEY_BYTES, "big") for api in APIS.values() if api.is_cacheable
)
_Key = tuple[bytes, bytes, str, tuple[str, int] | None]


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
        caller = cost.client.caller
        key = body[:API_BYTES], body[position:], caller.listener, caller.connected_to
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
            caller = cost.client.caller
            key = body[:API_BYTES], body[found[1] :], caller.listener, caller.connected_to
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
