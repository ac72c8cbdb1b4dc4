"""Keys in the order of their deadlines.

Pure: ``now`` is an argument, in the unit of the deadlines. Invariant: each key is returned exactly
once, by the first `due` at or after its deadline, unless it is forgotten; forgotten keys use
bounded memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

FORGOTTEN_MAX: Final = 64
"""Deadlines of forgotten keys that are kept, in addition to as many as there are live keys."""


class Deadlines(Generic[Key]):
    """The deadlines of some keys."""

    def __init__(self) -> None:
        self._ends: list[tuple[float, int]] = []
        self._number = 0
        self._keys: dict[int, Key] = {}
        self._numbers: dict[Key, int] = {}

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._keys)

    def __contains__(self, key: Key) -> bool:
        """Whether a key has a deadline."""
        return key in self._numbers

    def add(self, key: Key, end: float) -> bool:
        """Add a key that has no deadline; return whether its deadline is the next one."""
        assert key not in self._numbers
        self._number += 1
        number = self._numbers[key] = self._number
        self._keys[number] = key
        heapq.heappush(self._ends, (end, number))
        return self._ends[0][1] == number

    def due(self, now: float) -> list[Key]:
        """Remove and return the keys whose deadline has come."""
        found = []
        while self._ends and self._ends[0][0] <= now:
            key = self._keys.get(heapq.heappop(self._ends)[1])
            if key is not None:
                self.forget(key)
                found.append(key)
        return found

    def forget(self, key: Key) -> None:
        """Remove a key, whether it has a deadline or not."""
        number = self._numbers.pop(key, None)
        if number is None:
            return
        del self._keys[number]
        if len(self._ends) > 2 * len(self._keys) + FORGOTTEN_MAX:
            self._ends = [end for end in self._ends if end[1] in self._keys]
            heapq.heapify(self._ends)

    def next(self) -> float | None:
        """Return a time before which no key is due; None without keys."""
        return self._ends[0][0] if self._ends else None
