"""Bounded queues of events, one for each watch.

Owns the watches with their subtrees and pending events. It must never know where events come from.
Invariant: a reader gets every event of its subtree in order or, in place of the first lost one, the
error that events were lost. Both stores use it; ZooKeeper's client has its ``ZKWatchManager``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import trio

from minibroker.broker.metadata.store.tree import WATCH_MAX_EVENTS, EventsLostError, StoreEvent


class Watch(AsyncIterator[StoreEvent]):
    """One reader's queue of events at and below a path."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._below = path.rstrip("/") + "/"
        self._send, self._receive = trio.open_memory_channel[StoreEvent](WATCH_MAX_EVENTS)
        self._error: Exception | None = None
        self._ended = False

    def notify(self, event: StoreEvent) -> None:
        """Queue an event, if it is of this subtree and there is room."""
        if event.path != self.path and not event.path.startswith(self._below):
            return
        try:
            self._send.send_nowait(event)
        except trio.WouldBlock:
            self.end(EventsLostError(f"more than {WATCH_MAX_EVENTS} events waited at {self.path}"))
        except trio.ClosedResourceError:
            return  # The reader gets the end of the watch.

    def end(self, error: Exception | None = None) -> None:
        """End the watch: the reader gets the queued events, then the error or the end."""
        if not self._ended:
            self._ended, self._error = True, error
            self._send.close()

    async def __anext__(self) -> StoreEvent:
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            if self._error is not None:
                raise self._error from None
            raise StopAsyncIteration from None


class Watches:
    """All watches of a store."""

    def __init__(self) -> None:
        self._watches: list[Watch] = []

    @contextmanager
    def open(self, path: str) -> Iterator[Watch]:
        """Open a watch of a subtree until the context ends."""
        watch = Watch(path)
        self._watches.append(watch)
        try:
            yield watch
        finally:
            self._watches.remove(watch)
            watch.end()

    def notify(self, event: StoreEvent) -> None:
        """Queue an event at each watch of its subtree."""
        for watch in self._watches:
            watch.notify(event)

    def end(self, error: Exception | None = None) -> None:
        """End all open watches."""
        for watch in self._watches:
            watch.end(error)
