"""Accepts the connections of one processor itself (``acceptor.mode=sharded``).

Owns the listening sockets of the processor, connections that wait for admission, and the
processor's part of the limits, whose rules are in ``connections.tokens``. Invariant: a connection
is admitted, rejected or waits, and at most ``WAITING_MAX`` wait; an admitted one counts until
``closed``. In Redpanda each core accepts with its own ``conn_quota``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import trio

from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.admission.blocked_time import BlockedTime
from minibroker.broker.admission.connection_events import ConnectionEvents
from minibroker.broker.admission.connection_figures import (
    ConnectionFigures,
    read_connection_figures,
)
from minibroker.broker.admission.connection_limits import drop_limits
from minibroker.broker.admission.descriptor_health import DescriptorHealth
from minibroker.broker.admission.limit_names import TOKENS, count_limit
from minibroker.broker.admission.processor_links import ProcessorLinks
from minibroker.broker.admission.rejected_connections import RejectedConnections
from minibroker.broker.connections.address import client_ip
from minibroker.broker.connections.counts import ConnectionCounts, ExceededCount
from minibroker.broker.connections.rates import ConnectionRates
from minibroker.broker.connections.token_messages import (
    Action,
    Admit,
    DropLimits,
    Send,
    TokenMessage,
)
from minibroker.broker.connections.tokens import Tokens
from minibroker.broker.metadata.image import IP, Image
from minibroker.broker.metrics.definitions import (
    ACCEPT_RATE,
    BROKER_ACCEPT_RATE,
    COUNTED,
    CloseReason,
)
from minibroker.broker.metrics.log import ConnectionCloses, EventLog
from minibroker.broker.metrics.metrics import Fill, Series
from minibroker.broker.process.environment import Environment
from minibroker.broker.settings import (
    ONE_ACCEPTOR_ONLY,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
    SHARDED_ADVICE,
)
from minibroker.broker.settings.dynamic import effective, layers
from minibroker.broker.settings.setting import broker_setting
from minibroker.runtime.clock import now_ms, whole_ms
from minibroker.runtime.handoff import Connection, addresses
from minibroker.runtime.listening import ConnectionSource

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
