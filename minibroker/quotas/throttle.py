"""Who is held, and until when: the ends of throttles in the order in which they come.

Owns the queue of ends; it must never read a clock or know a connection: who is held is any number,
and ``now_ms`` an argument.  Invariant: everybody who was held is let go exactly once, at the first
look at or after the end, however long others are held.  Echoes ``ThrottledChannelReaper``.
"""

from __future__ import annotations

import heapq
from typing import Generic, NamedTuple, TypeVar

Held = TypeVar("Held")


class _End(NamedTuple, Generic[Held]):
    end_ms: int
    number: int  # so that what is held is never compared
    kind: str
    held: Held


class Throttled(Generic[Held]):
    """Those who are held now."""

    def __init__(self) -> None:
        self._ends: list[_End[Held]] = []
        self._number = 0
        self._sizes: dict[str, int] = {}

    def hold(self, held: Held, kind: str, end_ms: int) -> bool:
        """Holds somebody by a quota; whether this is now the next end."""
        self._number += 1
        heapq.heappush(self._ends, _End(end_ms, self._number, kind, held))
        self._sizes[kind] = self._sizes.get(kind, 0) + 1
        return self._ends[0].number == self._number

    def due(self, now_ms: int) -> list[Held]:
        """Those who are to be let go now; they are forgotten."""
        found = []
        while self._ends and self._ends[0].end_ms <= now_ms:
            end = heapq.heappop(self._ends)
            self._sizes[end.kind] -= 1
            found.append(end.held)
        return found

    def next_ms(self) -> int | None:
        """The next end; None if nobody is held."""
        return self._ends[0].end_ms if self._ends else None

    def size(self, kind: str) -> int:
        """How many are held by a quota."""
        return self._sizes.get(kind, 0)
