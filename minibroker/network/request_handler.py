"""Handles one request: decode, split, execute in its owners, merge, encode, send.

Owns the path of a request through a processor. It must never know what an API does, or the state of
a socket. Invariant: the memory of a request is released exactly once, and not before every owner
with a reference to it has answered or died, so no owner reads the bytes of another request. Kafka's
``KafkaApis.handle``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from minibroker.apis.access.authorizers import Authorizers
from minibroker.apis.base import CONTROLLER, Context, Owner, ServedApi, ServedVersions
from minibroker.apis.registry import APIS, unsupported_version
from minibroker.config.dynamic import InForce
from minibroker.config.types import INT_MAX
from minibroker.network.activity_events import (
    RequestFigures,
    count_records,
    first_error,
    request_event,
)
from minibroker.network.activity_sender import ActivitySender
from minibroker.network.client_connection import ClientConnection
from minibroker.network.client_quotas import (
    LENGTH_BYTES,
    ClientQuotas,
    QuotaChecks,
    RequestCost,
    is_exempt,
    quota_user,
)
from minibroker.network.connection_state import ChannelEvent
from minibroker.network.open_files import OpenFiles
from minibroker.network.response_sender import Chunk, send_response
from minibroker.observability.log import Log
from minibroker.process.environment import Environment
from minibroker.process.messages import ApiPart
from minibroker.process.metadata_client import MetadataClient
from minibroker.quotas.manager import FETCH as BYTES_FETCHED
from minibroker.runtime.arena import ArenaRef, Block
from minibroker.runtime.clock import whole_ms
from minibroker.runtime.link import Link, ask_together
from minibroker.storage.slices import FileSlice
from protocol import registry
from protocol.compiler import encoder, locating_decoder
from protocol.errors import UnsupportedVersion
from protocol.headers import RequestHeader, decode_request_header, encode_response_header
from protocol.registry import ApiKey

if TYPE_CHECKING:
    from minibroker.apis.unserved import Unserved
    from minibroker.quotas.manager import Promise
    from minibroker.security.acl import Operation, Resource
    from protocol.messages.api_versions import ApiVersionsRequest
    from protocol.messages.produce import ProduceRequest

SERVED: Final[ServedVersions] = {api.key: api.versions for api in APIS.values()}


class RequestHandler:
    """Handles the requests of one processor."""

    def __init__(
        self,
        env: Environment,
        follower: MetadataClient,
        owners: Mapping[Owner, Link],
        files: OpenFiles,
        client_quotas: ClientQuotas,
        *,
        activity: ActivitySender | None,
        used: Callable[[int], None],
        unserved: Callable[[ClientConnection, Unserved], None],
    ) -> None:
        """``used`` is called with the number of a connection before its response is sent,
        ``unserved`` with a client that requested a protocol that is not served.
        """
        self._env = env
        self._follower = follower
        self._owners = owners
        self._files = files
        self.client_quotas = client_quotas
        self._activity = activity
        self._used = used
        self._unserved = unserved
        self._authorizers = Authorizers(env.settings)
        self._in_force = InForce(env.settings)
        self._log = Log(env.name)
        self.quick = 0
        """Requests in flight whose owners answer without waiting."""

    async def serve(self, client: ClientConnection, block: Block) -> None:
        """Handle one request. Any exception closes the connection."""
        env = self._env
        began_ns = time.perf_counter_ns()
        env.work_time.settle()
        worked_from = client.account.worked_ns
        client.state.on(ChannelEvent.REQUEST_RECEIVED)
        request_bytes = len(block.view)
        exchange = _Exchange(self, client, block)
        try:
            header, response = await exchange.run()
        finally:
            exchange.free()
        chunks = _encoded(header, response)
        assert exchange.ctx is not None
        if exchange.ctx.unserved is not None:
            self._unserved(client, exchange.ctx.unserved)
        promise, cost, counted_ns = None, None, 0
        if client.is_sampled or self.client_quotas.active:
            worked_ns = env.work_time.worked_ns(client.account)
            counted_ns = exchange.io_ns + worked_ns - worked_from
            promise = exchange.promised(chunks, request_bytes, counted_ns)
            if promise is None:
                cost = exchange.cost(response, chunks, request_bytes, counted_ns)
        queue_ns = max(exchange.asked_ns - exchange.io_ns, 0)
        try:
            response_bytes = await self._respond(client, header, response, chunks, cost)
        except BaseException:
            # Quotas have recorded the request, or do so now.
            self.client_quotas.quotas.keep_promise()
            total_ns = time.perf_counter_ns() - began_ns
            figures = RequestFigures((queue_ns, 0, exchange.io_ns, total_ns), None)
            self._tell(client, exchange, figures)
            raise
        client.in_flight = None
        ended_ns = time.perf_counter_ns()
        env.work_time.settle()
        network_ns = client.account.worked_ns - worked_from
        late, reading_ns = None, worked_from - client.accounted_ns
        late_ns = reading_ns + network_ns + exchange.io_ns - counted_ns
        if promise is not None:
            if not promise.keep(late_ns):  # The response could not be sent at once.
                self.client_quotas.worked_on(client, header, late_ns)
        elif cost is not None:
            late_ms, ordinal = self.client_quotas.sent(cost, late_ns)
            late = late_ns, late_ms, ordinal
        client.accounted_ns = client.account.worked_ns
        figures = RequestFigures((queue_ns, network_ns, exchange.io_ns, ended_ns - began_ns), late)
        self._tell(client, exchange, figures)
        failed = bool(first_error(response))
        env.metrics.request(header.api_key, failed, request_bytes, response_bytes, *figures.times)

    async def _respond(
        self,
        client: ClientConnection,
        header: RequestHeader,
        response: Any,
        chunks: Sequence[Chunk],
        cost: RequestCost | None,
    ) -> int:
        """Send the response, modified by quotas if necessary; return its size in bytes."""
        client_quotas = self.client_quotas
        if cost is not None and client_quotas.active:
            if client_quotas.delays:
                other = await client_quotas.throttle_before_response(client, cost)
            else:
                other = client_quotas.throttle_after_response(client, cost)
            if other is not None:
                chunks = _encoded(header, other)
        if response is None:
            client.state.on(ChannelEvent.NO_RESPONSE)
            return 0
        return await self._send(client, header, chunks)

    def _tell(self, client: ClientConnection, exchange: _Exchange, figures: RequestFigures) -> None:
        if exchange.quota_checks is None:
            return
        assert self._activity is not None
        event = request_event(
            self._activity.time_us(exchange.now),
            client,
            exchange,
            figures,
            records=exchange.records,
        )
        self._activity.report(event)

    async def _send(
        self, client: ClientConnection, header: RequestHeader, chunks: Sequence[Chunk]
    ) -> int:
        client.state.on(ChannelEvent.RESPONSE_READY)
        # Before sending: requests after this response must see the connection as used.
        self._used(client.number)
        key, version = header.api_key, _response_version(header)
        start = encode_response_header(key, version, header.correlation_id)
        sent = await send_response(client.stream, self._files, start, chunks)
        if key == ApiKey.FETCH:
            fetched = sum(len(chunk) for chunk in chunks if isinstance(chunk, FileSlice))
            self._env.metrics.fetched(fetched)
        client.state.on(ChannelEvent.RESPONSE_SENT)
        return sent

    def context(self, client: ClientConnection, header: RequestHeader, block: Block) -> Context:
        """Return the context of a request for its API."""
        env = self._env
        now = env.clock.now()
        bounded = self.client_quotas.active and header.api_key == ApiKey.FETCH
        return Context(
            header=header,
            caller=client.caller,
            image=self._follower.image,
            settings=env.settings,
            in_force=self._in_force,
            workers=env.workers,
            received=now,
            now=now,
            wall_ms=env.clock.wall_ms(),
            served=SERVED,
            reference=partial(_reference, block),
            fetch_bytes_max=self.client_quotas.fetch_bytes_max(client, header)
            if bounded
            else INT_MAX,
            authorizer=self._authorizers.of(self._follower.image),
            denied=partial(self._tell_denial, client),
        )

    def _tell_denial(
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
        ctx.image = self._follower.image
        ctx.now = self._env.clock.now()

    def may_look(self, api: ServedApi, owner: Owner) -> bool:
        """Whether to poll for an answer instead of sleeping until it arrives.

        Only for a quick answer of an I/O worker, and if no other request waits for one.
        """
        return not api.may_wait and self.quick == 1 and owner != CONTROLLER

    def link(self, owner: Owner) -> Link:
        """Return the link to an owner."""
        return self._owners[owner]


def _encoded(header: RequestHeader, response: Any) -> list[Chunk]:
    if response is None:
        return []
    # A records field of a response contains slices of files only.
    return cast("list[Chunk]", encoder(type(response), _response_version(header))(response))


def _reference(block: Block, records: object) -> ArenaRef:
    assert isinstance(records, range)  # `locating_decoder` returns a range for a records field
    return block.ref(records.start, len(records))


def _response_version(header: RequestHeader) -> int:
    """Return the version of the response; 0 for an unknown ApiVersions version (KIP-511)."""
    if header.api_key == ApiKey.API_VERSIONS:
        low, high = SERVED[ApiKey.API_VERSIONS]
        return header.api_version if low <= header.api_version <= high else 0
    return header.api_version


class _Exchange(RequestCost):
    """One request in flight; it becomes its own `RequestCost` when the response is known."""

    def __init__(self, shared: RequestHandler, client: ClientConnection, block: Block) -> None:
        self._shared = shared
        self._client = client
        self._block: Block | None = block
        self.ctx: Context | None = None
        self.request: Any = None
        """The decoded request."""
        self.io_ns = 0
        """Work of the owners in nanoseconds."""
        self.asked_ns = 0
        """Time spent waiting for owners, including their work."""
        self._promise: Promise | None = None
        """The promise to record the request after its response, if possible and not given yet."""
        self.records: int | None = None
        """Number of produced records, if activity is recorded."""

    async def run(self) -> tuple[RequestHeader, Any]:
        """Return the header and the response, or None if there is no response."""
        client, shared, block = self._client, self._shared, self._block
        assert block is not None
        header, at = decode_request_header(block.view)
        client.client_id = header.client_id
        client.in_flight = header.api_key
        ctx = self.ctx = shared.context(client, header, block)
        api = _served(header)
        if api is None:
            return header, unsupported_version(ctx.served)
        schema = registry.schema(header.api_key)
        request, _ = locating_decoder(schema.request, header.api_version)(block.view, at)
        self.request = request
        if client.is_sampled and header.api_key == ApiKey.PRODUCE:
            self.records = count_records(cast("ProduceRequest", request), block.view)
        if header.api_key == ApiKey.API_VERSIONS and header.api_version >= 3:
            introduced = cast("ApiVersionsRequest", request)
            client.introduce(introduced.client_software_name, introduced.client_software_version)
        if api.may_wait:
            # Only records are read in place, and a wait may take as long as the client chooses.
            self.free()
        return header, await self._answer(api, ctx, request)

    def free(self) -> None:
        """Release the request's memory if it is still held."""
        if self._block is not None:
            self._block.release()
            self._block = None

    def promised(
        self, chunks: Sequence[Chunk], request_bytes: int, worked_ns: int
    ) -> Promise | None:
        """Return a promise to record the request after its response, or None to record it first."""
        promise, ctx = self._promise, self.ctx
        if promise is None:
            return None
        assert ctx is not None
        size = request_bytes
        if promise.number == BYTES_FETCHED:
            size = LENGTH_BYTES + sum(map(len, chunks))
        return promise if promise.give(size, worked_ns, whole_ms(ctx.now)) else None

    def cost(
        self, response: Any, chunks: Sequence[Chunk], request_bytes: int, worked_ns: int
    ) -> RequestCost:
        """Return this object with all costs set: creating another object would cost more than the
        rest of this function.
        """
        ctx, client = self.ctx, self._client
        assert ctx is not None
        header = self.header = ctx.header
        self.response = response
        self.exempt = is_exempt(ctx, self.request, response)
        self.who = quota_user(client, header)
        self.now = ctx.now
        self.request_bytes = request_bytes
        size = 0
        for chunk in chunks:
            size += len(chunk)
        self.response_bytes = size
        self.worked_ns = worked_ns
        self.mutated = ctx.mutated
        if client.is_sampled:
            self.quota_checks = QuotaChecks()
        return self

    async def _answer(self, api: ServedApi, ctx: Context, request: Any) -> Any:
        parts = api.split(ctx, request)
        replies: dict[Owner, Any] = {}
        if parts:
            # An owner with a reference to the request's bytes reads them in any case, so a
            # connection that is closed meanwhile still waits for it. Such APIs never wait long.
            with trio.CancelScope(shield=not api.may_wait):
                self._client.interruptible = api.may_wait
                self._shared.quick += not api.may_wait
                try:
                    await self._ask_all(api, parts, replies)
                finally:
                    self._client.interruptible = True
                    self._shared.quick -= not api.may_wait
            self._shared.refresh(ctx)
            while api.again is not None:
                further = api.again(ctx, request, replies)
                if further is None:
                    break
                await self._ask_all(api, further.parts, replies, first_only=further.first_only)
                self._shared.refresh(ctx)
        return api.merge(ctx, request, replies)

    async def _ask_all(
        self,
        api: ServedApi,
        parts: Mapping[Owner, Any],
        replies: dict[Owner, Any],
        *,
        first_only: bool = False,
    ) -> None:
        began_ns = time.perf_counter_ns()
        owners = sorted(parts)
        questions = [(self._shared.link(owner), ApiPart(api.key, parts[owner])) for owner in owners]
        if len(questions) == 1:
            link, question = questions[0]
            look = self._shared.may_look(api, owners[0])
            answers = [
                await link.ask(question, may_wait=api.may_wait, look=look, meanwhile=self._prepare)
            ]
        else:
            answers = await ask_together(
                questions,
                may_wait=api.may_wait,
                first_only=first_only,
                meanwhile=self._prepare,
            )
        for owner, answer in zip(owners, answers, strict=True):
            if answer is not None:
                replies[owner] = answer.reply
                self.io_ns += answer.worked_ns
        self.asked_ns += time.perf_counter_ns() - began_ns

    def _prepare(self) -> None:
        """Prepare the quota check while owners execute the request."""
        client_quotas = self._shared.client_quotas
        if client_quotas.active:
            assert self.ctx is not None
            self._promise = client_quotas.promise(self._client, self.ctx, self.request)


def _served(header: RequestHeader) -> ServedApi | None:
    """Return the API of a request, or None for an ApiVersions version that is too new.

    Raises ``UnsupportedVersion``: Kafka too closes the connection, for lack of a response version.
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
