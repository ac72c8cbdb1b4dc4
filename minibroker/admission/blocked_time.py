"""Who waits at the door now, and for which share of the last seconds a listener was blocked.

Owns counting, by listener; never the waiting itself nor its cause. Pure: ``now`` (seconds of the
broker's clock) is an argument. Invariant: however many wait at once, a listener is never blocked
for more than all of the time, and what is kept does not grow with how often it was. Kafka's
``AcceptorBlockedPercent`` averages over a minute; this one is for people who look on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

SHARE_OVER_S: Final = 10
"""Whole seconds, the one that has just begun among them, that the share is taken over."""


class BlockedTime:
    """The waits of each listener."""

    def __init__(self, listeners: Iterable[str]) -> None:
        self._blocked = {listener: _Blocked() for listener in listeners}
        self._waiting: Counter[str] = Counter()
        self._held: Counter[str] = Counter()

    def begin(self, listener: str, now: float, *, blocks: bool) -> None:
        """A connection waits from now on; ``blocks``: those behind it wait, too."""
        self._waiting[listener] += 1
        if blocks:
            self._blocked[listener].begin(now)

    def end(self, listener: str, now: float, *, blocks: bool) -> None:
        """It does no longer."""
        self._waiting[listener] -= 1
        if blocks:
            self._blocked[listener].end(now)

    def hold(self, listener: str) -> None:
        """A connection is held for its address's sake."""
        self._held[listener] += 1

    def release(self, listener: str) -> None:
        """It is no longer."""
        self._held[listener] -= 1

    def waiting(self, listener: str) -> int:
        """How many connections of a listener wait, those that are held not among them."""
        return self._waiting[listener]

    def held(self, listener: str) -> int:
        """How many connections of a listener are held."""
        return self._held[listener]

    def all_held(self) -> int:
        """How many connections are held."""
        return self._held.total()

    def blocked_share(self, listener: str, now: float) -> float:
        """For which part of the last seconds a listener was blocked, from 0 to 1."""
        return self._blocked[listener].share(now)


class _Blocked:
    """Blocked time by the second in which it passed."""

    __slots__ = ("_by_second", "_depth", "_since")

    def __init__(self) -> None:
        self._by_second: dict[int, float] = {}
        self._depth = 0
        self._since = 0.0

    def begin(self, now: float) -> None:
        if self._depth == 0:
            self._since = now
        self._depth += 1

    def end(self, now: float) -> None:
        self._settle(now)
        self._depth -= 1

    def _settle(self, now: float) -> None:
        """Books what has passed of the present block."""
        first = math.floor(now) - SHARE_OVER_S + 1
        if self._depth:
            at = max(self._since, float(first))
            while at < now:
                second = math.floor(at)
                until = min(now, second + 1.0)
                self._by_second[second] = self._by_second.get(second, 0.0) + until - at
                at = until
            self._since = now
        for second in [each for each in self._by_second if each < first]:
            del self._by_second[second]

    def share(self, now: float) -> float:
        self._settle(now)
        passed = now - (math.floor(now) - SHARE_OVER_S + 1)
        return min(1.0, sum(self._by_second.values()) / passed)
