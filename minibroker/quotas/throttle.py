"""Queue of throttled connections in the order in which their throttles end.

It must never read a clock or know a connection: keys are any hashable objects, and ``now_ms`` is an
argument. Invariant: each throttled key is returned exactly once, by the first `due` at or after the
end, unless it is forgotten; forgotten keys use bounded memory. Corresponds to Kafka's
``ThrottledChannelReaper``.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Held = TypeVar("Held", bound=Hashable)

FORGOTTEN_MAX: Final = 64
"""Ends of forgotten keys that are kept, in addition to as many as there are live keys."""


class ThrottleQueue(Generic[Held]):
    """Keys that are throttled, each by one quota type."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []
        self._number = 0
        self._held: dict[int, tuple[Held, str]] = {}
        self._numbers: dict[Held, int] = {}
        self._sizes: dict[str, int] = {}

    def hold(self, held: Held, kind: str, end_ms: int) -> bool:
        """Throttle a key that is not throttled; return whether its end is the next one."""
        assert held not in self._numbers
        self._number += 1
        number = self._numbers[held] = self._number
        self._held[number] = held, kind
        self._sizes[kind] = self._sizes.get(kind, 0) + 1
        heapq.heappush(self._ends, (end_ms, number))
        return self._ends[0][1] == number

    def due(self, now_ms: int) -> list[Held]:
        """Remove and return the keys whose throttle has ended."""
        found = []
        while self._ends and self._ends[0][0] <= now_ms:
            _, number = heapq.heappop(self._ends)
            if number in self._held:
                held, _ = self._held[number]
                self.forget(held)
                found.append(held)
        return found

    def forget(self, held: Held) -> None:
        """Remove a key, throttled or not."""
        number = self._numbers.pop(held, None)
        if number is None:
            return
        _, kind = self._held.pop(number)
        self._sizes[kind] -= 1
        if len(self._ends) > 2 * len(self._held) + FORGOTTEN_MAX:
            self._ends = [end for end in self._ends if end[1] in self._held]
            heapq.heapify(self._ends)

    def next_ms(self) -> int | None:
        """Return the time of the next end; None if nothing is throttled."""
        return self._ends[0][0] if self._ends else None

    def size(self, kind: str) -> int:
        """Return the number of keys that a quota type throttles."""
        return self._sizes.get(kind, 0)
