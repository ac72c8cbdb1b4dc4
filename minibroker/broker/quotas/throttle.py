"""Queue of throttled connections in the order in which their throttles end.

It must never read a clock or know a connection: keys are any hashable objects, and ``now_ms`` is an
argument. Invariant: each throttled key is returned exactly once, by the first `due` at or after the
end, unless it is forgotten; forgotten keys use bounded memory. Corresponds to Kafka's
``ThrottledChannelReaper``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from minibroker.runtime.deadlines import Deadlines

Held = TypeVar("Held", bound=Hashable)


class ThrottleQueue(Generic[Held]):
    """Keys that are throttled, each by one quota type."""

    def __init__(self) -> None:
        self._ends: Deadlines[Held] = Deadlines()
        self._kinds: dict[Held, str] = {}
        self._sizes: dict[str, int] = {}

    def hold(self, held: Held, kind: str, end_ms: int) -> bool:
        """Throttle a key that is not throttled; return whether its end is the next one."""
        is_next = self._ends.add(held, end_ms)
        self._kinds[held] = kind
        self._sizes[kind] = self._sizes.get(kind, 0) + 1
        return is_next

    def due(self, now_ms: int) -> list[Held]:
        """Remove and return the keys whose throttle has ended."""
        found = self._ends.due(now_ms)
        for held in found:
            self._sizes[self._kinds.pop(held)] -= 1
        return found

    def forget(self, held: Held) -> None:
        """Remove a key, throttled or not."""
        if held in self._kinds:
            self._ends.forget(held)
            self._sizes[self._kinds.pop(held)] -= 1

    def next_ms(self) -> float | None:
        """Return the time of the next end; None if nothing is throttled."""
        return self._ends.next()

    def size(self, kind: str) -> int:
        """Return the number of keys that a quota type throttles."""
        return self._sizes.get(kind, 0)
