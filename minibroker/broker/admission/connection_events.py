"""Recent connection events of each process, and all of them merged, for the control API.

Owns the last events and, separately, the last rejections, so that many accepted connections do not
push out rejections; and one numbered sequence of the events of all processes. It must never decide
about a connection, or format a message. Invariants: recording costs well below a microsecond and
never waits; memory is bounded; an event is added to the sequence once, however often its process
reports it, and keeps its number; numbers are consecutive, also after a restart of the controller,
so that a reader can request only new ones. Kafka at most writes a log line.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from minibroker.broker.connections.limits import (
    UNLIMITED,
    ConnectionCountLimits,
    ConnectionCounts,
    ConnectionRates,
)
from minibroker.runtime.stream import Address

EVENTS_MAX: Final = 500
"""Events kept by one process."""

REJECTIONS_MAX: Final = 100
"""Rejections kept by one process."""

WHY_MAX: Final = 200
"""Maximal length of the detail of a rejection, in characters."""

ConnectionEventKind: TypeAlias = Literal[
    "accepted", "waiting", "held", "handed", "refused", "closed"
]
"""Events of a connection, in order.

``waiting``: for a free slot of a limit or a processor. ``held``: delayed by the rate of its
address. ``refused``: rejected before a processor got it; closed at once or, in a connection storm,
later.
"""


class ConnectionFacts(Protocol):
    """A connection, as small immutable facts that may be kept after its end."""

    @property
    def number(self) -> int: ...

    @property
    def listener(self) -> str: ...

    @property
    def peer(self) -> Address: ...


class ConnectionEvent(NamedTuple):
    """Event of a connection, with its time in seconds of the broker's clock.

    ``reason`` is the reason of a rejection or close (a ``CloseReason``), or the setting that the
    connection waits for.
    """

    number: int
    at: float
    kind: ConnectionEventKind
    listener: str
    host: str
    port: int
    processor: int | None
    reason: str | None


class ExceededLimit(NamedTuple):
    """Limit that was exceeded: the name of the setting and its value.

    ``whose``: an address, ``<default>`` for the default of all addresses, or None if the limit does
    not belong to an address.
    """

    setting: str
    value: float
    whose: str | None = None


class Rejection(NamedTuple):
    """Connection that was rejected, or closed by the broker.

    ``limit`` is the limit at that time, or None if no limit was exceeded. ``why`` is a detail
    in addition to the reason; it may contain text of the client.
    """

    event: ConnectionEvent
    limit: ExceededLimit | None
    why: str = ""


class RecentConnectionEvents(NamedTuple):
    """Events that one process remembers since its start, oldest first.

    ``events_total`` and ``rejections_total`` count since the start, also what is no longer kept.
    """

    incarnation: int
    events_total: int
    events: tuple[ConnectionEvent, ...]
    rejections_total: int
    rejections: tuple[Rejection, ...]


ADMITTED: Final = "admitted"
"""A waiting or held connection may enter. It is passed on next, so this event is not kept."""

ConnectionEventListener: TypeAlias = Callable[
    [str, ConnectionFacts, float, str | None, int | None], None
]
"""Called with the kind of event, the connection, the time, the reason and the delay in ms."""


class ConnectionEvents:
    """Recent events of one process."""

    __slots__ = (
        "_events",
        "_events_total",
        "_incarnation",
        "_now",
        "_rejections",
        "_rejections_total",
        "on_event",
    )

    def __init__(self, incarnation: int, now: Callable[[], float]) -> None:
        self._incarnation = incarnation
        self._now = now
        self.on_event: ConnectionEventListener | None = None
        """Called with each event."""
        self._events_total = 0
        self._events: deque[_RecordedEvent] = deque(maxlen=EVENTS_MAX)
        self._rejections_total = 0
        self._rejections: deque[tuple[_RecordedEvent, ExceededLimit | None, str]] = deque(
            maxlen=REJECTIONS_MAX
        )

    def note(
        self,
        kind: ConnectionEventKind,
        connection: ConnectionFacts,
        processor: int | None = None,
        reason: str | None = None,
        *,
        at: float | None = None,
        delay_ms: int | None = None,
    ) -> None:
        """Record an event, now or at a time that was read from the clock already."""
        # Converted to ``ConnectionEvent`` when it is read, which is rare: this runs for each
        # connection.
        self._events_total += 1
        now = self._now() if at is None else at
        self._events.append((now, kind, connection, processor, reason))
        if self.on_event is not None:
            self.on_event(kind, connection, now, reason, delay_ms)

    def admit(self, connection: ConnectionFacts, at: float) -> None:
        """Report that a waiting or delayed connection is admitted.

        Not kept: it is passed on next.
        """
        if self.on_event is not None:
            self.on_event(ADMITTED, connection, at, None, None)

    def reject(
        self,
        connection: ConnectionFacts,
        reason: str,
        limit: ExceededLimit | None = None,
        processor: int | None = None,
        *,
        at: float | None = None,
    ) -> None:
        """Record that a connection is rejected; ``at`` as for ``note``."""
        self.note("refused", connection, processor, reason, at=at)
        self._keep_rejection(limit, "")

    def evict(
        self, connection: ConnectionFacts, reason: str, limit: ExceededLimit, processor: int
    ) -> None:
        """Record that an open connection is closed because of a limit."""
        self.note("closed", connection, processor, reason)
        self._keep_rejection(limit, "")

    def fail_authentication(
        self, connection: ConnectionFacts, reason: str, why: str, processor: int
    ) -> None:
        """Record that an open connection is closed because its authentication failed."""
        self.note("closed", connection, processor, reason)
        self._keep_rejection(None, why[:WHY_MAX])

    def _keep_rejection(self, limit: ExceededLimit | None, why: str) -> None:
        self._rejections_total += 1
        self._rejections.append((self._events[-1], limit, why))

    def recent(self) -> RecentConnectionEvents:
        """Return all events and rejections that are kept."""
        return RecentConnectionEvents(
            self._incarnation,
            self._events_total,
            tuple(map(_connection_event, self._events)),
            self._rejections_total,
            tuple(
                Rejection(_connection_event(recorded), limit, why)
                for recorded, limit, why in self._rejections
            ),
        )


_RecordedEvent: TypeAlias = tuple[
    float, ConnectionEventKind, ConnectionFacts, int | None, str | None
]


def _connection_event(recorded: _RecordedEvent) -> ConnectionEvent:
    at, kind, connection, processor, reason = recorded
    host, port = connection.peer
    return ConnectionEvent(
        connection.number, at, kind, connection.listener, host, port, processor, reason
    )


T = TypeVar("T")


class _Seen(NamedTuple):
    incarnation: int = 0
    events_total: int = 0
    rejections_total: int = 0


class ConnectionEventLog:
    """The recent connection events and rejections of a broker, oldest first."""

    def __init__(self, incarnation: int) -> None:
        """``incarnation`` is the controller's: a later one numbers its events higher."""
        self._next = incarnation << 32
        self._seen: dict[str, _Seen] = {}
        self.events: deque[tuple[int, ConnectionEvent]] = deque(maxlen=EVENTS_MAX)
        self.rejections: deque[Rejection] = deque(maxlen=REJECTIONS_MAX)

    def take(self, reports: Mapping[str, RecentConnectionEvents], until: float) -> None:
        """Add the new events of these reports, which were requested at ``until`` or later.

        Later events are added next time: other processes may not have reported earlier ones yet,
        and a consequence must not be listed before its cause.
        """
        events: list[ConnectionEvent] = []
        rejections: list[Rejection] = []
        for process, report in reports.items():
            seen = self._seen.get(process, _Seen())
            if seen.incarnation > report.incarnation:
                continue  # The answers to two concurrent requests arrived in reverse order.
            if seen.incarnation < report.incarnation:
                seen = _Seen(report.incarnation)
            settled = [each for each in report.events if each.at <= until]
            events_total = report.events_total - len(report.events) + len(settled)
            events += _newest(settled, events_total - seen.events_total)
            rejected = [each for each in report.rejections if each.event.at <= until]
            rejections_total = report.rejections_total - len(report.rejections) + len(rejected)
            rejections += _newest(rejected, rejections_total - seen.rejections_total)
            self._seen[process] = _Seen(
                report.incarnation,
                max(events_total, seen.events_total),
                max(rejections_total, seen.rejections_total),
            )
        # Events of one process keep their order, after those of earlier processes: sorting
        # is stable.
        for event in sorted(events, key=lambda each: each.at):
            self.events.append((self._next, event))
            self._next += 1
        self.rejections.extend(sorted(rejections, key=lambda each: each.event.at))


def _newest(kept: Sequence[T], new: int) -> Sequence[T]:
    return kept[-new:] if new > 0 else ()


# -------------- Figures of connections by listener and address, for the control API and the console
# Owns how counts and rates are read into figures. It must never decide about a connection.
# Invariant: the number of addresses shown is bounded, and the total is given with them. Kafka has
# MBeans of ``SocketServer`` instead.


ADDRESSES_SHOWN_MAX: Final = 100
"""Addresses shown: those with the most connections, then those that connected last."""


class ListenerFigures(NamedTuple):
    """Connections of a listener, how many count towards its limit, and its rate of new ones."""

    listener: str
    connections: int
    rate: float
    blocked_share: float
    waiting: int
    held: int


class AddressFigures(NamedTuple):
    """Connections of an address; the rate is known only if it is limited."""

    ip: str
    connections: int
    limit: int | None
    rate: float | None = None
    rate_limit: float | None = None


class ConnectionFigures(NamedTuple):
    """Figures of one acceptor, or of one processor that accepts connections itself."""

    total: int
    rate: float
    listeners: tuple[ListenerFigures, ...]
    addresses: tuple[AddressFigures, ...]
    addresses_total: int


def read_connection_figures(
    counts: ConnectionCounts, rates: ConnectionRates, waits: BlockedTime, now: float, now_ms: int
) -> ConnectionFigures:
    """Read the figures; ``now`` is in seconds, as waits are timed, and ``now_ms`` in ms, as rates
    are.
    """
    figures = rates.figures(now_ms, ADDRESSES_SHOWN_MAX)
    counted, by_ip = counts.by_listener(), counts.by_ip()
    most = largest(by_ip, ADDRESSES_SHOWN_MAX)
    shown = list(dict.fromkeys((*most, *figures.ips)))[:ADDRESSES_SHOWN_MAX]
    return ConnectionFigures(
        total=counts.total,
        rate=figures.broker,
        listeners=tuple(
            ListenerFigures(
                listener,
                connections=counted.get(listener, 0),
                rate=rate,
                blocked_share=waits.blocked_share(listener, now),
                waiting=waits.waiting(listener),
                held=waits.held(listener),
            )
            for listener, rate in figures.listeners.items()
        ),
        addresses=tuple(
            AddressFigures(
                ip,
                connections=by_ip.get(ip, 0),
                limit=_limit_of_ip(counts.limits, ip),
                rate=rates.of_ip(ip, now_ms),
                rate_limit=rates.limits.of_ip(ip),
            )
            for ip in shown
        ),
        addresses_total=len(by_ip),
    )


def largest(counts: Mapping[str, int], most: int) -> list[str]:
    """Return the names of the largest counts, largest first, ``most`` at most.

    Uses a histogram, because few names are needed of perhaps a hundred thousand with almost equal
    counts, and no connection is accepted meanwhile.
    """
    least, missing = 0, most
    for count, names in sorted(Counter(counts.values()).items(), reverse=True):
        least = count
        if names >= missing:
            break
        missing -= names
    above = sorted(
        (name for name, count in counts.items() if count > least),
        key=counts.__getitem__,
        reverse=True,
    )
    equal = (name for name, count in counts.items() if count == least)
    return [*above, *islice(equal, most - len(above))]


def _limit_of_ip(limits: ConnectionCountLimits, ip: str) -> int | None:
    dropped = limits.drop_overrides.get(ip, limits.drop_per_ip)
    limit = min(limits.of_ip(ip), UNLIMITED if dropped is None else dropped)
    return None if limit >= UNLIMITED else limit


# --------------------------------------------------------------------------------------------------
# Waiting connections and the share of recent time in which a listener was blocked.
#
# Owns the figures of each listener. It must never know why a connection waits. Pure: ``now``
# (seconds of the broker's clock) is an argument. Invariant: the blocked share is at most 1 however
# many connections wait at once, and memory does not grow with the number of waits. Kafka's
# ``AcceptorBlockedPercent`` averages over a minute; this share is for the console.

SHARE_OVER_S: Final = 10
"""Seconds that the share is calculated over, including the current one."""


class BlockedTime:
    """Waiting connections and blocked time by listener."""

    def __init__(self, listeners: Iterable[str]) -> None:
        self._blocked = {listener: _Blocked() for listener in listeners}
        self._waiting: Counter[str] = Counter()
        self._held: Counter[str] = Counter()

    def begin(self, listener: str, now: float, *, blocks: bool) -> None:
        """Note that a connection waits; with ``blocks`` later ones of its listener wait too."""
        self._waiting[listener] += 1
        if blocks:
            self._blocked[listener].begin(now)

    def end(self, listener: str, now: float, *, blocks: bool) -> None:
        """Note that a connection stops waiting."""
        self._waiting[listener] -= 1
        if blocks:
            self._blocked[listener].end(now)

    def start_delay(self, listener: str) -> None:
        """Note that a connection is delayed by the rate of its address."""
        self._held[listener] += 1

    def end_delay(self, listener: str) -> None:
        """Note that a connection is no longer delayed."""
        self._held[listener] -= 1

    def waiting(self, listener: str) -> int:
        """Number of waiting connections of a listener, without those delayed by their address's
        rate.
        """
        return self._waiting[listener]

    def held(self, listener: str) -> int:
        """Number of connections of a listener that are delayed by their address's rate."""
        return self._held[listener]

    def all_delayed(self) -> int:
        """Number of delayed connections of all listeners."""
        return self._held.total()

    def blocked_share(self, listener: str, now: float) -> float:
        """Share of recent time in which the listener was blocked, from 0 to 1."""
        return self._blocked[listener].share(now)


class _Blocked:
    """Blocked time by the second in which it passed."""

    __slots__ = ("_by_second", "_depth", "_since")

    def __init__(self) -> None:
        self._by_second: dict[int, float] = {}
        self._depth = 0
        self._since = 0.0

    def begin(self, now: float) -> None:
        if self._depth == 0:
            self._since = now
        self._depth += 1

    def end(self, now: float) -> None:
        self._settle(now)
        self._depth -= 1

    def _settle(self, now: float) -> None:
        """Add the time of the current block up to now."""
        first = math.floor(now) - SHARE_OVER_S + 1
        if self._depth:
            at = max(self._since, float(first))
            while at < now:
                second = math.floor(at)
                until = min(now, second + 1.0)
                self._by_second[second] = self._by_second.get(second, 0.0) + until - at
                at = until
            self._since = now
        for second in [each for each in self._by_second if each < first]:
            del self._by_second[second]

    def share(self, now: float) -> float:
        self._settle(now)
        passed = now - (math.floor(now) - SHARE_OVER_S + 1)
        return min(1.0, sum(self._by_second.values()) / passed)
