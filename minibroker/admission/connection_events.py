"""What happened to connections lately, kept for people to see.

Owns the last happenings and, apart from them, the last refusals, so that a storm of those who are
let in does not push out why others were not; never who decides, nor the words that people read.
Invariant: noting costs well below a microsecond and never waits; what is kept is bounded; each
happening has a number, by which who asks again knows what is new. Kafka has a log line at most.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from minibroker.activity.schema import Happened
from minibroker.runtime.stream import Address

EVENTS_MAX: Final = 500
"""Happenings that one process keeps."""

REJECTIONS_MAX: Final = 100
"""Refusals that one process keeps."""

WHY_MAX: Final = 200
"""Characters that are kept of what there is to say beside a reason."""

ConnectionEventKind: TypeAlias = Literal[
    "accepted", "waiting", "held", "handed", "refused", "closed"
]
"""What may happen to a connection, in the order in which it may.

``waiting``: for its turn, because of a limit or because all processors are full. ``held``: for
its address's sake, which came too fast. ``refused``: turned away before any processor had it, to
be closed at once or, in a storm, in its turn.
"""


class ConnectionFacts(Protocol):
    """A connection, by small immutable facts: they may be kept long after its end."""

    @property
    def number(self) -> int: ...

    @property
    def listener(self) -> str: ...

    @property
    def peer(self) -> Address: ...


class ConnectionEvent(NamedTuple):
    """Something that happened to a connection, at a time in seconds of the broker's clock.

    ``reason`` is why it was refused or closed (a ``CloseReason``), or the setting that it waits
    for.
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
    """A limit that was met: the setting as one would write it, and its value.

    ``whose`` it is: an address, ``<default>`` for what addresses have that none was given, or
    None where that is no question.
    """

    setting: str
    value: float
    whose: str | None = None


class Rejection(NamedTuple):
    """A connection that was turned away, or sent away; ``limit`` as it was then, None if it was
    not for one. ``why`` is what there is to say beside the reason; a client may have chosen it.
    """

    event: ConnectionEvent
    limit: ExceededLimit | None
    why: str = ""


class RecentConnectionEvents(NamedTuple):
    """What one life of a process knows, oldest first.

    ``happened`` and ``refused`` count all there have been in this life, those not kept any more
    among them.
    """

    life: int
    happened: int
    events: tuple[ConnectionEvent, ...]
    refused: int
    rejections: tuple[Rejection, ...]


ActivityListener: TypeAlias = Callable[
    [Happened, ConnectionFacts, float, str | None, int | None], None
]
"""What happened to whom and when, why, and for how many ms it waits."""


class ConnectionEvents:
    """What happened at one process."""

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
        self, life: int, now: Callable[[], float], tell: ActivityListener | None = None
    ) -> None:
        """``tell`` is told of what becomes of each connection."""
        self._life = life
        self._now = now
        self._record_activity = tell
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
        """Something happened just now, or at a time that somebody has looked at the clock."""
        # Put into shape when somebody looks, which is seldom: this is done for all who come.
        self._happened += 1
        now = self._now() if at is None else at
        self._events.append((now, kind, who, processor, reason))
        if self._record_activity is not None and (happened := _TOLD.get(kind)) is not None:
            self._record_activity(happened, who, now, reason, delay_ms)

    def admit(self, who: ConnectionFacts, at: float) -> None:
        """Somebody who was waiting or held is let in. Not kept, as it is handed over next."""
        if self._record_activity is not None:
            self._record_activity(Happened.ADMITTED, who, at, None, None)

    def reject(
        self,
        who: ConnectionFacts,
        reason: str,
        limit: ExceededLimit | None = None,
        processor: int | None = None,
    ) -> None:
        """A connection is turned away just now."""
        self.note("refused", who, processor, reason)
        self._keep(limit, "")

    def evict(
        self, who: ConnectionFacts, reason: str, limit: ExceededLimit, processor: int
    ) -> None:
        """A connection that a processor had is closed just now, for a limit's sake."""
        self.note("closed", who, processor, reason)
        self._keep(limit, "")

    def fail_authentication(
        self, who: ConnectionFacts, reason: str, why: str, processor: int
    ) -> None:
        """A connection that a processor had is closed just now, for not saying who it is."""
        self.note("closed", who, processor, reason)
        self._keep(None, why[:WHY_MAX])

    def _keep(self, limit: ExceededLimit | None, why: str) -> None:
        self._refused += 1
        self._rejections.append((self._events[-1], limit, why))

    def recent(self) -> RecentConnectionEvents:
        """All that is kept."""
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
