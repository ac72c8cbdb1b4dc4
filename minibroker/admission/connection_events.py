"""Recent connection events, kept for the console and the control API.

Owns the last events and, separately, the last rejections, so that many accepted connections do not
push out why others were rejected. It must never decide about a connection, or word a message.
Invariant: recording costs well below a microsecond and never waits; memory is bounded; events are
numbered, so that a reader can ask for new ones only. Kafka at most writes a log line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from minibroker.activity.schema import Happened
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
"""What can happen to a connection, in order.

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
    beside the reason; it may contain text of the client.
    """

    event: ConnectionEvent
    limit: ExceededLimit | None
    why: str = ""


class RecentConnectionEvents(NamedTuple):
    """Events that one process remembers since its start, oldest first.

    ``happened`` and ``refused`` are the totals since the start, including events no longer kept.
    """

    life: int
    happened: int
    events: tuple[ConnectionEvent, ...]
    refused: int
    rejections: tuple[Rejection, ...]


ActivityListener: TypeAlias = Callable[
    [Happened, ConnectionFacts, float, str | None, int | None], None
]
"""Called with the event, the connection, the time, the reason and the delay in ms."""


class ConnectionEvents:
    """Recent events of one process."""

    __slots__ = (
        "_events",
        "_happened",
        "_life",
        "_now",
        "_record_activity",
        "_refused",
        "_rejections",
    )

    def __init__(
        self, life: int, now: Callable[[], float], on_event: ActivityListener | None = None
    ) -> None:
        """``on_event`` is called with each change of a connection."""
        self._life = life
        self._now = now
        self._record_activity = on_event
        self._happened = 0
        self._events: deque[_Noted] = deque(maxlen=EVENTS_MAX)
        self._refused = 0
        self._rejections: deque[tuple[_Noted, ExceededLimit | None, str]] = deque(
            maxlen=REJECTIONS_MAX
        )

    def note(
        self,
        kind: ConnectionEventKind,
        who: ConnectionFacts,
        processor: int | None = None,
        reason: str | None = None,
        *,
        at: float | None = None,
        delay_ms: int | None = None,
    ) -> None:
        """Record an event, now or at a time that was read from the clock already."""
        # Converted to ``ConnectionEvent`` when it is read, which is rare: this runs for each
        # connection.
        self._happened += 1
        now = self._now() if at is None else at
        self._events.append((now, kind, who, processor, reason))
        if self._record_activity is not None and (happened := _TOLD.get(kind)) is not None:
            self._record_activity(happened, who, now, reason, delay_ms)

    def admit(self, who: ConnectionFacts, at: float) -> None:
        """Report that a waiting or delayed connection is admitted.

        Not kept: it is passed on next.
        """
        if self._record_activity is not None:
            self._record_activity(Happened.ADMITTED, who, at, None, None)

    def reject(
        self,
        who: ConnectionFacts,
        reason: str,
        limit: ExceededLimit | None = None,
        processor: int | None = None,
    ) -> None:
        """Record that a connection is rejected."""
        self.note("refused", who, processor, reason)
        self._keep(limit, "")

    def evict(
        self, who: ConnectionFacts, reason: str, limit: ExceededLimit, processor: int
    ) -> None:
        """Record that an open connection is closed because of a limit."""
        self.note("closed", who, processor, reason)
        self._keep(limit, "")

    def fail_authentication(
        self, who: ConnectionFacts, reason: str, why: str, processor: int
    ) -> None:
        """Record that an open connection is closed because its authentication failed."""
        self.note("closed", who, processor, reason)
        self._keep(None, why[:WHY_MAX])

    def _keep(self, limit: ExceededLimit | None, why: str) -> None:
        self._refused += 1
        self._rejections.append((self._events[-1], limit, why))

    def recent(self) -> RecentConnectionEvents:
        """Return all events and rejections that are kept."""
        return RecentConnectionEvents(
            self._life,
            self._happened,
            tuple(map(_happening, self._events)),
            self._refused,
            tuple(
                Rejection(_happening(noted), limit, why) for noted, limit, why in self._rejections
            ),
        )


_TOLD: Final[Mapping[ConnectionEventKind, Happened]] = {
    "accepted": Happened.ACCEPTED,
    "waiting": Happened.DELAYED,
    "held": Happened.HELD,
    "refused": Happened.REFUSED,
    "closed": Happened.CLOSED,
}

_Noted: TypeAlias = tuple[float, ConnectionEventKind, ConnectionFacts, int | None, str | None]


def _happening(noted: _Noted) -> ConnectionEvent:
    at, kind, who, processor, reason = noted
    host, port = who.peer
    return ConnectionEvent(who.number, at, kind, who.listener, host, port, processor, reason)
