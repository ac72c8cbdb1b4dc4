"""Requests that wait until a log has grown: Kafka's purgatory of delayed fetches.

Owns the waiters of each partition. It must never know why they wait. Invariant: a waiter is woken
when the first of its partitions grows, is registered at most once for each, and is always removed
at its end. Kafka's ``DelayedOperationPurgatory``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)


class Purgatory(Generic[Key]):
    """Waiters by the keys that they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[Key, dict[trio.Event, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Number of waiters."""
        return self._count

    def wake(self, key: Key) -> None:
        """Wake all waiters of ``key``."""
        waiting = self._waiting.get(key)
        if waiting:
            for event in waiting:
                event.set()

    def wake_all(self) -> None:
        """Wake all waiters, so that they check again."""
        for waiting in self._waiting.values():
            for event in waiting:
                event.set()

    async def wait(self, keys: Collection[Key], deadline: float) -> None:
        """Wait until one of ``keys`` is woken or the deadline (seconds) has passed."""
        event = trio.Event()
        for key in keys:
            self._waiting.setdefault(key, {})[event] = None
        self._count += 1
        try:
            with trio.move_on_at(deadline):
                await event.wait()
        finally:
            self._count -= 1
            for key in keys:
                waiting = self._waiting[key]
                del waiting[event]
                if not waiting:
                    del self._waiting[key]
