"""What a processor still has to tell one life of the acceptor, in order.

Owns the queue and its delivery, never what the messages say. Telling never waits, so it can be
done where a connection ends, even by cancellation. Invariant: one task sends on a handoff; the
queue is bounded by what the acceptor handed over, as each connection is told of twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import trio

from minibroker.runtime.channel import ChannelClosed
from minibroker.runtime.handoff import Handoff


class Notices:
    """Messages for the acceptor."""

    def __init__(self, first: Iterable[object]) -> None:
        """``first`` is sent before anything that is told."""
        self._due = deque(first)
        self._more = trio.Event()

    def tell(self, message: object) -> None:
        """Adds a message."""
        self._due.append(message)
        self._more.set()

    async def deliver(self, handoff: Handoff) -> None:
        """Sends what is told until cancelled or the acceptor is gone."""
        try:
            while True:
                while self._due:
                    await handoff.send(self._due.popleft())
                self._more = trio.Event()
                await self._more.wait()
        except ChannelClosed:
            pass  # Its next life is told anew what is open.
