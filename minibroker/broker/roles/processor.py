"""The processor role: serves connections passed by the acceptor or accepted by itself.

Owns connections until they are closed, the memory that requests are received into, and the links to
the processes that execute them. It must never own partitions, groups or metadata. Invariant: each
connection is closed with one counted reason, and a request closes at most its own connection.
Kafka's ``SocketServer.Processor``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from ipaddress import ip_address, ip_network
from itertools import islice
from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.admission.connection_events import ConnectionEvents, ExceededLimit
from minibroker.broker.admission.rejected_connections import (
    LEAST_RECENTLY_USED_MAX,
    PROCESSOR_CONNECTIONS_MAX,
    AcceptedConnection,
    AcceptorNotices,
    CloseConnections,
    DescriptorHealth,
    LeastRecentlyUsed,
    LeastRecentlyUsedRequest,
    OpenConnection,
    ProcessorConnections,
)
from minibroker.broker.apis.base import CONTROLLER as CONTROLLER_OWNER
from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.apis.unserved import unserved_request
from minibroker.broker.connections.limits import LastUse, client_ip
from minibroker.broker.metadata.image import Image
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.metrics.log import ConnectionCloses, EventLog
from minibroker.broker.metrics.metrics import Fill
from minibroker.broker.network.authenticator import Authenticator, ConnectionNotAuthenticated
from minibroker.broker.network.client_connection import (
    ChannelEvent,
    ClientConnection,
    IdleConnections,
    InvalidRequestSize,
    evict_slow_claims,
)
from minibroker.broker.network.interception import InterceptorDisconnect
from minibroker.broker.network.quota_stage import QuotaStage
from minibroker.broker.network.reports import (
    CONNECTIONS_SHOWN_MAX,
    ProcessorReport,
    UnservedClients,
)
from minibroker.broker.network.request_handler import RequestHandler, RequestPause
from minibroker.broker.network.request_loop import NewConnectionPacer, RequestLoop
from minibroker.broker.network.response_sender import OpenFiles, RecordsGone, RecordsUnreadable
from minibroker.broker.process.environment import Environment, handoff_name
from minibroker.broker.process.messages import PauseRequests, ResumeRequests
from minibroker.broker.process.metadata_client import MetadataClient
from minibroker.broker.process.worker_links import WorkerPeers
from minibroker.broker.settings import (
    ACCEPTOR_MODE,
    CONNECTIONS_MAX_IDLE_MS,
    MAX_CONNECTIONS,
    QUEUED_MAX_REQUEST_BYTES_PER_IP,
    SHARDED,
)
from minibroker.runtime.handoff import Connection, Handoff, as_stream
from minibroker.runtime.rpc import ChannelClosed, PeerFailed, PeerLost
from minibroker.runtime.stream import SocketStream, StreamClosed
from minibroker.runtime.system import descriptors_max, own_routes
from minibroker_protocol.errors import ProtocolError, UnsupportedVersion

if TYPE_CHECKING:
    from minibroker.broker.admission.sharded_acceptor import ShardedAcceptor


# ----------- The address at which a client reaches this broker, from the two ends of its connection
# Owns the rule for listeners that are advertised by connection (``PLAINTEXT://*:9092``). It must
# never open a socket. Invariant: a client gets the address that it connected to, unless it came
# through a forwarded port, where it cannot reach that address; then it gets the one that the
# listener advertises. Kafka has one fixed address for all clients of a listener.
#
# A connection through a published port of a container comes from the default gateway or, depending
# on the container engine, from the container's own address or from any foreign one. Connections of
# other containers, and of other hosts where the broker runs without a container, come from a
# network that this host is in.


ROUTES_KEPT_S: Final = 1.0
"""How long routes are used before they are read again, because networks come and go."""


Route = tuple[str, str | None]
"""A route of this host: a network, and the gateway to it if the host is not in that network."""


class ConnectedAddresses:
    """Addresses at which clients reach the broker; ``read_routes`` reads this host's routes."""

    def __init__(self, read_routes: Callable[[], Sequence[Route]]) -> None:
        self._read_routes = read_routes
        self._routes: Sequence[Route] = ()
        self._read_again_at = 0.0

    def find(self, local: tuple[str, int], client_host: str, now: float) -> tuple[str, int] | None:
        """Return the address that a client connected to, or None if a port was forwarded."""
        if now >= self._read_again_at:
            self._routes = self._read_routes()
            self._read_again_at = now + ROUTES_KEPT_S
        host = client_ip(local[0])
        return (host, local[1]) if is_direct(host, client_ip(client_host), self._routes) else None


def is_direct(local_host: str, client_host: str, routes: Sequence[Route]) -> bool:
    """Whether a client with this address connected to ``local_host`` without a forwarded port.

    Without known routes every client but this host itself did.
    """
    local, client = ip_address(local_host), ip_address(client_host)
    if client.is_loopback:
        return True
    if client == local or any(gateway == str(client) for _, gateway in routes):
        return False
    networks = [ip_network(network) for network, gateway in routes if gateway is None]
    # A network of all addresses is a default route without a gateway.
    return not routes or any(client in network for network in networks if network.prefixlen)


TAKEN_BEFORE_YIELD: Final = 8
"""New connections taken in a row before requests of other connections are served."""

TAKEN_BEFORE_YIELD_IF_BUSY: Final = 2
"""The same if requests of other connections were served recently."""

TRIM_INTERVAL_S: Final = 30.0
"""How often unused request memory and deleted files are released."""

DRAIN_S: Final = 1.0
"""How long clients may take to read their last responses when the broker stops."""


async def processor(env: Environment) -> None:
    """Run until ``env.stopping``, then complete the requests in flight."""
    await Processor(env).run()


class Processor:
    """The connections of one processor, and the services that they need."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._log = EventLog(env.name)
        self._closes = ConnectionCloses(env.metrics, self._log)
        self._descriptor_health = DescriptorHealth(env, self._log)
        self.events = ConnectionEvents(env.incarnation, env.clock.now)
        per_ip = env.settings[QUEUED_MAX_REQUEST_BYTES_PER_IP]
        self._part = env.arena.open_part(env.index, None if per_ip < 0 else per_ip)
        self._unserved = UnservedClients(self._log, env.clock.now)
        self._files = OpenFiles(descriptors_max())
        self.clients: dict[int, ClientConnection] = {}
        self._all_closed = trio.Event()
        self._connections_max = env.settings[MAX_CONNECTIONS]
        """The acceptor's limit: it may apply a change before this process does."""
        self._by_connection: set[str] = set()
        """Listeners whose clients get the address that they connected to."""
        self._connected_addresses = ConnectedAddresses(own_routes)
        self._serving: trio.Nursery | None = None
        self._idle: IdleConnections[int] = IdleConnections()
        self._notices = AcceptorNotices(())
        self._pacer = NewConnectionPacer(lambda: env.work_time.turns)
        self._sharded_acceptor = self._create_sharded_acceptor()
        self._quota_stage = QuotaStage(env)
        self.metadata_client = MetadataClient(
            env,
            on_image=self._on_image,
            on_request=self._on_request,
            details=self._report,
        )
        self._workers = WorkerPeers(env)
        owners = {**self._workers.peers(), CONTROLLER_OWNER: self.metadata_client.link}
        self.request_handler = RequestHandler(
            env,
            self.metadata_client,
            owners,
            self._files,
            self._quota_stage,
            on_use=self._idle.use,
            on_unserved=self._unserved.note,
        )
        self._authenticator = self._create_authenticator()
        self._request_loop = RequestLoop(
            env,
            self._part,
            self._pacer,
            self._authenticator,
            self.request_handler,
            start_task=self._start_task,
            on_use=self._idle.use,
            on_end=self._end,
        )
        self._pause = RequestPause(env, self.clients, self.request_handler)
        env.metrics.watch_queue("request-memory", self._memory_fill)
        env.metrics.watch_busy(env.busy_ns)
        self.services: list[Callable[[], Awaitable[None]]] = []
        """Tasks of observers that run as long as this role."""
        self.last_services: list[Callable[[], Awaitable[None]]] = []
        """Awaited when all connections are closed."""
        env.observe(self)

    def _create_authenticator(self) -> Authenticator:
        return Authenticator(
            self._env.settings,
            self._env.clock,
            lambda: self.metadata_client.image,
            self.request_handler,
            secret=self._env.secret,
        )

    def _memory_fill(self) -> Fill:
        part = self._part.statistics()
        return Fill(part.used, part.size, part.peak, part.waiting)

    def _create_sharded_acceptor(self) -> ShardedAcceptor | None:
        if self._env.settings[ACCEPTOR_MODE] != SHARDED:
            return None
        # Imported in this mode only: each module prolongs the start of a broker.
        from minibroker.broker.admission.sharded_acceptor import ShardedAcceptor

        return ShardedAcceptor(
            self._env,
            self.events,
            self._closes,
            self._log,
            self._start_connection,
            descriptor_health=self._descriptor_health,
        )

    async def _on_request(self, request: object) -> None:
        if isinstance(request, PauseRequests):
            await self._pause.start(disconnect=request.disconnect)
            if request.disconnect:
                self._files.forget()
        elif isinstance(request, ResumeRequests):
            self._pause.end()
        else:
            raise TypeError(f"a processor cannot handle {type(request).__name__}")

    def _on_image(self, before: Image, after: Image) -> None:
        if before.controller_epoch != after.controller_epoch:
            self._pause.end()  # The controller that paused them has ended.
        if self._sharded_acceptor is not None:
            self._sharded_acceptor.on_image(after)
        # The path of a deleted topic may be reused by a new topic.
        if before.topic_names != after.topic_names:
            self._files.forget()
        if before.brokers is not after.brokers:
            self._advertise(after)
        self._quota_stage.follow(after)
        self._authenticator.on_image(after)

    def _advertise(self, image: Image) -> None:
        """Follow changes of advertised addresses, also for the connections that exist."""
        brokers = image.brokers.values()
        self._by_connection = {name for broker in brokers for name in broker.by_connection}
        for client in self.clients.values():
            connected_to = self._connected_to(client.accepted)
            client.caller = client.caller._replace(connected_to=connected_to)

    def _connected_to(self, accepted: AcceptedConnection) -> tuple[str, int] | None:
        """The address that a client connected to, if its listener is advertised by connection."""
        if accepted.listener not in self._by_connection:
            return None
        client_host, _ = accepted.peer
        return self._connected_addresses.find(accepted.local, client_host, self._env.clock.now())

    def _report(self) -> ProcessorReport:
        views = (
            client.view(self._idle.last_use(number) or client.opened)
            for number, client in islice(self.clients.items(), CONNECTIONS_SHOWN_MAX)
        )
        figures = None if self._sharded_acceptor is None else self._sharded_acceptor.figures()
        return ProcessorReport(
            tuple(views),
            len(self.clients),
            self.events.recent(),
            figures,
            self._unserved.all(),
        )

    async def run(self) -> None:
        sharded = self._sharded_acceptor
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.metadata_client.run)
            self._workers.start(nursery)
            await self.metadata_client.wait_image()
            await self._workers.wait_connected()
            nursery.start_soon(self._pacer.run)
            if self._request_loop.selector is not None:
                nursery.start_soon(self._request_loop.selector.run)
            nursery.start_soon(self.request_handler.delayed.run)
            nursery.start_soon(self._trim)
            nursery.start_soon(self._descriptor_health.run)
            for service in self.services:
                nursery.start_soon(service)
            nursery.start_soon(self._quota_stage.run)
            nursery.start_soon(self._close_idle)
            nursery.start_soon(self._authenticator.close_overdue)
            nursery.start_soon(evict_slow_claims, self._part, self.clients, self._env.clock)
            try:
                async with trio.open_nursery() as serving:
                    self._serving = serving
                    serving.start_soon(self._serve_acceptor if sharded is None else sharded.run)
                    self._env.ready()
                    await self._env.stopping.wait()
                    await self._drain()
                    serving.cancel_scope.cancel()
            finally:
                for client in self.clients.values():  # Those without a task, if the role failed.
                    client.stream.close()
            for finish in self.last_services:
                await finish()
            nursery.cancel_scope.cancel()

    async def _drain(self) -> None:
        """Close all connections, after the responses to requests that need not wait."""
        for client in list(self.clients.values()):
            if client.in_flight is None or client.interruptible:
                client.close(CloseReason.STOPPING)
        if not self.clients:
            return
        async with trio.open_nursery() as nursery:
            # In real time: with a frozen clock one client could delay the shutdown forever.
            nursery.start_soon(self._cancel_after_drain_limit, nursery.cancel_scope)
            await self._wait_all_closed()
            nursery.cancel_scope.cancel()
        for client in list(self.clients.values()):
            client.close(CloseReason.STOPPING, "it did not read its last response")
        await self._wait_all_closed()

    async def _cancel_after_drain_limit(self, scope: trio.CancelScope) -> None:
        await self._env.clock.sleep_real(DRAIN_S)
        scope.cancel()

    async def _wait_all_closed(self) -> None:
        while self.clients:
            self._all_closed = trio.Event()
            await self._all_closed.wait()

    async def _serve_acceptor(self) -> None:
        listener = self._env.transport.listen_handoff(handoff_name(self._env.index))
        while True:
            handoff = await listener.accept()
            self._notices = AcceptorNotices(self._connections())
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._notices.deliver, handoff)
                    await self._receive_connections(handoff)
                    nursery.cancel_scope.cancel()
            finally:
                handoff.close()

    def _connections(self) -> Iterator[ProcessorConnections]:
        connections = [
            OpenConnection(client.number, client.caller.listener, client.caller.client_host)
            for client in self.clients.values()
        ]
        for start in range(0, max(1, len(connections)), PROCESSOR_CONNECTIONS_MAX):
            end = start + PROCESSOR_CONNECTIONS_MAX
            yield ProcessorConnections(tuple(connections[start:end]), end < len(connections))

    async def _receive_connections(self, handoff: Handoff) -> None:
        """Take connections until the acceptor dies; a restarted acceptor connects again."""
        in_a_row = 0
        while True:
            try:
                message, connection = await handoff.receive()
            except ChannelClosed:
                return
            if isinstance(message, LeastRecentlyUsedRequest):
                self._notices.report(LeastRecentlyUsed(tuple(self._least_recently_used(message))))
            elif isinstance(message, CloseConnections):
                self._close_excess(message)
            else:
                self._start_received(message, connection)
            in_a_row += 1
            is_busy = self._pacer.others_served_recently
            if in_a_row >= (TAKEN_BEFORE_YIELD_IF_BUSY if is_busy else TAKEN_BEFORE_YIELD):
                in_a_row = 0
                await trio.lowlevel.checkpoint()

    def _start_received(self, accepted: AcceptedConnection, connection: Connection | None) -> None:
        self._notices.taken()
        if connection is None:
            self._descriptor_health.exhausted()
            self._closes.refused(
                accepted.listener,
                CloseReason.LIMIT,
                client=accepted.peer,
                reason="no descriptor was left to receive it",
            )
            self.events.reject(accepted, CloseReason.LIMIT.value, processor=self._env.index)
            self._notices.closed(accepted.number)
            return
        self._start_connection(accepted, connection)

    def _start_connection(self, accepted: AcceptedConnection, connection: Connection) -> None:
        now = self._env.clock.now()
        stream = as_stream(connection, accepted.local, accepted.peer)
        client = ClientConnection(accepted, stream, now, self._connected_to(accepted))
        client.stream.before_waiting = self._quota_stage.quotas.complete_deferred
        # Added before its task starts: an acceptor that restarts meanwhile must learn of it.
        self.clients[client.number] = client
        self._idle.use(client.number, now)
        self._env.metrics.connection_opened(client.caller.listener)
        for observer in self.request_handler.observers:
            observer.opened(client)
        if self._needs_task(client):
            assert self._serving is not None
            self._serving.start_soon(self._serve, client, self._serve_new)
        else:
            self._request_loop.attend(client)

    def _needs_task(self, client: ClientConnection) -> bool:
        """Whether a connection may have to wait before its first request."""
        env = self._env
        return (
            not isinstance(client.stream, SocketStream)
            or self._request_loop.selector is None
            or self._authenticator.has_steps(client.caller.listener)
            or self.request_handler.interceptor is not None
            or env.stopping.is_set()
        )

    def _start_task(self, client: ClientConnection) -> None:
        """Start the task of a connection that had none."""
        assert self._serving is not None
        self._serving.start_soon(self._serve, client, self._request_loop.take_over)

    def _least_recently_used(self, request: LeastRecentlyUsedRequest) -> Iterator[LastUse]:
        candidates = (
            LastUse(last_used, number)
            for number, last_used in self._idle.in_order()
            if self.clients[number].caller.listener != request.protected
        )
        return islice(candidates, min(request.count_max, LEAST_RECENTLY_USED_MAX))

    def _close_excess(self, request: CloseConnections) -> None:
        self._connections_max = request.limit
        for number in request.numbers:
            client = self.clients.get(number)
            if client is not None:
                client.close(CloseReason.MAX_CONNECTIONS)

    async def _serve_new(self, client: ClientConnection) -> None:
        if self._env.stopping.is_set():  # Passed to this process after the others were closed.
            client.close(CloseReason.STOPPING)
        await self._pacer.wait_turn()
        if self.request_handler.interceptor is not None:
            await self.request_handler.interceptor.meet(client)
        await self._authenticator.begin(client)
        await self._request_loop.run(client)

    async def _serve(
        self, client: ClientConnection, serve: Callable[[ClientConnection], Awaitable[None]]
    ) -> None:
        """Serve a connection to its end, and close it."""
        try:
            with client.scope, self._env.work_time.charge(client.account):
                await serve(client)
        except Exception as error:  # noqa: BLE001 - counted and logged
            self._failed(client, error)
        except BaseExceptionGroup as group:
            # Cancellations of the role are propagated.
            errors, others = group.split(Exception)
            if errors is not None:
                self._failed(client, errors)
            if others is not None:
                raise others from None
        finally:
            self._end(client)

    def _end(self, client: ClientConnection) -> None:
        """Close a connection that is not served any more, and record that."""
        number = client.number
        if self._request_loop.selector is not None:
            self._request_loop.selector.forget(client)
        client.stream.close()
        client.state.on(ChannelEvent.CLOSE)
        del self.clients[number]
        self._idle.forget(number)
        self._quota_stage.forget(client)
        connection = client.caller.connection_id
        members = self.request_handler.share_sessions.disconnected(connection)
        if members and self._serving is not None and not self._env.stopping.is_set():
            self._serving.start_soon(self.request_handler.release_shares, connection, members)
        if self._sharded_acceptor is None:
            self._notices.closed(number)
        else:
            self._sharded_acceptor.closed(number)
        for observer in self.request_handler.observers:
            observer.closed(client)
        self._record_close(client)
        self._closes.closed(
            client.caller.listener,
            client.close_reason,
            client=f"{client.caller.client_host}:{client.caller.client_port}",
            client_id=client.client_id,
            reason=client.close_text,
        )
        if not self.clients:
            self._all_closed.set()

    def _record_close(self, client: ClientConnection) -> None:
        reason, processor = client.close_reason, self._env.index
        if reason is CloseReason.MAX_CONNECTIONS:
            limit = ExceededLimit(MAX_CONNECTIONS.name, self._connections_max)
            self.events.evict(client.accepted, reason.value, limit, processor)
        elif reason in AUTHENTICATION_FAILURES:
            self.events.fail_authentication(
                client.accepted, reason.value, client.close_text, processor
            )
        else:
            if reason is CloseReason.UNSUPPORTED_VERSION:
                unserved = unserved_request(client.in_flight, client.close_text)
                self._unserved.note(client, unserved)
            self.events.note("closed", client.accepted, processor, reason.value)

    def _failed(self, client: ClientConnection, error: BaseException) -> None:
        """Note why a connection is closed, and log what should not have happened."""
        error = leaf_error(error)
        client.close_reason, client.close_text = close_reason(error)
        is_logged = isinstance(error, PeerFailed)  # By the other process.
        if client.close_reason is CloseReason.INTERNAL_ERROR and not is_logged:
            self._log.failure("a connection failed", error)

    async def _close_idle(self) -> None:
        idle_s = self._env.settings[CONNECTIONS_MAX_IDLE_MS] / 1000
        if idle_s < 0:
            return
        while True:
            now = self._env.clock.now()
            for number in self._idle.idle_since(now - idle_s):
                self.clients[number].close(CloseReason.IDLE)
                self._idle.forget(number)
            oldest = self._idle.oldest_use()
            await trio.sleep_until((now if oldest is None else oldest) + idle_s)

    async def _trim(self) -> None:
        while True:
            await trio.sleep(TRIM_INTERVAL_S)
            self._part.trim()
            self._files.forget_removed()


AUTHENTICATION_FAILURES: Final = frozenset(
    {CloseReason.TLS_FAILED, CloseReason.AUTHENTICATION_FAILED, CloseReason.SESSION_EXPIRED}
)
_REASONS: Final[tuple[tuple[type[Exception], CloseReason], ...]] = (
    (StreamClosed, CloseReason.CLIENT_RESET),
    (UnsupportedVersion, CloseReason.UNSUPPORTED_VERSION),
    (ProtocolError, CloseReason.BAD_REQUEST),
    (CloseConnection, CloseReason.ACKS_ZERO_ERROR),
    (InterceptorDisconnect, CloseReason.FAULT_RULE),
    (RecordsGone, CloseReason.RECORDS_GONE),
    (RecordsUnreadable, CloseReason.RECORDS_UNREADABLE),
)
"""Errors and the reason that is counted; the first match applies."""


def leaf_error(error: BaseException) -> BaseException:
    """Return the first error of nested groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def close_reason(error: BaseException) -> tuple[CloseReason, str]:
    """Return the reason and the text of an error."""
    if isinstance(error, InvalidRequestSize | ConnectionNotAuthenticated):
        return error.reason, str(error)
    for kind, reason in _REASONS:
        if isinstance(error, kind):
            return reason, str(error)
    if isinstance(error, PeerLost):
        return CloseReason.PEER_LOST, "the process that executes the request died"
    return CloseReason.INTERNAL_ERROR, str(error)
