"""Recent connection events of each process, and all of them merged, for the control API.

Owns the last events and, separately, the last rejections, so that many accepted connections do not
push out rejections; and one numbered sequence of the events of all processes. It must never decide
about a connection, or format a message. Invariants: recording costs well below a microsecond and
never waits; memory is bounded; an event is added to the sequence once, however often its process
reports it, and keeps its number; numbers are consecutive, also after a restart of the controller,
so that a reader can request only new ones. Kafka at most writes a log line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

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
