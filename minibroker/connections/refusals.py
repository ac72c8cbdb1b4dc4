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

TICK_S: Final = 0.02
"""Between two looks at who may be closed now."""

HELD_MAX: Final = 1000
"""Held at a time. Beyond, newcomers are closed at once: to close those who were held for longest
instead would cost as much, and leave those who dial without end the fewer connections that wait.
"""

C = TypeVar("C")


class Refusals(Generic[C]):
    """Those of one process, of ``sharing`` that accept."""

    def __init__(self, sharing: int = 1) -> None:
        self._per_tick = max(1, round(PER_S * TICK_S / sharing))
        self._may_close = AT_ONCE
        self._held: deque[C] = deque()
        self._most_held = 0

    def add(self, connection: C) -> bool:
        """Somebody is turned away. True: close it now; False: it is held."""
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
        self._may_close = min(self._may_close + self._per_tick, AT_ONCE)
        while self._may_close > 0 and self._held:
            self._may_close -= 1
            yield self._held.popleft()

    def let_go(self) -> Iterator[C]:
        """All that are held, to be closed whatever the time."""
        while self._held:
            yield self._held.popleft()

    @property
    def are_calm(self) -> bool:
        """Whether time would change nothing."""
        return self._may_close == AT_ONCE

    @property
    def held(self) -> int:
        """How many are held."""
        return len(self._held)

    @property
    def most_held(self) -> int:
        """The most that ever were."""
        return self._most_held
