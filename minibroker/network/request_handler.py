"""Handles one request: decode, split, execute in its owners, merge, encode, send.

Owns the path of a request through a processor. It must never know what an API does, or the state of
a socket. Invariant: the memory of a request is released exactly once, and not before every owner
with a reference to it has answered or died, so no owner reads the bytes of another request. Kafka's
``KafkaApis.handle``.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from minibroker.apis.authorization.authorizers import Authorizers
from minibroker.apis.base import CONTROLLER, Context, Owner, ServedApi
from minibroker.apis.fetch_sessions import FetchSessionCache, session_ids, slots_of
from minibroker.apis.registry import APIS, advertised, unsupported_version
from minibroker.config.access_definitions import AUTHORIZER_CLASS_NAME
from minibroker.config.dynamic import DynamicSettings
from minibroker.config.fetch_definitions import MAX_INCREMENTAL_FETCH_SESSION_CACHE_SLOTS
from minibroker.config.types import INT_MAX
from minibroker.network.activity_events import (
    count_records,
    first_error,
    request_event,
)
from minibroker.network.activity_sender import ActivitySender
from minibroker.network.client_connection import ClientConnection
from minibroker.network.connection_state import ChannelEvent
from minibroker.network.open_files import OpenFiles
from minibroker.network.quota_stage import QuotaStage
from minibroker.network.request_cost import RequestCost
from minibroker.network.request_reader import LENGTH_BYTES
from minibroker.network.response_cache import CachedResponse, ResponseCache
from minibroker.network.response_sender import Chunk, send_response
from minibroker.network.single_requests import SingleRequests, SingleResponse
from minibroker.observability.log import EventLog
from minibroker.observability.metrics import FetchSessionFigures
from minibroker.process.environment import Environment
from minibroker.process.messages import ApiPart
from minibroker.process.metadata_client import MetadataClient
from minibroker.runtime.arena import ArenaRef, Block
from minibroker.runtime.rpc import Link, LocalPeer, request_all
from minibroker.storage.slices import FileSlice
from protocol import registry
from protocol.compiler import encoder, locating_decoder
from protocol.errors import UnsupportedVersion
from protocol.headers import RequestHeader, decode_request_header, encode_response_header
from protocol.registry import ApiKey

if TYPE_CHECKING:
    from minibroker.apis.unserved import Unserved
    from minibroker.security.acl import Operation, Resource
    from protocol.messages.api_versions import ApiVersionsRequest
    from protocol.messages.produce import ProduceRequest

_API_VERSIONS: Final = APIS[ApiKey.API_VERSIONS].versions


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
        self._advertised = advertised(env.settings)
        local = env.local_worker
        self._has_authorizer = bool(env.settings[AUTHORIZER_CLASS_NAME])
        self._single = (
            None
            if local is None
            else SingleRequests(
                metadata_client, local, files, quota_stage.fetch_bytes_max, env.work_time
            )
        )
        self._cache = ResponseCache()
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
        self.quick_requests = 0
        """Requests in flight that never wait at their owners."""

    def _fetch_session_figures(self) -> FetchSessionFigures:
        cache = self.fetch_sessions
        return FetchSessionFigures(len(cache), cache.partition_count, cache.evictions)

    async def serve(self, client: ClientConnection, body: bytes | Block) -> None:
        """Handle one request. Any exception closes the connection."""
        cost = self._receive(client, body)
        if not (isinstance(body, bytes) and await self._execute_directly(cost, body)):
            await self._execute(cost, body)  # decode, authorize, execute
        encoded = _encoded(cost, cost.response)
        if isinstance(body, bytes) and not isinstance(encoded, bytes):
            self._keep(cost, body, encoded)
        cost.response_bytes = _body_bytes(cost, encoded)
        try:
            throttled = await self.quota_stage.before_response(cost)
            if throttled is not None:
                encoded = _encoded(cost, throttled)
            await self._send(cost, encoded)
        except BaseException:
            self.quota_stage.response_failed()
            cost.failed(time.perf_counter_ns())
            self._report(cost)
            raise
        self._account(cost)
        self.quota_stage.after_send(cost)
        client.accounted_ns = client.account.worked_ns
        self._record(cost)

    def _receive(self, client: ClientConnection, body: bytes | Block) -> RequestCost:
        received_ns = time.perf_counter_ns()
        self._env.work_time.settle()
        client.state.on(ChannelEvent.REQUEST_RECEIVED)
        size = len(body) if isinstance(body, bytes) else len(body.view)
        return RequestCost(client, size, received_ns, client.account.worked_ns)

    async def _execute_directly(self, cost: RequestCost, body: bytes) -> bool:
        """Execute the request in a single step or answer it from the cache, if that is possible."""
        if self._has_authorizer:
            return False
        image = self._metadata_client.image
        cost.response = self._cache.find(cost, body, image)
        if cost.response is None and self._single is not None:
            cost.response = self._single.execute(cost, body)
            if inspect.iscoroutine(cost.response):
                cost.response = await cost.response
        if cost.response is None:
            return False
        client = cost.client
        client.client_id = cost.header.client_id
        if client.is_sampled or self.quota_stage.active:
            cost.now = self._env.clock.now()
            self.quota_stage.prepare(cost)
        return True

    def _keep(self, cost: RequestCost, body: bytes, encoded: Sequence[Chunk]) -> None:
        """Let the cache keep a response for which no owner was asked."""
        if not (cost.is_direct or cost.owners_ns or self._has_authorizer):
            self._cache.keep(cost, body, cost.ctx.image, encoded)

    async def _execute(self, cost: RequestCost, body: bytes | Block) -> None:
        """Execute the request in the steps of its API, in the processes that own its parts."""
        if isinstance(body, bytes):
            reader = cost.client.reader
            assert reader is not None
            body = await reader.store(body)
        execution = _Execution(self, cost, body)
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
        if not cost.is_direct:  # Then it was used just now.
            # Before sending: requests after this response must see the connection as used.
            self._on_use(client.number)
        if isinstance(encoded, bytes):
            cost.sent_bytes = len(encoded)
            await client.stream.send_all(encoded)
            if cost.header.api_key == ApiKey.FETCH:
                self._env.metrics.fetched(cost.response.record_bytes)
        else:
            await self._send_chunks(cost, encoded)
        client.state.on(ChannelEvent.RESPONSE_SENT)

    async def _send_chunks(self, cost: RequestCost, chunks: Sequence[Chunk]) -> None:
        client, key = cost.client, cost.header.api_key
        version = _response_version(cost.header)
        start = encode_response_header(key, version, cost.header.correlation_id)
        cost.sent_bytes = await send_response(client.stream, self._files, start, chunks)
        if key == ApiKey.FETCH:
            fetched = sum(len(chunk) for chunk in chunks if isinstance(chunk, FileSlice))
            self._env.metrics.fetched(fetched)

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
        bounded = self.quota_stage.active and header.api_key == ApiKey.FETCH
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
            if bounded
            else INT_MAX,
            authorizer=self._authorizers.of(self._metadata_client.image),
            fetch_sessions=self.fetch_sessions,
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
    """A response without length and header, in chunks, or with both if it is a single one."""
    if isinstance(response, SingleResponse):
        return response.encode()
    if isinstance(response, CachedResponse):
        return response.chunks()
    if response is None:
        return ()
    # A records field of a response contains slices of files only.
    version = _response_version(cost.header)
    return cast("list[Chunk]", encoder(type(response), version)(response))


def _body_bytes(cost: RequestCost, encoded: bytes | Sequence[Chunk]) -> int:
    if isinstance(encoded, bytes):
        return len(encoded) - LENGTH_BYTES - int(cost.response.header_bytes)
    return sum(len(chunk) for chunk in encoded)


def _reference(block: Block, records: object) -> ArenaRef:
    assert isinstance(records, range)  # `locating_decoder` returns a range for a records field
    return block.ref(records.start, len(records))


def _response_version(header: RequestHeader) -> int:
    """Return the version of the response; 0 for an unknown ApiVersions version (KIP-511)."""
    if header.api_key == ApiKey.API_VERSIONS:
        low, high = _API_VERSIONS
        return header.api_version if low <= header.api_version <= high else 0
    return header.api_version


class _Execution:
    """Execution of one request, which holds its memory as long as it is needed."""

    def __init__(self, handler: RequestHandler, cost: RequestCost, block: Block) -> None:
        self._handler = handler
        self._cost = cost
        self._client = cost.client
        self._block: Block | None = block

    async def run(self) -> None:
        """Decode and execute the request: sets header, context, request and response."""
        client, handler, block, cost = self._client, self._handler, self._block, self._cost
        assert block is not None
        header, at = decode_request_header(block.view)
        cost.header = header
        client.client_id = header.client_id
        client.in_flight = header.api_key
        ctx = cost.ctx = handler.context(client, header, block)
        api = _served(header)
        if api is None:
            cost.response = unsupported_version(ctx.served)
            return
        schema = registry.schema(header.api_key)
        request, _ = locating_decoder(schema.request, header.api_version)(block.view, at)
        cost.request = request
        if client.is_sampled and header.api_key == ApiKey.PRODUCE:
            cost.records = count_records(cast("ProduceRequest", request), block.view)
        if header.api_key == ApiKey.API_VERSIONS and header.api_version >= 3:
            versions_request = cast("ApiVersionsRequest", request)
            client.set_software(
                versions_request.client_software_name, versions_request.client_software_version
            )
        if api.may_wait:
            # Only records are read in place, and the client chooses how long the request waits.
            self.free()
        cost.response = await self._execute(api, ctx, request)

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
            self._handler.refresh(ctx)
            while api.next_round is not None:
                further = api.next_round(ctx, request, replies)
                if further is None:
                    break
                await self._request_all(api, further.parts, replies, first_only=further.first_only)
                self._handler.refresh(ctx)
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
        requests = [(self._handler.peer(owner), ApiPart(api.key, parts[owner])) for owner in owners]
        if len(requests) == 1:
            peer, part = requests[0]
            poll = self._handler.should_poll(api, owners[0])
            answers = [
                await peer.request(part, may_wait=api.may_wait, poll=poll, on_sent=self._prepare)
            ]
        else:
            answers = await request_all(
                requests,
                may_wait=api.may_wait,
                first_only=first_only,
                on_sent=self._prepare,
            )
        for owner, answer in zip(owners, answers, strict=True):
            if answer is not None:
                replies[owner] = answer.reply
                self._cost.io_ns += answer.worked_ns
        self._cost.owners_ns += time.perf_counter_ns() - started_ns

    def _prepare(self) -> None:
        if self._handler.quota_stage.active:
            self._handler.quota_stage.prepare(self._cost)


def _served(header: RequestHeader) -> ServedApi | None:
    """Return the API of a request, or None for an ApiVersions version that is too new.

    Raises ``UnsupportedVersion`` otherwise: as in Kafka, the connection is closed, because there is
    no version in which to respond.
    """
    api = APIS.get(header.api_key)
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
