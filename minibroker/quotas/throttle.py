"""Who is held, and until when: the ends of throttles in the order in which they come.

Owns the queue of ends; it must never read a clock or know a connection: who is held is anything
that can be a key, and ``now_ms`` an argument.  Invariant: everybody who was held is let go exactly
once, at the first look at or after the end, unless forgotten; who was forgotten takes no memory for
long.  Echoes ``ThrottledChannelReaper``.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Held = TypeVar("Held", bound=Hashable)

FORGOTTEN_MAX: Final = 64
"""Ends of those who were forgotten that are kept beside as many of others."""


class ThrottleQueue(Generic[Held]):
    """Those who are held now, each by one quota."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int]] = []
        self._number = 0
        self._held: dict[int, tuple[Held, str]] = {}
        self._numbers: dict[Held, int] = {}
        self._sizes: dict[str, int] = {}

    def hold(self, held: Held, kind: str, end_ms: int) -> bool:
        """Holds somebody who is not held yet; whether this is now the next end."""
        assert held not in self._numbers
        self._number += 1
        number = self._numbers[held] = self._number
        self._held[number] = held, kind
        self._sizes[kind] = self._sizes.get(kind, 0) + 1
        heapq.heappush(self._ends, (end_ms, number))
        return self._ends[0][1] == number

    def due(self, now_ms: int) -> list[Held]:
        """Those who are to be let go now; they are held no more."""
        found = []
        while self._ends and self._ends[0][0] <= now_ms:
            _, number = heapq.heappop(self._ends)
            if number in self._held:
                held, _ = self._held[number]
                self.forget(held)
                found.append(held)
        return found

    def forget(self, held: Held) -> None:
        """Somebody is gone, held or not."""
        number = self._numbers.pop(held, None)
        if number is None:
            return
        _, kind = self._held.pop(number)
        self._sizes[kind] -= 1
        if len(self._ends) > 2 * len(self._held) + FORGOTTEN_MAX:
            self._ends = [end for end in self._ends if end[1] in self._held]
            heapq.heapify(self._ends)

    def next_ms(self) -> int | None:
        """When to look next; None if nobody is held."""
        return self._ends[0][0] if self._ends else None

    def size(self, kind: str) -> int:
        """How many are held by a quota."""
        return self._sizes.get(kind, 0)
