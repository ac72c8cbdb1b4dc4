"""Requests that wait until a log has grown: Kafka's purgatory of delayed fetches.

Owns the waiters of each partition. It must never know why they wait. Invariant: a waiter is woken
when the first of its partitions grows, is registered at most once for each, and is always removed
at its end. Kafka's ``DelayedOperationPurgatory``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Generic, TypeVar

import trio

from minibroker.broker.apis.base import Waiter

Key = TypeVar("Key", bound=Hashable)


class Purgatory(Generic[Key]):
    """Waiters by the keys that they wait for."""

    def __init__(self) -> None:
        self._waiting: dict[Key, dict[Waiter, None]] = {}
        self._count = 0

    def __len__(self) -> int:
        """Number of waiters."""
        return self._count

    def wake(self, key: Key) -> None:
        """Wake all waiters of ``key``."""
        waiting = self._waiting.get(key)
        if waiting:
            for waiter in waiting:
                waiter.set()

    def wake_all(self) -> None:
        """Wake all waiters, so that they check again."""
        for waiting in self._waiting.values():
            for waiter in waiting:
                waiter.set()

    def add(self, keys: Collection[Key], waiter: Waiter) -> None:
        """Wake a waiter when one of ``keys`` is woken, until it is removed."""
        for key in keys:
            self._waiting.setdefault(key, {})[waiter] = None
        self._count += 1

    def remove(self, keys: Collection[Key], waiter: Waiter) -> None:
        """Remove a waiter that was added with these keys."""
        self._count -= 1
        for key in keys:
            waiting = self._waiting[key]
            del waiting[waiter]
            if not waiting:
                del self._waiting[key]

    async def wait(self, keys: Collection[Key], deadline: float) -> None:
        """Wait until one of ``keys`` is woken or the deadline (seconds) has passed."""
        event = trio.Event()
        self.add(keys, event)
        try:
            with trio.move_on_at(deadline):
                await event.wait()
        finally:
            self.remove(keys, event)
