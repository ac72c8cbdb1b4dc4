"""Which connections have been silent for too long: least recently used first.

Pure: ``now`` is an argument (seconds). Invariant: names are kept in the order of their last use,
so that finding the idle ones costs nothing but the idle ones. ``connections.max.idle.ms``;
Kafka's ``Selector.IdleExpiryManager``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Name = TypeVar("Name", bound=Hashable)


class IdleConnections(Generic[Name]):
    """When each name was last used."""

    def __init__(self) -> None:
        self._used: OrderedDict[Name, float] = OrderedDict()

    def use(self, name: Name, now: float) -> None:
        """A name was used, perhaps for the first time."""
        self._used[name] = now
        self._used.move_to_end(name)

    def forget(self, name: Name) -> None:
        """A name is gone."""
        self._used.pop(name, None)

    def last_use(self, name: Name) -> float | None:
        """When a name was last used; None if it is gone."""
        return self._used.get(name)

    def in_order(self) -> Iterator[tuple[Name, float]]:
        """All names and when they were last used, the longest idle first."""
        return iter(self._used.items())

    def idle_since(self, before: float) -> list[Name]:
        """The names whose last use was at ``before`` or earlier, the longest idle first."""
        idle: list[Name] = []
        for name, used in self._used.items():
            if used > before:
                break
            idle.append(name)
        return idle

    def oldest_use(self) -> float | None:
        """When the longest idle name was last used; None without names."""
        return next(iter(self._used.values()), None)
