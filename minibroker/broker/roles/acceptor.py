"""The acceptor role: accepts connections and passes them to processors round robin.

Owns the round robin and the wait for a free slot. It must never read from a connection. One task
accepts for each listener, one receives the messages of each processor, and one closes connections
when there are too many (``ConnectionQuotas`` decides). Invariant: a connection is passed to one
processor or closed, and counted while it is open, even if a process dies: a restarted acceptor
accepts nothing before every processor has reported its connections. While a connection of a
listener waits, no other one of that listener is accepted, and the time counts as blocked (KIP-402's
``AcceptorBlockedPercent``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from minibroker.broker.admission.connection_quotas import (
    PROCESSORS,
    ConnectionQuotas,
    ConnectionRejected,
    new_connection,
)
from minibroker.broker.admission.rejected_connections import (
    LEAST_RECENTLY_USED_MAX,
    AcceptedConnection,
    CloseConnections,
    ConnectionsClosed,
    DescriptorHealth,
    LeastRecentlyUsed,
    LeastRecentlyUsedRequest,
    ProcessorConnections,
    RejectedConnections,
)
from minibroker.broker.connections.limits import SLOTS, LastUse, Slots
from minibroker.broker.metadata.image import BROKER, IP
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.metrics.log import ConnectionCloses, EventLog
from minibroker.broker.metrics.metrics import Fill
from minibroker.broker.network.reports import AcceptorReport
from minibroker.broker.process.environment import (
    FIRST_INCARNATION,
    Environment,
    RoleRefusedError,
    handoff_name,
)
from minibroker.broker.process.metadata_client import MetadataClient
from minibroker.runtime.addressing import ConnectionSource
from minibroker.runtime.handoff import Connection, Handoff, addresses
from minibroker.runtime.rpc import ChannelClosed

ACCEPTED_BEFORE_YIELD: Final = 16
"""Connections accepted in a row before other tasks run: with an endless sequence of rejected
connections nothing else in the loop might ever wait.
"""


async def acceptor(env: Environment) -> None:
    """Run until ``env.stopping``."""
    env.metrics.watch_busy(env.work_time.busy_ns)
    error_text = ""
    async with trio.open_nursery() as nursery:
        role = _Acceptor(env, nursery)
        nursery.start_soon(role.metadata_client.run)
        nursery.start_soon(role.quotas.hosts.run)
        for service in role.services:
            nursery.start_soon(service)
        nursery.start_soon(role.rejected.run)
        nursery.start_soon(role.descriptor_health.run)
        for processor in range(env.processors):
            nursery.start_soon(role.serve_processor, processor)
        await role.metadata_client.wait_image()
        if env.incarnation == FIRST_INCARNATION:
            error_text = await role.quotas.unknown_host()
        if not error_text:
            for listener, source in env.listeners.items():
                nursery.start_soon(role.accept, listener, source)
            nursery.start_soon(role.close_excess_connections)
            env.ready()
            await env.stopping.wait()
            for finish in role.last_services:
                await finish()
        nursery.cancel_scope.cancel()
    if error_text:
        raise RoleRefusedError(error_text)


class _Acceptor:
    def __init__(self, env: Environment, nursery: trio.Nursery) -> None:
        self._env = env
        self._nursery = nursery
        self._slots = Slots(env.processors)
        self._handoffs: dict[int, Handoff] = {}
        self._slot_freed = trio.Event()
        self._unreported = set(range(env.processors))
        self._all_reported = trio.Event()
        self._reply_awaited: set[int] = set()
        self._all_replied = trio.Event()
        self._candidates: list[LastUse] = []
        self._accepted = 0
        self._log = EventLog("acceptor")
        self._closes = ConnectionCloses(env.metrics, self._log)
        self.descriptor_health = DescriptorHealth(env, self._log)
        self.quotas = ConnectionQuotas(env, self._log)
        self.events = self.quotas.events
        self.rejected = RejectedConnections(env, self.events, self._closes)
        self.metadata_client = MetadataClient(
            env,
            on_image=self.quotas.on_image,
            details=self._report,
            configs=(IP, BROKER),
        )
        for processor in range(env.processors):
            self._watch_queue(processor)
        self.services: list[Callable[[], Awaitable[None]]] = []
        """Tasks of observers that run as long as this role."""
        self.last_services: list[Callable[[], Awaitable[None]]] = []
        """Awaited when no further connection is accepted."""
        env.observe(self)

    def _watch_queue(self, processor: int) -> None:
        def fill() -> Fill:
            return Fill(self._slots.used(processor), SLOTS, self._slots.peak(processor))

        self._env.metrics.watch_queue(f"connections-{processor}", fill)

    def _report(self) -> AcceptorReport:
        used = tuple(self._slots.used(processor) for processor in range(self._env.processors))
        return AcceptorReport(used, self.quotas.figures(), self.events.recent())

    async def serve_processor(self, processor: int) -> None:
        """Serve one processor, over all its restarts."""
        while True:
            handoff = await self._env.transport.connect_handoff(handoff_name(processor))
            try:
                await self._receive_from(processor, handoff)
            except ChannelClosed:
                pass  # The processor died; the next attempt waits for its restart.
            finally:
                self._slots.left(processor)
                self._handoffs.pop(processor, None)
                handoff.close()
                self.quotas.processor_died(processor)
                self._add_candidates(processor, ())

    async def _receive_from(self, processor: int, handoff: Handoff) -> None:
        # A processor reports its connections first: until then it gets no new ones.
        more = True
        while more:
            report, _ = await handoff.receive()
            assert isinstance(report, ProcessorConnections)
            self.quotas.restore(processor, report.connections)
            more = report.more
        self._handoffs[processor] = handoff
        self._slots.joined(processor)
        self._slot_freed.set()
        self._unreported.discard(processor)
        if not self._unreported:
            self._all_reported.set()
        while True:
            message, _ = await handoff.receive()
            if isinstance(message, ConnectionsClosed):
                self._handle_closed(processor, message)
            else:
                assert isinstance(message, LeastRecentlyUsed)
                self._add_candidates(processor, message.uses)

    def _handle_closed(self, processor: int, message: ConnectionsClosed) -> None:
        if message.taken:
            self._slots.freed(processor, message.taken)
            self._slot_freed.set()
        self.quotas.remove(message.closed)
        if self.quotas.counts.excess():
            self.quotas.notify()  # Those just taken may be excess.

    async def accept(self, listener: str, source: ConnectionSource) -> None:
        """Accept the connections of one listener, one after the other."""
        await self._all_reported.wait()
        in_a_row = 0
        while True:
            in_a_row += 1
            if in_a_row >= self.rejected.most_in_a_row(ACCEPTED_BEFORE_YIELD):
                in_a_row = 0
                await trio.lowlevel.checkpoint()
            try:
                connection = await source.accept()
            except OSError as error:
                self.rejected.close_all()
                await self.descriptor_health.accept_failed(listener, error)
                continue
            self._env.metrics.connection_accepted(listener)
            local, peer = addresses(connection)
            self._accepted += 1
            number = self._env.incarnation << 32 | self._accepted
            if await self._admit(AcceptedConnection(listener, local, peer, number), connection):
                await self.rejected.pause()

    async def _admit(self, accepted: AcceptedConnection, connection: Connection) -> bool:
        """Return whether the connection was admitted and passed to a processor."""
        try:
            delayed_until = await self.quotas.admit(new_connection(accepted))
            if delayed_until is not None:
                self._nursery.start_soon(
                    self._admit_after_delay, accepted, connection, delayed_until
                )
            else:
                await self._pass_to_processor(accepted, connection)
                return True
        except ConnectionRejected as rejected:
            self._reject(accepted, connection, rejected)
        except trio.Cancelled:
            connection.close()
            raise
        return False

    async def _admit_after_delay(
        self, accepted: AcceptedConnection, connection: Connection, delayed_until: float
    ) -> None:
        """Delay a connection whose address exceeds its rate; later connections do not wait."""
        try:
            await trio.sleep_until(delayed_until)
            await self.quotas.admit_delayed(new_connection(accepted))
            await self._pass_to_processor(accepted, connection)
        except ConnectionRejected as rejected:
            self._reject(accepted, connection, rejected)
        except trio.Cancelled:
            connection.close()
            raise

    def _reject(
        self, accepted: AcceptedConnection, connection: Connection, rejected: ConnectionRejected
    ) -> None:
        self.rejected.reject(accepted, connection, rejected.reason, rejected.limit, at=rejected.at)

    async def _pass_to_processor(
        self, accepted: AcceptedConnection, connection: Connection
    ) -> None:
        processor = await self._next_processor(accepted)
        self.quotas.counts.set_processor(accepted.number, processor)
        self.events.note("handed", accepted, processor)
        try:
            await self._handoffs[processor].send(accepted, connection)
        except ChannelClosed:
            # The processor died while it received the connection: the client connects again.
            self.quotas.remove((accepted.number,))
            died = CloseReason.PROCESS_DIED
            self.events.reject(accepted, died.value, processor=processor)
            self._closes.refused(accepted.listener, died, client=accepted.peer)

    async def _next_processor(self, accepted: AcceptedConnection) -> int:
        processor = self._slots.take()
        if processor is not None:
            return processor
        with self.quotas.blocked(accepted, PROCESSORS):
            while processor is None:
                if self._slot_freed.is_set():
                    self._slot_freed = trio.Event()
                await self._slot_freed.wait()
                processor = self._slots.take()
        return processor

    async def close_excess_connections(self) -> None:
        """Close excess connections: the least recently used of all processors.

        Runs until cancelled.
        """
        while True:
            changed = self.quotas.changed
            excess = self.quotas.counts.excess()
            if excess:
                candidates = await self._gather_candidates(min(excess, LEAST_RECENTLY_USED_MAX))
                counts = self.quotas.counts
                for processor, numbers in counts.select_excess(candidates).items():
                    close = CloseConnections(tuple(numbers), counts.limits.total)
                    await self._send(processor, close)
            await changed.wait()

    async def _gather_candidates(self, count: int) -> list[LastUse]:
        self._candidates = []
        self._reply_awaited = set(self._handoffs)
        self._all_replied = trio.Event()
        request = LeastRecentlyUsedRequest(count, self.quotas.counts.limits.protected)
        for processor in list(self._reply_awaited):
            await self._send(processor, request)
        while self._reply_awaited:
            await self._all_replied.wait()
        return self._candidates

    def _add_candidates(self, processor: int, uses: tuple[LastUse, ...]) -> None:
        self._candidates.extend(uses)
        self._reply_awaited.discard(processor)
        if not self._reply_awaited:
            self._all_replied.set()

    async def _send(self, processor: int, message: object) -> None:
        handoff = self._handoffs.get(processor)
        try:
            if handoff is not None:
                await handoff.send(message)
        except ChannelClosed:
            pass  # The processor died, and its connections with it.
