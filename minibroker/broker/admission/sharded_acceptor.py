"""Accepts the connections of one processor itself (``acceptor.mode=sharded``).

Owns the listening sockets of the processor, connections that wait for admission, and the
processor's part of the limits, whose rules are in ``connections.tokens``. Invariant: a connection
is admitted, rejected or waits, and at most ``WAITING_MAX`` wait; an admitted one counts until
``closed``. In Redpanda each core accepts with its own ``conn_quota``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

import trio

from minibroker.broker.admission.connection_events import (
    BlockedTime,
    ConnectionEvents,
    ConnectionFigures,
    read_connection_figures,
)
from minibroker.broker.admission.connection_quotas import TOKENS, count_limit, drop_limits
from minibroker.broker.admission.rejected_connections import (
    AcceptedConnection,
    DescriptorHealth,
    RejectedConnections,
)
from minibroker.broker.connections.limits import (
    ConnectionCounts,
    ConnectionRates,
    ExceededCount,
    client_ip,
)
from minibroker.broker.connections.tokens import (
    Action,
    Admit,
    DropLimits,
    Send,
    TokenMessage,
    Tokens,
)
from minibroker.broker.metadata.image import IP, Image
from minibroker.broker.metrics.definitions import (
    ACCEPT_RATE,
    BROKER_ACCEPT_RATE,
    COUNTED,
    CloseReason,
)
from minibroker.broker.metrics.log import ConnectionCloses, EventLog
from minibroker.broker.metrics.metrics import Fill, Series
from minibroker.broker.process.environment import Environment, tokens_name
from minibroker.broker.settings import (
    ONE_ACCEPTOR_ONLY,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
    SHARDED_ADVICE,
)
from minibroker.broker.settings.dynamic import effective, layers
from minibroker.broker.settings.setting import broker_setting
from minibroker.runtime.addressing import ConnectionSource
from minibroker.runtime.clock import now_ms, whole_ms
from minibroker.runtime.handoff import Connection, addresses
from minibroker.runtime.rpc import Channel, ChannelClosed

WAITING_MAX: Final = 1000
"""Connections of one processor that wait for a token; with more, accepting waits."""

ACCEPTED_BEFORE_YIELD: Final = 8
"""Connections accepted in a row before other connections are served."""

OnAdmitted = Callable[[AcceptedConnection, Connection], None]


class ShardedAcceptor:
    """The acceptor of one processor; call ``run`` when there is an image."""

    def __init__(
        self,
        env: Environment,
        events: ConnectionEvents,
        closes: ConnectionCloses,
        log: EventLog,
        on_admitted: OnAdmitted,
        *,
        descriptor_health: DescriptorHealth,
    ) -> None:
        """``on_admitted`` is called with each admitted connection."""
        self._env = env
        self._events = events
        self._closes = closes
        self._log = log
        self._descriptor_health = descriptor_health
        self._on_admitted = on_admitted
        self._listeners = list(env.listeners)
        settings = env.settings
        self._counts = ConnectionCounts(drop_limits(settings))
        self._rates = ConnectionRates(
            self._listeners, settings[QUOTA_WINDOW_NUM], settings[QUOTA_WINDOW_SIZE_SECONDS] * 1000
        )
        self._blocked_time = BlockedTime(self._listeners)
        self._tokens = Tokens(env.index, env.processors)
        self._rejected = RejectedConnections(
            env, events, closes, processor=env.index, sharing=env.processors
        )
        self._peers = ProcessorLinks(env, self._peer_up, self._peer_down, self._receive)
        self._accepted = 0
        self._waiting: dict[int, tuple[AcceptedConnection, Connection]] = {}
        self._delayed: set[int] = set()
        """Waiting connections whose token was not available at once."""
        self._waiting_peak = 0
        self._admitted_since_pause = False
        """Whether a connection was admitted since accepting was resumed."""
        self._has_capacity = trio.Event()
        self._reported: set[str] = set()
        """Limits without effect that were logged already."""
        env.metrics.watch_queue("connections", self._fill)
        env.metrics.watch_gauges(self._gauges)

    def on_image(self, image: Image) -> None:
        """Apply changed configs."""
        settings = effective(self._env.settings, image.configs)
        limits = drop_limits(settings)
        self._counts.limits = limits
        # All processes have the same image with the same number, so the same limits in a term.
        term = (image.controller_epoch, image.broker_configs_number)
        if term != self._tokens.term:
            shared = DropLimits(limits.drop_total, limits.drop_per_ip, limits.drop_overrides)
            self._execute(self._tokens.enter(term, shared))
        if self._env.index == 0:
            self._log_limits_without_effect(image)

    def _log_limits_without_effect(self, image: Image) -> None:
        own, default = layers(self._env.settings, image.configs)
        names = {name for name in {**default, **own} if broker_setting(name) in ONE_ACCEPTOR_ONLY}
        quotas = {f"the quota of {name}" for kind, name in image.configs if kind == IP}
        found = names | quotas
        if found - self._reported:
            new = ", ".join(sorted(found - self._reported))
            self._log.warning("limits have no effect here", limits=new, reason=SHARDED_ADVICE)
        self._reported = found

    async def run(self) -> None:
        """Accept until ``env.stopping``, and keep the links to other processors until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._peers.run)
                nursery.start_soon(self._rejected.run)
                async with trio.open_nursery() as accepting:
                    for listener, source in self._env.listeners.items():
                        accepting.start_soon(self._accept, listener, source)
                    await self._env.stopping.wait()
                    accepting.cancel_scope.cancel()
                self._rejected.close_all()
                for number in list(self._waiting):
                    accepted, connection = self._leave_queue(number)
                    connection.close()
                    self._closes.refused(
                        accepted.listener, CloseReason.STOPPING, client=accepted.peer
                    )
                    self._execute(self._tokens.release(number))
        finally:
            for _, connection in self._waiting.values():
                connection.close()

    async def _accept(self, listener: str, source: ConnectionSource) -> None:
        in_a_row = 0
        while True:
            if len(self._waiting) >= WAITING_MAX:
                await self._wait_for_capacity(listener)
            try:
                connection = await source.accept()
            except OSError as error:
                self._rejected.close_all()
                await self._descriptor_health.accept_failed(listener, error)
                continue
            self._start_admission(listener, connection)
            if self._admitted_since_pause:
                self._admitted_since_pause = False
                await self._rejected.pause()
            in_a_row += 1
            if in_a_row >= self._rejected.most_in_a_row(ACCEPTED_BEFORE_YIELD):
                in_a_row = 0
                await trio.lowlevel.checkpoint()

    async def _wait_for_capacity(self, listener: str) -> None:
        now = self._env.clock.now
        started = now()
        self._blocked_time.begin(listener, started, blocks=True)
        try:
            while len(self._waiting) >= WAITING_MAX:
                self._has_capacity = trio.Event()
                await self._has_capacity.wait()
        finally:
            self._blocked_time.end(listener, now(), blocks=True)
            self._env.metrics.acceptor_blocked(listener, now() - started)

    def _start_admission(self, listener: str, connection: Connection) -> None:
        env = self._env
        local, peer = addresses(connection)
        self._accepted += 1
        # Unique among all processors and their restarts.
        number = env.incarnation << 32 | (self._accepted * env.processors + env.index)
        accepted = AcceptedConnection(listener, local, peer, number)
        env.metrics.connection_accepted(listener)
        now = env.clock.now()
        self._events.note("accepted", accepted, at=now)
        self._rates.record(listener, whole_ms(now))
        self._waiting[number] = accepted, connection
        self._execute(self._tokens.admit(number, client_ip(peer[0])))
        if number in self._waiting:
            self._waiting_peak = max(self._waiting_peak, len(self._waiting))
            self._delayed.add(number)
            self._events.note("waiting", accepted, reason=TOKENS, delay_ms=0)
            self._blocked_time.begin(listener, env.clock.now(), blocks=False)

    def _leave_queue(self, number: int) -> tuple[AcceptedConnection, Connection]:
        """Remove and return a waiting connection."""
        accepted, connection = self._waiting.pop(number)
        if number in self._delayed:
            self._delayed.remove(number)
            self._blocked_time.end(accepted.listener, self._env.clock.now(), blocks=False)
        self._has_capacity.set()
        return accepted, connection

    def closed(self, number: int) -> None:
        """Note that an admitted connection is closed."""
        self._counts.remove(number)
        self._execute(self._tokens.release(number))

    def _peer_up(self, peer: int) -> None:
        self._execute(self._tokens.peer_up(peer))

    def _peer_down(self, peer: int) -> None:
        self._execute(self._tokens.peer_down(peer))

    def _receive(self, peer: int, message: TokenMessage) -> None:
        self._execute(self._tokens.receive(peer, message))

    def _execute(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._peers.send(action.peer, action.message)
            elif isinstance(action, Admit):
                if action.number in self._delayed:
                    accepted, _ = self._waiting[action.number]
                    self._events.admit(accepted, self._env.clock.now())
                self._start_connection(*self._leave_queue(action.number))
            else:
                self._reject(action.refusal, *self._leave_queue(action.number))

    def _start_connection(self, accepted: AcceptedConnection, connection: Connection) -> None:
        processor = self._env.index
        ip = client_ip(accepted.peer[0])
        self._counts.restore(accepted.number, accepted.listener, ip, processor)
        self._events.note("handed", accepted, processor)
        self._on_admitted(accepted, connection)
        self._admitted_since_pause = True

    def _reject(
        self, exceeded: ExceededCount, accepted: AcceptedConnection, connection: Connection
    ) -> None:
        limit = count_limit(self._counts.limits, exceeded, client_ip(accepted.peer[0]))
        self._rejected.reject(accepted, connection, CloseReason(exceeded.value), limit)

    def _now_ms(self) -> int:
        return now_ms(self._env.clock)

    def figures(self) -> ConnectionFigures:
        """Return the figures of this processor."""
        now = self._env.clock.now()
        return read_connection_figures(
            self._counts, self._rates, self._blocked_time, now, self._now_ms()
        )

    def _fill(self) -> Fill:
        return Fill(len(self._waiting), WAITING_MAX, self._waiting_peak)

    def _gauges(self) -> dict[Series, float]:
        figures = self._rates.figures(self._now_ms(), 0)
        counted = self._counts.by_listener()
        gauges: dict[Series, float] = {(BROKER_ACCEPT_RATE.name, ()): figures.broker}
        for listener in self._listeners:
            gauges[COUNTED.name, (listener,)] = counted.get(listener, 0)
            gauges[ACCEPT_RATE.name, (listener, "")] = figures.listeners[listener]
        return gauges


# --------------------------------------------------------------------------------------------------
# Links between processors that accept connections themselves: one channel to each other processor.
#
# Owns connecting, the handshake and the order of messages. It must never know their content. The
# processor with the higher number connects. Invariant: for each process of a peer, ``on_up`` is
# called once before its first message and ``on_down`` once after its last one; messages to a peer
# arrive in order, or the link breaks. Kafka's threads share their counts instead.

BATCH_MESSAGES_MAX: Final = 100
"""Messages sent together as one."""


class ProcessorHello(NamedTuple):
    """First message in each direction: the processor and its incarnation."""

    processor: int
    incarnation: int


class _Link:
    """A channel to one process of a peer, and the messages not sent yet."""

    def __init__(self, channel: Channel, incarnation: int) -> None:
        self.channel = channel
        self.incarnation = incarnation
        self.queue: deque[object] = deque()
        self.more = trio.Event()

    def send(self, message: object) -> None:
        self.queue.append(message)
        self.more.set()

    async def deliver(self) -> None:
        try:
            while True:
                while self.queue:
                    count = min(len(self.queue), BATCH_MESSAGES_MAX)
                    await self.channel.send([self.queue.popleft() for _ in range(count)])
                self.more = trio.Event()
                await self.more.wait()
        except ChannelClosed:
            self.channel.close()  # The receiving task notices by that.


class ProcessorLinks:
    """The links of one processor; ``run`` must be running."""

    def __init__(
        self,
        env: Environment,
        on_up: Callable[[int], None],
        on_down: Callable[[int], None],
        on_message: Callable[[int, Any], None],
    ) -> None:
        self._env = env
        self._on_up = on_up
        self._on_down = on_down
        self._on_message = on_message
        self._links: dict[int, _Link] = {}

    def send(self, peer: int, message: object) -> None:
        """Send a message soon, without waiting; does nothing if the peer is disconnected.

        The queue is bounded, because messages are answers or changes of limits.
        """
        link = self._links.get(peer)
        if link is not None:
            link.send(message)

    async def run(self) -> None:
        """Keep the links to all other processors, over all restarts, until cancelled."""
        listener = self._env.transport.listen(tokens_name(self._env.index))
        async with trio.open_nursery() as nursery:
            for peer in range(self._env.index):
                nursery.start_soon(self._connect, peer)
            while True:
                nursery.start_soon(self._accept, await listener.accept())

    @property
    def _hello(self) -> ProcessorHello:
        return ProcessorHello(self._env.index, self._env.incarnation)

    async def _connect(self, peer: int) -> None:
        while True:
            channel = await self._env.transport.connect(tokens_name(peer))
            try:
                await channel.send(self._hello)
                hello: ProcessorHello = await channel.receive()
                await self._receive_messages(hello, channel)
            except ChannelClosed:
                pass  # The peer died; the next attempt waits for its restart.
            finally:
                channel.close()

    async def _accept(self, channel: Channel) -> None:
        try:
            hello: ProcessorHello = await channel.receive()
            previous = self._links.get(hello.processor)
            if previous is not None and previous.incarnation >= hello.incarnation:
                return  # A connection attempt of a process that is dead by now.
            if previous is not None:
                # The peer restarted before the end of its former process was noticed.
                self._end(hello.processor, previous)
            await channel.send(self._hello)
            await self._receive_messages(hello, channel)
        except ChannelClosed:
            pass  # The peer died, and connects again after its restart.
        finally:
            channel.close()

    async def _receive_messages(self, hello: ProcessorHello, channel: Channel) -> None:
        """Receive until the link breaks."""
        peer, incarnation = hello
        link = self._links[peer] = _Link(channel, incarnation)
        self._on_up(peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.deliver)
            try:
                while True:
                    messages = await channel.receive()
                    if self._links.get(peer) is not link:
                        break  # The peer restarted before its last messages arrived.
                    for message in messages:
                        self._on_message(peer, message)
            except ChannelClosed:
                pass
            nursery.cancel_scope.cancel()
        if self._links.get(peer) is link:
            self._end(peer, link)

    def _end(self, peer: int, link: _Link) -> None:
        link.channel.close()
        del self._links[peer]
        self._on_down(peer)
