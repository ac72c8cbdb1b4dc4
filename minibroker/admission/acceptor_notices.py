"""What a processor still has to tell one life of the acceptor, in order.

Owns the queue and its delivery. Telling never waits, so it can be done where a connection ends,
even by cancellation; what is told in one turn of the loop goes as one packet, because under a
storm of connections packets would cost more than connections. Invariant: one task sends on a
handoff; the queue is bounded by what the acceptor handed over, as each connection is told of twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import trio

from minibroker.admission.acceptor_messages import CLOSED_MAX, ConnectionsClosed
from minibroker.runtime.channel import ChannelClosed
from minibroker.runtime.handoff import Handoff


class AcceptorNotices:
    """Messages for the acceptor."""

    def __init__(self, first: Iterable[object]) -> None:
        """``first`` is sent before anything that is told."""
        self._due = deque(first)
        self._taken = 0
        self._closed: list[int] = []
        self._more = trio.Event()
        if self._due:
            self._more.set()

    def taken(self) -> None:
        """A connection was taken from the queue, so its slot is free."""
        self._taken += 1
        self._more.set()

    def closed(self, number: int) -> None:
        """A connection is closed."""
        self._closed.append(number)
        if len(self._closed) == CLOSED_MAX:
            self._pack()
        self._more.set()

    def report(self, message: object) -> None:
        """Adds any other message."""
        self._pack()
        self._due.append(message)
        self._more.set()

    def _pack(self) -> None:
        if self._taken or self._closed:
            self._due.append(ConnectionsClosed(self._taken, tuple(self._closed)))
            self._taken = 0
            self._closed.clear()

    async def deliver(self, handoff: Handoff) -> None:
        """Sends what is told until cancelled or the acceptor is gone."""
        try:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                self._pack()
                while self._due:
                    await handoff.send(self._due.popleft())
        except ChannelClosed:
            pass  # Its next life is told anew what is open.
