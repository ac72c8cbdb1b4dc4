"""Finds connections that have been idle for too long, in order of their last use.

Pure: ``now`` is an argument (seconds). Invariant: names are kept in the order of their last use, so
the cost of finding idle ones depends only on their number. ``connections.max.idle.ms``; Kafka's
``Selector.IdleExpiryManager``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class IdleConnections(Generic[Name]):
    """Times of the last use by name."""

    def __init__(self) -> None:
        self._used: OrderedDict[Name, float] = OrderedDict()

    def use(self, name: Name, now: float) -> None:
        """Note the use of a name, possibly the first."""
        self._used[name] = now
        self._used.move_to_end(name)

    def forget(self, name: Name) -> None:
        """Forget a name."""
        self._used.pop(name, None)

    def last_use(self, name: Name) -> float | None:
        """Return when a name was last used, or None if it is unknown."""
        return self._used.get(name)

    def in_order(self) -> Iterator[tuple[Name, float]]:
        """Iterate over names and times of last use, longest idle first."""
        return iter(self._used.items())

    def idle_since(self, before: float) -> list[Name]:
        """Return the names last used at ``before`` or earlier, longest idle first."""
        idle: list[Name] = []
        for name, used in self._used.items():
            if used > before:
                break
            idle.append(name)
        return idle

    def oldest_use(self) -> float | None:
        """Return when the longest idle name was last used, or None without names."""
        return next(iter(self._used.values()), None)
