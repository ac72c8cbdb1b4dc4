"""Handles one request: execute it directly or in steps, throttle its client, encode, send.

Owns the path of a request through a processor, and what is recorded of it. It must never know what
an API does, or the state of a socket. Invariant: a request is recorded once, whether its response
was sent or not. Kafka's ``KafkaApis.handle`` and ``RequestHandlerHelper``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, cast

from minibroker.broker.apis.authorization.authorizers import Authorizers
from minibroker.broker.apis.base import CONTROLLER, Context, Owner, ServedApi
from minibroker.broker.apis.fetch_sessions import FetchSessionCache, session_ids, slots_of
from minibroker.broker.apis.serving import serving
from minibroker.broker.log.slices import FileSlice
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import FetchSessionFigures
from minibroker.broker.network.activity_events import (
    first_error,
    request_event,
)
from minibroker.broker.network.activity_sender import ActivitySender
from minibroker.broker.network.client_connection import ClientConnection
from minibroker.broker.network.connection_state import ChannelEvent
from minibroker.broker.network.delayed_requests import DelayedRequests
from minibroker.broker.network.open_files import OpenFiles
from minibroker.broker.network.quota_stage import QuotaStage
from minibroker.broker.network.request_cost import RequestCost
from minibroker.broker.network.request_execution import RequestExecution
from minibroker.broker.network.request_reader import LENGTH_BYTES
from minibroker.broker.network.response_cache import CachedResponse, ResponseCache
from minibroker.broker.network.response_sender import (
    COPIED_BYTES_MAX,
    Chunk,
    join_response,
    send_response,
)
from minibroker.broker.network.single_requests import SingleDelay, SingleRequests, SingleResponse
from minibroker.broker.process.environment import Environment
from minibroker.broker.process.metadata_client import MetadataClient
from minibroker.broker.settings.access_definitions import AUTHORIZER_CLASS_NAME
from minibroker.broker.settings.dynamic import DynamicSettings
from minibroker.broker.settings.fetch_definitions import MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS
from minibroker.broker.settings.types import INT_MAX
from minibroker.runtime.arena import ArenaRef, Block
from minibroker.runtime.rpc import Link, LocalPeer
from minibroker_protocol.compiler import encoder
from minibroker_protocol.headers import RequestHeader, encode_response_header
from minibroker_protocol.registry import ApiKey

if TYPE_CHECKING:
    from minibroker.broker.apis.unserved import Unserved
    from minibroker.broker.network.fault_stage import FaultStage
    from minibroker.broker.network.journal_recorder import JournalRecorder
    from minibroker.broker.security.acl import Operation, Resource

DirectResponse = SingleResponse | CachedResponse
"""A response without the three steps of an API, which encodes itself."""

StartRequest = Callable[[ClientConnection, bytes | Block], RequestCost | Awaitable[None]]

# Used by every request: attribute access of an enumeration takes ten times as long.
_FETCH: Final = ApiKey.FETCH
_REQUEST_RECEIVED: Final = ChannelEvent.REQUEST_RECEIVED
_RESPONSE_READY: Final = ChannelEvent.RESPONSE_READY
_RESPONSE_SENT: Final = ChannelEvent.RESPONSE_SENT

DIRECT_RESPONSES: Final = (SingleResponse, CachedResponse)


class RequestHandler:
    """Handles the requests of one processor."""

    def __init__(
        self,
        env: Environment,
        metadata_client: MetadataClient,
        owners: Mapping[Owner, Link | LocalPeer],
        files: OpenFiles,
        quota_stage: QuotaStage,
        *,
        activity: ActivitySender | None,
        on_use: Callable[[int], None],
        on_unserved: Callable[[ClientConnection, Unserved], None],
    ) -> None:
        """``on_use`` is called with the number of a connection before its response is sent,
        ``on_unserved`` with a client that requested a protocol that is not served.
        """
        self._env = env
        self._metadata_client = metadata_client
        self._owners = owners
        self._files = files
        self.quota_stage = quota_stage
        self._activity = activity
        self._on_use = on_use
        self._on_unserved = on_unserved
        self._authorizers = Authorizers(env.settings)
        self._dynamic_settings = DynamicSettings(env.settings)
        self.apis, self._advertised = serving(env.settings)
        local = env.local_worker
        self._has_authorizer = bool(env.settings[AUTHORIZER_CLASS_NAME])
        self._single = (
            None
            if local is None
            else SingleRequests(
                self.apis, metadata_client, local, files, quota_stage.fetch_bytes_max
            )
        )
        self._cache = ResponseCache()
        self.delayed = DelayedRequests(env.clock.now, env.work_time)
        self.fetch_sessions = FetchSessionCache(
            slots_of(
                env.index,
                env.processors,
                env.settings[MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS],
            ),
            session_ids(env.index, env.processors),
            env.random.randrange,
        )
        env.metrics.watch_fetch_sessions(self._fetch_session_figures)
        self._log = EventLog(env.name)
        self.faults: FaultStage | None = None
        """The fault rules; None if none is set."""
        self.start: StartRequest = self.start_now
        """Starts a request; replaced while requests are paused."""
        self.quick_requests = 0
        """Requests in flight that never wait at their owners."""

    def _fetch_session_figures(self) -> FetchSessionFigures:
        cache = self.fetch_sessions
        return FetchSessionFigures(len(cache), cache.partition_count, cache.evictions)

    def serve(self, client: ClientConnection, body: bytes | Block) -> Awaitable[None] | None:
        """Serve one request, now if it need not wait.

        Return None if its response was sent, else what the connection's task must await. Any
        exception closes the connection.
        """
        started = self.start(client, body)
        return self.respond(started) if isinstance(started, RequestCost) else started

    def start_now(
        self, client: ClientConnection, body: bytes | Block
    ) -> RequestCost | Awaitable[None]:
        """Execute one request if it need not wait; then `respond` must be called with the result.

        Otherwise return what the connection's task must await.
        """
        cost = self._receive(client, body)
        journal = self._env.journal
        if journal is not None:
            cost.journal_body = body
            journal.expect(2)  # The request and its response.
        if self.faults is not None:
            self._record_request(cost)  # A rule may kill this process while it executes.
            if self.faults.concerns(body):
                return self._serve_in_steps(cost, body)
        if isinstance(body, bytes) and not self._has_authorizer:
            try:
                response = self._execute_directly(cost, body)
            except BaseException:
                self._record_request(cost)
                raise
            if isinstance(response, DIRECT_RESPONSES):
                cost.response = response
                return cost
            if response is not None:
                self._record_request(cost)
                return self.delayed.start(response, partial(self._complete_delayed, cost, body))
        self._record_request(cost)
        return self._serve_in_steps(cost, body)

    def _record_request(self, cost: RequestCost) -> None:
        """Record a request for the journal, if that is on and will not get it with the response."""
        if cost.journal_body is not None:
            self._recorder.request(cost, cost.journal_body)
            cost.journal_body = None

    async def _serve_in_steps(self, cost: RequestCost, body: bytes | Block) -> None:
        await self._execute(cost, body)  # decode, authorize, execute
        encoded = _chunks(cost, cost.response)
        if isinstance(body, bytes):
            self._keep(cost, body, encoded)
        await self._respond(cost, encoded)

    def _complete_delayed(
        self, cost: RequestCost, body: bytes, response: SingleResponse | None
    ) -> Awaitable[None] | None:
        if response is None:
            return self._serve_in_steps(cost, body)
        cost.response = response
        self._on_use(cost.client.number)  # Not only when it was requested.
        return self.respond(cost)

    def respond(self, cost: RequestCost) -> Awaitable[None] | None:
        """Send the response of a direct request; return what remains to be awaited."""
        client = cost.client
        client.client_id = cost.header.client_id
        encoded: bytes = cost.response.encode()
        try:
            if client.is_sampled or self.quota_stage.active:
                rest = self._throttle_direct(cost, encoded)
                if rest is not None:
                    return rest
            client.state.on(_RESPONSE_READY)
            if cost.journal_body is not None:
                cost.journal_ns = time.perf_counter_ns()
            elif self._env.journal is not None:
                self._recorder.response(cost, encoded, len(encoded))
            sent = client.stream.send_now(encoded)
        except BaseException:
            self._failed(cost)
            raise
        if sent < len(encoded):
            if cost.journal_body is not None:
                self._record_request(cost)
                self._recorder.response(cost, encoded, len(encoded))
            self.quota_stage.complete_deferred()  # Others are served before the rest is sent.
            return self._send_rest(cost, encoded, sent)
        self._sent_direct(cost, encoded)
        return None

    def _throttle_direct(self, cost: RequestCost, encoded: bytes) -> Awaitable[None] | None:
        """Record a direct request; return what to await if its response cannot be sent now."""
        stage = self.quota_stage
        cost.now = self._env.clock.now()
        stage.prepare(cost)
        if stage.delays_responses:
            self._record_request(cost)
            return self._respond(cost, encoded)
        cost.response_bytes = _body_bytes(cost, encoded)
        throttled = stage.before_response(cost)
        if throttled is None:
            return None
        self._record_request(cost)
        return self._complete(cost, _encoded(cost, throttled))

    async def _send_rest(self, cost: RequestCost, encoded: bytes, sent: int) -> None:
        try:
            await cost.client.stream.send_all(memoryview(encoded)[sent:])
        except BaseException:
            self._failed(cost)
            raise
        self._sent_direct(cost, encoded)

    def _sent_direct(self, cost: RequestCost, encoded: bytes) -> None:
        self._count_direct(cost, encoded)
        cost.client.state.on(_RESPONSE_SENT)
        self._settle(cost)
        if cost.journal_body is not None:
            self._recorder.exchange(cost, encoded)

    def _count_direct(self, cost: RequestCost, encoded: bytes) -> None:
        cost.sent_bytes = len(encoded)
        if cost.header.api_key == _FETCH:
            self._env.metrics.fetched(cost.response.record_bytes)

    async def _respond(self, cost: RequestCost, encoded: bytes | Sequence[Chunk]) -> None:
        """Record the request, and send its response; both may wait."""
        cost.response_bytes = _body_bytes(cost, encoded)
        stage = self.quota_stage
        try:
            throttled = (
                await stage.delay_response(cost)
                if stage.delays_responses
                else stage.before_response(cost)
            )
        except BaseException:
            self._failed(cost)
            raise
        await self._complete(cost, encoded if throttled is None else _encoded(cost, throttled))

    async def _complete(self, cost: RequestCost, encoded: bytes | Sequence[Chunk]) -> None:
        """Send the response of a request that was recorded."""
        try:
            await self._send(cost, encoded)
        except BaseException:
            self._failed(cost)
            raise
        self._settle(cost)
        if cost.faults is not None:
            await cost.faults.mute()

    def _failed(self, cost: RequestCost) -> None:
        """Record a request whose response could not be sent."""
        self._record_request(cost)
        self.quota_stage.complete_deferred()
        cost.failed(time.perf_counter_ns())
        self._report(cost)

    def _settle(self, cost: RequestCost) -> None:
        """Record a request whose response was sent."""
        self._account(cost)
        if cost.journal_record is not None:
            self._recorder.sent(cost)
        self.quota_stage.after_send(cost)
        cost.client.accounted_ns = cost.client.account.worked_ns
        self._record(cost)

    def _receive(self, client: ClientConnection, body: bytes | Block) -> RequestCost:
        received_ns = time.perf_counter_ns()
        self._env.work_time.settle()
        client.state.on(_REQUEST_RECEIVED)
        size = len(body) if isinstance(body, bytes) else len(body.view)
        return RequestCost(client, size, received_ns, client.account.worked_ns)

    def _execute_directly(
        self, cost: RequestCost, body: bytes
    ) -> DirectResponse | SingleDelay | None:
        """Execute the request in a single step or answer it from the cache, if that is possible."""
        found = None if self._single is None else self._single.execute(cost, body)
        if found is not None:
            return found
        return self._cache.find(cost, body, self._metadata_client.image)

    def _keep(self, cost: RequestCost, body: bytes, encoded: Sequence[Chunk]) -> None:
        """Let the cache keep a response for which no owner was asked."""
        if not (cost.is_direct or cost.owners_ns or self._has_authorizer or cost.faults):
            self._cache.keep(cost, body, cost.ctx.image, encoded)

    async def _execute(self, cost: RequestCost, body: bytes | Block) -> None:
        """Execute the request in the steps of its API, in the processes that own its parts."""
        if isinstance(body, bytes):
            reader = cost.client.reader
            assert reader is not None
            body = await reader.store(body)
        execution = RequestExecution(self, cost, body)
        try:
            await execution.run()
        finally:
            execution.free()
        cost.error = first_error(cost.response)
        cost.now, cost.mutated = cost.ctx.now, cost.ctx.mutated
        if cost.ctx.unserved is not None:
            self._on_unserved(cost.client, cost.ctx.unserved)

    async def _send(self, cost: RequestCost, encoded: bytes | Sequence[Chunk]) -> None:
        client = cost.client
        if cost.response is None:
            client.state.on(ChannelEvent.NO_RESPONSE)
            return
        client.state.on(ChannelEvent.RESPONSE_READY)
        # Before sending: requests after this response must see the connection as used.
        self._on_use(client.number)
        if isinstance(encoded, bytes):
            if self._env.journal is not None:
                self._recorder.response(cost, encoded, len(encoded))
            await client.stream.send_all(encoded)
            self._count_direct(cost, encoded)
        else:
            await self._send_chunks(cost, encoded)
        client.state.on(ChannelEvent.RESPONSE_SENT)

    async def _send_chunks(self, cost: RequestCost, chunks: Sequence[Chunk]) -> None:
        client, key = cost.client, cost.header.api_key
        version = cost.header.api_version
        start = encode_response_header(key, version, cost.header.correlation_id)
        if cost.faults is not None:
            frame = join_response(self._files, start, chunks)
            if self._env.journal is not None:
                sent = cost.faults.damaged(frame)
                self._recorder.response(cost, sent, len(sent))
            cost.sent_bytes = await cost.faults.send(frame)
            return
        if self._env.journal is None:
            cost.sent_bytes = await send_response(client.stream, self._files, start, chunks)
        else:
            cost.sent_bytes = await self._send_recorded(cost, start, chunks)
        if key == _FETCH:
            fetched = sum(len(chunk) for chunk in chunks if isinstance(chunk, FileSlice))
            self._env.metrics.fetched(fetched)

    async def _send_recorded(self, cost: RequestCost, start: bytes, chunks: Sequence[Chunk]) -> int:
        """Send a response that is recorded for the journal; return the number of bytes."""
        stream, size = cost.client.stream, LENGTH_BYTES + len(start) + sum(map(len, chunks))
        if size > COPIED_BYTES_MAX:
            self._recorder.response(cost, None, size)
            return await send_response(stream, self._files, start, chunks)
        frame = join_response(self._files, start, chunks)
        self._recorder.response(cost, frame, size)
        await stream.send_all(frame)
        return size

    @cached_property
    def _recorder(self) -> JournalRecorder:
        # Loaded when the journal is on: most brokers have none.
        from minibroker.broker.network.journal_recorder import JournalRecorder

        return JournalRecorder(self._env)

    def _account(self, cost: RequestCost) -> None:
        cost.client.in_flight = None
        sent_ns = time.perf_counter_ns()
        self._env.work_time.settle()
        cost.sent(cost.client.account.worked_ns, sent_ns)

    def _record(self, cost: RequestCost) -> None:
        self._report(cost)
        self._env.metrics.request(
            cost.header.api_key,
            cost.error != 0,
            cost.request_bytes,
            cost.sent_bytes,
            cost.queue_ns,
            cost.network_ns,
            cost.io_ns,
            cost.total_ns,
        )

    def _report(self, cost: RequestCost) -> None:
        if cost.checks is not None:
            assert self._activity is not None
            self._activity.report(request_event(self._activity.time_us(cost.now), cost))

    def context(self, client: ClientConnection, header: RequestHeader, block: Block) -> Context:
        """Return the context of a request for its API."""
        env = self._env
        now = env.clock.now()
        return Context(
            header=header,
            caller=client.caller,
            image=self._metadata_client.image,
            settings=env.settings,
            dynamic_settings=self._dynamic_settings,
            workers=env.workers,
            received=now,
            now=now,
            wall_ms=env.clock.wall_ms(),
            served=self._advertised,
            reference=partial(_reference, block),
            fetch_bytes_max=self.quota_stage.fetch_bytes_max(client, header)
            if header.api_key == _FETCH
            else INT_MAX,
            authorizer=self._authorizers.of(self._metadata_client.image),
            fetch_sessions=None
            if self.faults is not None and self.faults.forbids_fetch_sessions
            else self.fetch_sessions,
            denied=partial(self._log_denial, client),
        )

    def _log_denial(
        self, client: ClientConnection, operation: Operation, resource: Resource, name: str
    ) -> None:
        self._log.info(
            f"{operation.name} was denied",
            principal=client.caller.principal,
            client=client.caller.client_host,
            resource=f"{resource.name}:{name}",
        )

    def refresh(self, ctx: Context) -> None:
        """Update image and time for the next step."""
        ctx.image = self._metadata_client.image
        ctx.now = self._env.clock.now()

    def should_poll(self, api: ServedApi, owner: Owner) -> bool:
        """Whether to poll for an answer instead of sleeping until it arrives.

        Only for a quick answer of an I/O worker, and if no other request waits for one.
        """
        return not api.may_wait and self.quick_requests == 1 and owner != CONTROLLER

    def peer(self, owner: Owner) -> Link | LocalPeer:
        """Return an owner, behind a link or in this process."""
        return self._owners[owner]


def _encoded(cost: RequestCost, response: Any) -> bytes | Sequence[Chunk]:
    """A response without length and header, in chunks, or with both if it is a direct one."""
    if isinstance(response, DIRECT_RESPONSES):
        return response.encode()
    return _chunks(cost, response)


def _chunks(cost: RequestCost, response: Any) -> Sequence[Chunk]:
    if response is None:
        return ()
    # A records field of a response contains slices of files only.
    version = cost.header.api_version
    return cast("list[Chunk]", encoder(type(response), version)(response))


def _body_bytes(cost: RequestCost, encoded: bytes | Sequence[Chunk]) -> int:
    if isinstance(encoded, bytes):
        return len(encoded) - LENGTH_BYTES - int(cost.response.header_bytes)
    return sum(len(chunk) for chunk in encoded)


def _reference(block: Block, records: object) -> ArenaRef:
    assert isinstance(records, range)  # `locating_decoder` returns a range for a records field
    return block.ref(records.start, len(records))
