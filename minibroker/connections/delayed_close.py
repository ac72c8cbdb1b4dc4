"""When connections that are turned away are closed: at once, or, if they come in an endless row, in
their turn.

Owns who is to be closed still and how many may be in a time; it must never know why somebody is
turned away, nor close anybody, nor read a clock: a ``tick`` is told when ``TICK_S`` have passed.
Invariant: whoever was added is given back for closing exactly once, in order of coming but for
those that find no room; of a row without end ``AT_ONCE`` and then ``PER_S`` a second. It does for
all refusals what KIP-612's delayed close does for addresses that are too fast: who dials again the
moment that he is hung up on waits for that, and so dials seldom.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

AT_ONCE: Final = 256
"""Closed at once after a time without refusals; more than people or tests are turned away in."""

PER_S: Final = 1000
"""Closed a second after that: of what one process can accept and close about a twentieth."""

TICK_S: Final = 0.004
"""Between two looks at who may be closed now: so few at a time that nobody waits for them."""

LET_IN_EVERY_S: Final = 0.001
"""Between two newcomers that are let in during a storm: more than either costs."""

STORM_S: Final = 1.0
"""So long after its last refusal a storm is over, which begins when somebody has to be held. Who
is let in slowly leaves little to be refused, so that at times there is nobody to hold.
"""

HELD_MAX: Final = 1000
"""Held at a time. Beyond, newcomers are closed at once: to close those who were held for longest
instead would cost as much, and leave those who dial without end the fewer connections that wait.
"""

C = TypeVar("C")


class DelayedCloses(Generic[C]):
    """Those of one process, of ``sharing`` that accept."""

    def __init__(self, sharing: int = 1) -> None:
        self._between_s = LET_IN_EVERY_S * sharing
        self._per_tick = max(1, round(PER_S * TICK_S / sharing))
        self._may_close = AT_ONCE
        self._storm_ticks = 0
        self._held: deque[C] = deque()
        self._most_held = 0

    def add(self, connection: C) -> bool:
        """Somebody is turned away. True: close it now; False: it is held."""
        if self._may_close == 0 or self.is_storm:
            self._storm_ticks = round(STORM_S / TICK_S)
        if self._may_close > 0:
            self._may_close -= 1
            return True
        if len(self._held) >= HELD_MAX:
            return True
        self._held.append(connection)
        self._most_held = max(self._most_held, len(self._held))
        return False

    def tick(self) -> Iterator[C]:
        """Time has passed: those to close now."""
        self._storm_ticks = max(0, self._storm_ticks - 1)
        self._may_close = min(self._may_close + self._per_tick, AT_ONCE)
        while self._may_close > 0 and self._held:
            self._may_close -= 1
            yield self._held.popleft()

    def let_go(self) -> Iterator[C]:
        """All that are held, to be closed whatever the time."""
        while self._held:
            yield self._held.popleft()

    @property
    def is_storm(self) -> bool:
        """Whether so many were refused that some had to be held, and it still goes on."""
        return self._storm_ticks > 0

    @property
    def pause_s(self) -> float:
        """How long to wait after somebody was let in: 0 but in a storm."""
        return self._between_s if self.is_storm else 0.0

    @property
    def are_calm(self) -> bool:
        """Whether time would change nothing."""
        return self._may_close == AT_ONCE and not self.is_storm

    @property
    def held(self) -> int:
        """How many are held."""
        return len(self._held)

    @property
    def most_held(self) -> int:
        """The most that ever were."""
        return self._most_held
