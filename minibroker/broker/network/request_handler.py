"""The life of a request: received, executed, throttled, answered, recorded.

Owns the way of a request through a processor, from its bytes to its response, and what is recorded
of it. It must never know what an API does, who observes, or the state of a socket. Read from top to
bottom: a request for one partition or group of this process takes a single step, from its bytes to
the leaves of its response: neither objects nor messages are created for it (``SingleRequests``).
One whose response is known is answered from the cache; all others take the steps of their API:
split, ask the owners of the parts, merge. All ways end in the same quotas, figures and observers. A
request that was not executed in a single step has had no effect, so it can take the general way,
and its response has the same bytes; only requests that need no authorization are executed so.
Invariant: a request is recorded once, whether its response was sent or not; its memory is released
once, and not before every owner with a reference to it has answered or died, so no owner reads the
bytes of another request. Kafka's ``KafkaApis.handle`` and ``RequestHandlerHelper``.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from minibroker.broker.apis.api_versions import software_in, unsupported_version
from minibroker.broker.apis.base import CONTROLLER, Context, Owner, ServedApi
from minibroker.broker.apis.fetch_sessions import FetchSessionCache, session_ids, slots_of
from minibroker.broker.apis.registry import Authorizers, serving
from minibroker.broker.metrics.definitions import OTHER, CloseReason
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import FetchSessionFigures
from minibroker.broker.network.client_connection import (
    LENGTH_BYTES,
    ChannelEvent,
    ChannelState,
    ClientConnection,
)
from minibroker.broker.network.direct_requests import (
    CachedResponse,
    DelayedRequests,
    ResponseCache,
    SingleDelay,
    SingleRequests,
    SingleResponse,
)
from minibroker.broker.network.quota_stage import (
    QuotaStage,
    RequestCost,
    count_records,
    first_error,
)
from minibroker.broker.network.response_sender import (
    COPIED_BYTES_MAX,
    Chunk,
    OpenFiles,
    join_response,
    send_response,
)
from minibroker.broker.process.environment import Environment
from minibroker.broker.process.messages import ApiPart, ApiReply
from minibroker.broker.process.metadata_client import MetadataClient
from minibroker.broker.settings.definitions import (
    AUTHORIZER_CLASS_NAME,
    GROUP_SHARE_MAX_SHARE_SESSIONS,
    MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS,
    PERSONA,
)
from minibroker.broker.settings.dynamic import DynamicSettings
from minibroker.broker.settings.setting import INT_MAX
from minibroker.broker.shares.service import SharePart
from minibroker.broker.shares.sessions import MemberKey, ShareSessionCache
from minibroker.runtime.arena import Block, RecordsRef
from minibroker.runtime.rpc import Link, LocalPeer, PeerFailed, PeerLost, request_all
from minibroker_protocol import registry
from minibroker_protocol.compiler import encoder, locating_decoder
from minibroker_protocol.errors import UnsupportedVersion
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.wire import RequestHeader, decode_request_header, encode_response_header

if TYPE_CHECKING:
    from minibroker.broker.apis.unserved import Unserved
    from minibroker.broker.metadata.image import Image
    from minibroker.broker.network.interception import Interceptor
    from minibroker.broker.network.request_observer import RequestObserver
    from minibroker.broker.security.acl import Operation, Resource
    from minibroker_protocol.messages.produce import ProduceRequest
    from minibroker_protocol.types import Uuid


DirectResponse = SingleResponse | CachedResponse
"""A response without the three steps of an API, which encodes itself."""

StartRequest = Callable[[ClientConnection, bytes | Block], RequestCost | Awaitable[None]]

# Used by every request: attribute access of an enumeration takes ten times as long.
_FETCH: Final = ApiKey.FETCH
_SHARE_FETCH: Final = ApiKey.SHARE_FETCH
_PRODUCE: Final = ApiKey.PRODUCE
_PRODUCE_BYTES: Final = int(_PRODUCE).to_bytes(2, "big")
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
        on_use: Callable[[int, float], None],
        on_unserved: Callable[[ClientConnection, Unserved], None],
    ) -> None:
        """``on_use`` is called with the number of a connection and the time before its response is
        sent, ``on_unserved`` with a client that requested a protocol that is not served.
        """
        self._env = env
        self._metadata_client = metadata_client
        self.owners = owners
        """The processes that execute parts of requests, behind links or in this process."""
        self._files = files
        self.quota_stage = quota_stage
        self._on_use = on_use
        self._on_unserved = on_unserved
        self._authorizers = Authorizers(env.settings)
        self._dynamic_settings = DynamicSettings(env.settings)
        self.apis, self._advertised = serving(env.settings)
        local = env.local_worker
        self._shares_records = local is None or env.workers > 1
        """Whether another process reads the records of requests, in the shared memory."""
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
        self.share_sessions = ShareSessionCache(
            env.settings[GROUP_SHARE_MAX_SHARE_SESSIONS], env.index
        )
        env.metrics.watch_fetch_sessions(self._fetch_session_figures)
        self._log = EventLog(env.name)
        self.observers: tuple[RequestObserver, ...] = ()
        """What watches connections and requests."""
        self.interceptor: Interceptor | None = None
        """What changes requests and responses, if anything does."""
        self.start: StartRequest = self.start_now
        """Starts a request; replaced while requests are paused."""
        self.quick_requests = 0
        """Requests in flight that never wait at their owners."""

    def _fetch_session_figures(self) -> FetchSessionFigures:
        cache = self.fetch_sessions
        return FetchSessionFigures(len(cache), cache.partition_count, cache.evictions)

    # Reception --------------------------------------------------------------------------------

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
        for observer in self.observers:
            observer.received(cost, body)
        if self.interceptor is not None:
            self._detain(cost)  # This process may be killed while it executes.
            if self.interceptor.concerns(body):
                return self._serve_in_steps(cost, body)
        if isinstance(body, bytes) and not self._has_authorizer:
            try:
                response = self._execute_directly(cost, body)
            except BaseException:
                self._detain(cost)
                raise
            if isinstance(response, DIRECT_RESPONSES):
                cost.response = response
                return cost
            if response is not None:
                self._detain(cost)
                return self.delayed.start(response, partial(self._complete_delayed, cost, body))
        self._detain(cost)
        return self._serve_in_steps(cost, body)

    def _receive(self, client: ClientConnection, body: bytes | Block) -> RequestCost:
        received_ns = time.perf_counter_ns()
        self._env.work_time.settle()
        client.state.on(_REQUEST_RECEIVED)
        size = len(body) if isinstance(body, bytes) else len(body.view)
        return RequestCost(client, size, received_ns, client.account.worked_ns)

    def _detain(self, cost: RequestCost) -> None:
        for observer in self.observers:
            observer.detained(cost)

    # In a single step, or from the cache ------------------------------------------------------

    def _execute_directly(
        self, cost: RequestCost, body: bytes
    ) -> DirectResponse | SingleDelay | None:
        """Execute the request in a single step or answer it from the cache, if that is possible."""
        found = None if self._single is None else self._single.execute(cost, body)
        if found is not None:
            return found
        return self._cache.find(cost, body, self._metadata_client.image)

    def _complete_delayed(
        self, cost: RequestCost, body: bytes, response: SingleResponse | None
    ) -> Awaitable[None] | None:
        if response is None:
            return self._serve_in_steps(cost, body)
        cost.response = response
        self._on_use(cost.client.number, self.now())  # Not only when it was requested.
        return self.respond(cost)

    def respond(self, cost: RequestCost) -> Awaitable[None] | None:
        """Send the response of a direct request; return what remains to be awaited."""
        client = cost.client
        client.client_id = cost.header.client_id
        encoded: bytes = cost.response.encode()
        try:
            if client.needs_checks or self.quota_stage.active:
                rest = self._throttle_direct(cost, encoded)
                if rest is not None:
                    return rest
            client.state.on(_RESPONSE_READY)
            self._announce(cost, encoded)
            sent = client.stream.send_now(encoded)
        except BaseException:
            self._failed(cost)
            raise
        if sent < len(encoded):
            self._detain(cost)
            self._announce(cost, encoded)
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
            self._detain(cost)
            return self._respond(cost, encoded)
        cost.response_bytes = _body_bytes(cost, encoded)
        throttled = stage.before_response(cost)
        if throttled is None:
            return None
        self._detain(cost)
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
        self._settle(cost, encoded)

    def _count_direct(self, cost: RequestCost, encoded: bytes) -> None:
        cost.sent_bytes = len(encoded)
        if cost.header.api_key == _FETCH:
            name, topic_id = cost.response.topic
            self._count_fetched(name, topic_id, cost.response.record_bytes)

    # In the steps of its API ------------------------------------------------------------------

    async def _serve_in_steps(self, cost: RequestCost, body: bytes | Block) -> None:
        await self._execute(cost, body)  # decode, authorize, execute
        encoded = _chunks(cost, cost.response)
        if isinstance(body, bytes):
            self._keep(cost, body, encoded)
        await self._respond(cost, encoded)

    async def _execute(self, cost: RequestCost, body: bytes | Block) -> None:
        """Execute the request in the steps of its API, in the processes that own its parts."""
        if isinstance(body, bytes) and self._shares_records and body.startswith(_PRODUCE_BYTES):
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

    def _keep(self, cost: RequestCost, body: bytes, encoded: Sequence[Chunk]) -> None:
        """Let the cache keep a response for which no owner was asked."""
        if not (cost.is_direct or cost.owners_ns or self._has_authorizer or cost.interception):
            self._cache.keep(cost, body, cost.ctx.image, encoded)

    def context(
        self, client: ClientConnection, header: RequestHeader, body: bytes | Block
    ) -> Context:
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
            reference=partial(_reference, body),
            fetch_bytes_max=self.quota_stage.fetch_bytes_max(client, header)
            if header.api_key in (_FETCH, _SHARE_FETCH)
            else INT_MAX,
            authorizer=self._authorizers.of(self._metadata_client.image),
            fetch_sessions=None
            if self.interceptor is not None and self.interceptor.forbids_fetch_sessions
            else self.fetch_sessions,
            share_sessions=self.share_sessions,
            denied=partial(self._log_denial, client),
        )

    async def release_shares(self, connection: str, members: Sequence[MemberKey]) -> None:
        """Let all owners release the records of members whose connection is closed."""
        for member in members:
            part = SharePart(member, connection, self._env.index, ends=True)
            for owner in range(self._env.workers):
                request = ApiPart(ApiKey.SHARE_ACKNOWLEDGE, part)
                peer = self.owners[owner]
                with suppress(PeerLost, PeerFailed):
                    if isinstance(peer, LocalPeer):
                        reply = peer.on_request(request)
                        if not isinstance(reply, ApiReply):
                            await reply
                    else:
                        await peer.request(request, may_wait=False)

    def _log_denial(
        self, client: ClientConnection, operation: Operation, resource: Resource, name: str
    ) -> None:
        self._log.info(
            f"{operation.name} was denied",
            principal=client.caller.principal,
            client=client.caller.client_host,
            resource=f"{resource.name}:{name}",
        )

    @property
    def image(self) -> Image:
        """The cluster image."""
        return self._metadata_client.image

    def now(self) -> float:
        """Return the time of the broker's clock."""
        return self._env.clock.now()

    # Quotas, the response, figures ------------------------------------------------------------

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
        self._settle(cost, None)
        if cost.interception is not None:
            await cost.interception.mute()

    async def _send(self, cost: RequestCost, encoded: bytes | Sequence[Chunk]) -> None:
        client = cost.client
        if cost.response is None:
            client.state.on(ChannelEvent.NO_RESPONSE)
            return
        client.state.on(ChannelEvent.RESPONSE_READY)
        # Before sending: requests after this response must see the connection as used.
        self._on_use(client.number, self.now())
        if isinstance(encoded, bytes):
            self._announce(cost, encoded)
            await client.stream.send_all(encoded)
            self._count_direct(cost, encoded)
        else:
            await self._send_chunks(cost, encoded)
        client.state.on(ChannelEvent.RESPONSE_SENT)

    async def _send_chunks(self, cost: RequestCost, chunks: Sequence[Chunk]) -> None:
        header = cost.header
        start = encode_response_header(header.api_key, header.api_version, header.correlation_id)
        interception = cost.interception
        if interception is not None:
            frame = join_response(self._files, start, chunks)
            self._announce(cost, interception.damaged(frame))
            cost.sent_bytes = await interception.send(frame)
            return
        size = LENGTH_BYTES + len(start) + sum(map(len, chunks))
        if self.observers and size <= COPIED_BYTES_MAX:
            frame = join_response(self._files, start, chunks)
            self._announce(cost, frame)
            await cost.client.stream.send_all(frame)
            cost.sent_bytes = size
        else:
            for observer in self.observers:
                observer.answering(cost, None, size)
            cost.sent_bytes = await send_response(cost.client.stream, self._files, start, chunks)
        if header.api_key in (_FETCH, _SHARE_FETCH):
            for topic in cost.response.responses:
                name = topic.topic if header.api_key == _FETCH else None
                size = sum(len(partition.records or b"") for partition in topic.partitions)
                self._count_fetched(name, topic.topic_id, size)

    def _count_fetched(self, name: str | None, topic_id: Uuid, size_bytes: int) -> None:
        topic = name or self._metadata_client.image.topic_names.get(topic_id, OTHER)
        self._env.metrics.fetched(topic, size_bytes)

    def _announce(self, cost: RequestCost, frame: bytes) -> None:
        for observer in self.observers:
            observer.answering(cost, frame, len(frame))

    def _settle(self, cost: RequestCost, frame: bytes | None) -> None:
        """Record a request whose response was sent; ``frame`` if that was done at once."""
        client = cost.client
        client.in_flight = None
        sent_ns = time.perf_counter_ns()
        self._env.work_time.settle()
        cost.sent(client.account.worked_ns, sent_ns)
        self.quota_stage.after_send(cost)
        client.accounted_ns = client.account.worked_ns
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
        for observer in self.observers:
            observer.sent(cost, frame)

    def _failed(self, cost: RequestCost) -> None:
        """Record a request whose response could not be sent."""
        self._detain(cost)
        self.quota_stage.complete_deferred()
        cost.failed(time.perf_counter_ns())
        for observer in self.observers:
            observer.failed(cost)


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


def _reference(body: bytes | Block, records: object) -> RecordsRef:
    assert isinstance(records, range)  # `locating_decoder` returns a range for a records field
    if isinstance(body, Block):
        return body.ref(records.start, len(records))
    return memoryview(body)[records.start : records.stop]


class RequestExecution:
    """Execution of one request, which holds its memory as long as it is needed."""

    def __init__(self, handler: RequestHandler, cost: RequestCost, body: bytes | Block) -> None:
        self._handler = handler
        self._cost = cost
        self._client = cost.client
        self._body = body
        self._block = body if isinstance(body, Block) else None

    async def run(self) -> None:
        """Decode and execute the request: sets header, context, request and response."""
        client, handler, body, cost = self._client, self._handler, self._body, self._cost
        view = memoryview(body) if isinstance(body, bytes) else body.view
        header, at = decode_request_header(view)
        cost.header = header
        client.client_id = header.client_id
        client.in_flight = header.api_key
        ctx = cost.ctx = handler.context(client, header, body)
        api = _served(handler.apis, header)
        if api is None:
            cost.response = unsupported_version(ctx.served, ctx.settings[PERSONA])
            # The version of the response, which is encoded by this header (KIP-511).
            cost.header = header._replace(api_version=0)
            return
        schema = registry.schema(header.api_key)
        request, _ = locating_decoder(schema.request, header.api_version)(view, at)
        cost.request = request
        if client.needs_checks and header.api_key == _PRODUCE:
            cost.records = count_records(cast("ProduceRequest", request), view)
        software = software_in(header, request)
        if software is not None:
            client.set_software(*software)
        if api.may_wait:
            # Only records are read in place, and the client chooses how long the request waits.
            self.free()
        execute = partial(self._execute, api, ctx, request)
        if handler.interceptor is None:
            cost.response = await execute()
        else:
            cost.response, cost.interception = await handler.interceptor.execute(
                client, header, request, ctx.image, execute
            )

    def free(self) -> None:
        """Release the request's memory if it is still held."""
        if self._block is not None:
            self._block.release()
            self._block = None

    async def _execute(self, api: ServedApi, ctx: Context, request: Any) -> Any:
        parts = api.split(ctx, request)
        replies: dict[Owner, Any] = {}
        if parts:
            # An owner with a reference to the request's bytes reads them even if the connection is
            # closed in the meantime, so the request waits for it. Such APIs never wait long.
            with trio.CancelScope(shield=not api.may_wait):
                self._client.interruptible = api.may_wait
                self._handler.quick_requests += not api.may_wait
                try:
                    await self._request_all(api, parts, replies)
                finally:
                    self._client.interruptible = True
                    self._handler.quick_requests -= not api.may_wait
            self._refresh(ctx)
            while api.next_round is not None:
                further = api.next_round(ctx, request, replies)
                if further is None:
                    break
                await self._request_all(api, further.parts, replies, first_only=further.first_only)
                self._refresh(ctx)
        return api.merge(ctx, request, replies)

    async def _request_all(
        self,
        api: ServedApi,
        parts: Mapping[Owner, Any],
        replies: dict[Owner, Any],
        *,
        first_only: bool = False,
    ) -> None:
        started_ns = time.perf_counter_ns()
        owners = sorted(parts)
        peers = self._handler.owners
        requests = [(peers[owner], ApiPart(api.key, parts[owner])) for owner in owners]
        answers: list[ApiReply | None]
        if len(requests) == 1:
            answers = [await self._request(api, owners[0], *requests[0])]
        else:
            answers = await request_all(
                requests,
                may_wait=api.may_wait,
                first_only=first_only,
                on_sent=self._prepare,
            )
        waited_ns = 0
        for owner, answer in zip(owners, answers, strict=True):
            if answer is not None:
                replies[owner] = answer.reply
                self._cost.io_ns += answer.worked_ns
                waited_ns = max(waited_ns, answer.waited_ns)
        self._cost.owners_ns += time.perf_counter_ns() - started_ns - waited_ns

    async def _request(
        self, api: ServedApi, owner: Owner, peer: Link | LocalPeer, part: ApiPart
    ) -> ApiReply:
        if isinstance(peer, LocalPeer):
            reply = peer.on_request(part)
            self._prepare()
            return reply if isinstance(reply, ApiReply) else cast("ApiReply", await reply)
        # Instead of sleeping until a quick answer arrives, if no other request waits for one.
        poll = not api.may_wait and self._handler.quick_requests == 1 and owner != CONTROLLER
        answer: ApiReply = await peer.request(
            part, may_wait=api.may_wait, poll=poll, on_sent=self._prepare
        )
        return answer

    def _prepare(self) -> None:
        if self._handler.quota_stage.active:
            self._handler.quota_stage.prepare(self._cost)

    def _refresh(self, ctx: Context) -> None:
        """Update image and time for the next step."""
        ctx.image = self._handler.image
        ctx.now = self._handler.now()


def _served(apis: Mapping[int, ServedApi], header: RequestHeader) -> ServedApi | None:
    """Return the API of a request, or None for an ApiVersions version that is too new.

    Raises ``UnsupportedVersion`` otherwise: as in Kafka, the connection is closed, because there is
    no version in which to respond.
    """
    api = apis.get(header.api_key)
    if api is None:
        raise UnsupportedVersion(f"{ApiKey(header.api_key).name} is not served")
    low, high = api.versions
    low = low if api.served_from is None else api.served_from
    if low <= header.api_version <= high:
        return api
    if api.key == ApiKey.API_VERSIONS:
        return None
    raise UnsupportedVersion(
        f"{api.key.name} version {header.api_version} is not served, {low} to {high} are"
    )


# --------------------------------------------------------------------------------------------------
# A pause of all requests of one processor, while the broker takes a snapshot or returns to one.
#
# Owns the requests that arrive in the pause, which are executed afterwards. It must never know what
# happens in the pause. Invariant: after `start` no request is being executed, except for those that
# wait for records or for other members of a group; a pause that disconnects has closed the
# connections of these, so no response of an earlier state of the broker is sent. Without a pause,
# requests cost nothing more. Kafka has no equivalent.

WAITED_STEPS: Final = 10
"""Steps of the other tasks after which the processor sleeps until requests are executed."""

WAIT_S: Final = 0.001

_IDLE: Final = frozenset({ChannelState.NOT_MUTED, ChannelState.THROTTLED, ChannelState.CLOSED})


class RequestPause:
    """The pause of one processor."""

    def __init__(
        self,
        env: Environment,
        clients: Mapping[int, ClientConnection],
        handler: RequestHandler,
    ) -> None:
        self._clients = clients
        self._handler = handler
        self._sleep_real = env.clock.sleep_real
        self._ended = trio.Event()
        self._ended.set()

    async def start(self, *, disconnect: bool) -> None:
        """Execute no further request until `end`; return when none is being executed."""
        if self._ended.is_set():
            self._ended = trio.Event()
            self._handler.start = self._start_later
        if disconnect:
            for client in self._in_flight():
                client.close(CloseReason.SNAPSHOT_RESTORED)
            await self._wait(lambda: not self._in_flight())
            self._handler.fetch_sessions.clear()
            self._handler.share_sessions.clear()
        else:
            await self._wait(lambda: all(client.interruptible for client in self._in_flight()))

    def end(self) -> None:
        """Execute requests again."""
        self._handler.start = self._handler.start_now
        self._ended.set()

    def _in_flight(self) -> list[ClientConnection]:
        return [client for client in self._clients.values() if client.state.state not in _IDLE]

    async def _wait(self, is_done: Callable[[], bool]) -> None:
        for _ in range(WAITED_STEPS):
            if is_done():
                return
            await trio.lowlevel.checkpoint()
        while not is_done():
            await self._sleep_real(WAIT_S)

    async def _start_later(self, client: ClientConnection, body: bytes | Block) -> None:
        await self._ended.wait()
        rest = self._handler.serve(client, body)
        if rest is not None:
            await rest
