"""Connections that cannot be served: rejected ones, and the shortage of file descriptors.

Owns rejected connections until they are closed, which is delayed during a connection storm
(``DelayedCloses``), and when a process's shortage of descriptors starts and ends. It must never
decide to reject, or know listeners, clients or requests. Invariants: nothing is read from or
written to a rejected connection, it is in no count of connections, and it is counted as closed when
it is closed; a shortage is logged when it starts and when it ends, and is a condition meanwhile; it
ends after a second of real time without a failure, if a descriptor can be opened. Delays are in
real time, because they protect the machine: a frozen clock in a test must not leave connections
open. Kafka's ``ConnectionQuotas`` closes at once, or after a delay if the rate of an address was
exceeded, and Kafka logs an error for every failed ``accept``.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, Generic, NamedTuple, TypeVar

import trio

from minibroker.broker.admission.connection_events import ConnectionEvents, ExceededLimit
from minibroker.broker.connections.limits import LastUse, client_ip
from minibroker.broker.metrics.conditions import ConditionKind
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.metrics.log import ConnectionCloses, EventLog
from minibroker.broker.metrics.metrics import Fill
from minibroker.broker.process.environment import Environment, note
from minibroker.runtime.handoff import Connection, Handoff
from minibroker.runtime.rpc import ChannelClosed
from minibroker.runtime.stream import Address
from minibroker.runtime.system import OUT_OF_DESCRIPTORS, descriptors_max, has_descriptor

# -------- Messages between the acceptor and a processor, in addition to the sockets that are passed
# Owns the shapes of the messages. It must never know how they are handled. A processor first sends
# ``ProcessorConnections``, so that a restarted acceptor knows all connections before it accepts
# another one. Each close is reported once, by ``ConnectionsClosed``. Invariant: a message is small
# plain data and fits into one packet.


CLOSED_MAX: Final = 1000
"""Connections in one ``ConnectionsClosed``; further ones go into the next message."""

PROCESSOR_CONNECTIONS_MAX: Final = 32
"""Connections in one ``ProcessorConnections``; further ones go into the next message."""

LEAST_RECENTLY_USED_MAX: Final = 400
"""Connections in one ``LeastRecentlyUsed`` or ``CloseConnections``; more need another round."""


class AcceptedConnection(NamedTuple):
    """An accepted connection; ``number`` makes its id unique, as in Kafka."""

    listener: str
    local: Address
    peer: Address
    number: int

    @property
    def connection_id(self) -> str:
        """Kafka's form: ``127.0.0.1:9092-127.0.0.1:51234-7``."""
        local, peer = self.local, self.peer
        return f"{local[0]}:{local[1]}-{peer[0]}:{peer[1]}-{self.number}"


class OpenConnection(NamedTuple):
    """An open connection of a processor."""

    number: int
    listener: str
    host: str


class ProcessorConnections(NamedTuple):
    """The connections of a processor that has started; ``more`` says whether others follow."""

    connections: tuple[OpenConnection, ...]
    more: bool


class ConnectionsClosed(NamedTuple):
    """How many connections a processor took from its queue, and which connections it closed."""

    taken: int
    closed: tuple[int, ...]


class LeastRecentlyUsedRequest(NamedTuple):
    """Request for a processor's least recently used connections, except those of one listener."""

    count_max: int
    protected: str | None


class LeastRecentlyUsed(NamedTuple):
    """A processor's answer: its connections, least recently used first."""

    uses: tuple[LastUse, ...]


class CloseConnections(NamedTuple):
    """Request to a processor to close connections, because there are more than ``limit``."""

    numbers: tuple[int, ...]
    limit: int


# --------------------------------------------------------------------------------------------------
# Messages that a processor has not yet sent to the current acceptor process, in order.
#
# Owns the queue and its delivery. Adding a message never waits, so it can be done when a connection
# ends, even by cancellation. Messages added in the same turn of the event loop share one packet,
# because during a connection storm a packet costs more than a connection. Invariant: one task sends
# on a handoff; the queue is bounded by the number of connections passed, each of which has two
# messages.


class AcceptorNotices:
    """Messages for the acceptor."""

    def __init__(self, first: Iterable[object]) -> None:
        """``first`` is sent before all other messages."""
        self._queue = deque(first)
        self._taken = 0
        self._closed: list[int] = []
        self._more = trio.Event()
        if self._queue:
            self._more.set()

    def taken(self) -> None:
        """Report that a connection was taken from the queue, so its slot is free."""
        self._taken += 1
        self._more.set()

    def closed(self, number: int) -> None:
        """Report that a connection is closed."""
        self._closed.append(number)
        if len(self._closed) == CLOSED_MAX:
            self._pack()
        self._more.set()

    def report(self, message: object) -> None:
        """Add any other message."""
        self._pack()
        self._queue.append(message)
        self._more.set()

    def _pack(self) -> None:
        if self._taken or self._closed:
            self._queue.append(ConnectionsClosed(self._taken, tuple(self._closed)))
            self._taken = 0
            self._closed.clear()

    async def deliver(self, handoff: Handoff) -> None:
        """Send messages until cancelled or until the acceptor has ended."""
        try:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                self._pack()
                while self._queue:
                    await handoff.send(self._queue.popleft())
        except ChannelClosed:
            pass  # A restarted acceptor is sent all open connections first.


QUEUE = "refused"
"""Name of the queue on ``/metrics``."""

ACCEPTED_IN_STORM: Final = 4
"""Connections accepted in a row during a storm of rejected connections."""


class _Rejected(NamedTuple):
    accepted: AcceptedConnection
    connection: Connection
    reason: CloseReason


class RejectedConnections:
    """Rejected connections of one process; ``run`` must be running to close delayed ones."""

    def __init__(
        self,
        env: Environment,
        events: ConnectionEvents,
        closes: ConnectionCloses,
        *,
        processor: int | None = None,
        sharing: int = 1,
    ) -> None:
        """``processor``: the processor, if it accepts connections itself; ``sharing`` processes
        accept.
        """
        self._env = env
        self._events = events
        self._closes = closes
        self._processor = processor
        self._rejections: DelayedCloses[_Rejected] = DelayedCloses(sharing)
        self._more = trio.Event()
        env.metrics.watch_queue(QUEUE, self._fill)

    def _fill(self) -> Fill:
        return Fill(self._rejections.delayed, DELAYED_MAX, self._rejections.most_delayed)

    def reject(
        self,
        accepted: AcceptedConnection,
        connection: Connection,
        reason: CloseReason,
        limit: ExceededLimit | None,
        *,
        at: float | None = None,
    ) -> None:
        """Reject a connection, with the limit that it exceeded, if any; ``at`` as for ``note``."""
        self._events.reject(accepted, reason.value, limit, self._processor, at=at)
        if self._env.on_note is not None:
            self._note(accepted, reason, limit)
        rejected = _Rejected(accepted, connection, reason)
        if self._rejections.add(rejected):
            self._close(rejected)
        self._more.set()

    def _note(
        self, accepted: AcceptedConnection, reason: CloseReason, limit: ExceededLimit | None
    ) -> None:
        name, value = (None, None) if limit is None else limit[:2]
        details = {
            "listener": accepted.listener,
            "reason": reason.value,
            "limit": name,
            "value": value,
        }
        host, port = accepted.peer
        client = accepted.number, client_ip(host), port
        note(self._env, "connection_rejected", details, client)

    def _close(self, rejected: _Rejected) -> None:
        accepted = rejected.accepted
        rejected.connection.close()
        self._closes.refused(accepted.listener, rejected.reason, client=accepted.peer)

    @property
    def is_storm(self) -> bool:
        """Whether closes are being delayed because too many connections were rejected."""
        return self._rejections.is_storm

    def most_in_a_row(self, otherwise: int) -> int:
        """Connections to accept before others are served; ``otherwise`` without a storm."""
        return ACCEPTED_IN_STORM if self.is_storm else otherwise

    async def pause(self) -> None:
        """Delay the next connection during a storm; call it after a connection was admitted.

        Admitted clients send the same first requests at the same time and would disconnect
        together, to be followed by as many others.
        """
        pause_s = self._rejections.pause_s
        if pause_s > 0:
            await self._env.clock.sleep_real(pause_s)

    def close_all(self) -> None:
        """Close all delayed connections, at shutdown or when descriptors are needed."""
        for rejected in self._rejections.take_all():
            self._close(rejected)

    async def run(self) -> None:
        """Close delayed connections when due; runs until cancelled, then closes all."""
        try:
            while True:
                await self._more.wait()
                while not self._rejections.are_idle:
                    await self._env.clock.sleep_real(TICK_S)
                    for rejected in self._rejections.tick():
                        self._close(rejected)
                self._more = trio.Event()
        finally:
            self.close_all()


# --------------------------------------------------------------------------------------------------
# Decides when rejected connections are closed: at once, or delayed during a connection storm.
#
# Owns the delayed connections and how many may be closed per tick. It must never know why a
# connection was rejected, close one, or read a clock: the caller calls ``tick`` every ``TICK_S``.
# Invariant: each connection that was added is returned for closing exactly once, in order unless
# there was no room for it; in a storm, ``AT_ONCE`` connections are closed at once and then
# ``PER_S`` per second. Applies KIP-612's delayed close of addresses that exceed their rate to all
# rejected connections: a client that reconnects as soon as it is disconnected must wait, and so
# reconnects less often.

AT_ONCE: Final = 256
"""Rejected connections that are closed at once before a storm: more than in normal use."""

PER_S: Final = 1000
"""Delayed connections closed per second: about 5 % of what one process can accept and close."""

TICK_S: Final = 0.004
"""Time between two ticks: few connections per tick, so that no other connection waits for them."""

ADMIT_INTERVAL_S: Final = 0.001
"""Time between two admitted connections in a storm: longer than either takes to process."""

STORM_S: Final = 1.0
"""A storm ends so long after the last rejection. It starts when a close is delayed.

Few connections are rejected while admission is slow, so there may be no delayed ones for a while.
"""

DELAYED_MAX: Final = 1000
"""Delayed connections at a time; further ones are closed at once.

Closing the oldest ones instead would cost as much, and would free the slots of clients that
reconnect endlessly.
"""

C = TypeVar("C")


class DelayedCloses(Generic[C]):
    """Delayed connections of one process, of ``sharing`` processes that accept."""

    def __init__(self, sharing: int = 1) -> None:
        self._between_s = ADMIT_INTERVAL_S * sharing
        self._per_tick = max(1, round(PER_S * TICK_S / sharing))
        self._may_close = AT_ONCE
        self._storm_ticks = 0
        self._delayed: deque[C] = deque()
        self._most_delayed = 0

    def add(self, connection: C) -> bool:
        """Add a rejected connection. True: close it now; False: it is delayed."""
        if self._may_close == 0 or self.is_storm:
            self._storm_ticks = round(STORM_S / TICK_S)
        if self._may_close > 0:
            self._may_close -= 1
            return True
        if len(self._delayed) >= DELAYED_MAX:
            return True
        self._delayed.append(connection)
        self._most_delayed = max(self._most_delayed, len(self._delayed))
        return False

    def tick(self) -> Iterator[C]:
        """Return the connections to close now; call it every ``TICK_S``."""
        self._storm_ticks = max(0, self._storm_ticks - 1)
        self._may_close = min(self._may_close + self._per_tick, AT_ONCE)
        while self._may_close > 0 and self._delayed:
            self._may_close -= 1
            yield self._delayed.popleft()

    def take_all(self) -> Iterator[C]:
        """Remove and return all delayed connections, to be closed at once."""
        while self._delayed:
            yield self._delayed.popleft()

    @property
    def is_storm(self) -> bool:
        """Whether connections are being rejected faster than they may be closed."""
        return self._storm_ticks > 0

    @property
    def pause_s(self) -> float:
        """Pause after an admitted connection in seconds; 0 unless there is a storm."""
        return self._between_s if self.is_storm else 0.0

    @property
    def are_idle(self) -> bool:
        """Whether further ticks would change nothing."""
        return self._may_close == AT_ONCE and not self.is_storm

    @property
    def delayed(self) -> int:
        """Number of delayed connections."""
        return len(self._delayed)

    @property
    def most_delayed(self) -> int:
        """Largest number of connections that were ever delayed."""
        return self._most_delayed


RETRY_S: Final = 0.1
"""Delay, in real time, before a failed ``accept`` is tried again."""

CALM_S: Final = 1.0
"""Real time without a failed ``accept`` after which a shortage is over."""

SUBJECT: Final = "open files"

THIS_PROCESS: Final = "this process"


class DescriptorHealth:
    """The descriptors of one process that opens connections; ``run`` ends a shortage."""

    def __init__(self, env: Environment, log: EventLog) -> None:
        self._env = env
        self._log = log
        self._failed_at_s: float | None = None
        self._is_exhausted = trio.Event()

    async def accept_failed(self, listener: str, error: OSError) -> None:
        """Note a failed ``accept``, and wait before the next one."""
        if error.errno in OUT_OF_DESCRIPTORS:
            self.exhausted("the system" if error.errno == errno.ENFILE else THIS_PROCESS)
        else:
            self._log.warning("connections wait", listener=listener, error=error)
        await self._env.clock.sleep_real(RETRY_S)

    def exhausted(self, owner: str = THIS_PROCESS) -> None:
        """Note that no descriptor was left for a connection, and in which process."""
        began = self._failed_at_s is None
        self._failed_at_s = self._env.clock.real_s()
        if not began:
            return
        text = (
            f"connections cannot be accepted because {owner} has no descriptor left; this process "
            f"may open {descriptors_max()} files: raise the limit (ulimit -n) or lower "
            "max.connections"
        )
        now_ms = self._env.clock.wall_ms()
        self._env.conditions.set(ConditionKind.DESCRIPTORS_EXHAUSTED, SUBJECT, text, now_ms)
        self._log.error("descriptors are exhausted", reason=text)
        self._is_exhausted.set()

    async def run(self) -> None:
        """End each shortage when it is over; runs until cancelled."""
        clock = self._env.clock
        while True:
            await self._is_exhausted.wait()
            await clock.sleep_real(CALM_S)
            assert self._failed_at_s is not None
            if clock.real_s() - self._failed_at_s < CALM_S or not has_descriptor():
                continue
            self._failed_at_s = None
            self._is_exhausted = trio.Event()
            self._env.conditions.clear(ConditionKind.DESCRIPTORS_EXHAUSTED, SUBJECT)
            self._log.warning("descriptors are available again")
