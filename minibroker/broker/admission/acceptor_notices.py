"""Messages that a processor has not yet sent to the current acceptor process, in order.

Owns the queue and its delivery. Adding a message never waits, so it can be done when a connection
ends, even by cancellation. Messages added in the same turn of the event loop share one packet,
because during a connection storm a packet costs more than a connection. Invariant: one task sends
on a handoff; the queue is bounded by the number of connections passed, each of which has two
messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import trio

from minibroker.broker.admission.acceptor_messages import CLOSED_MAX, ConnectionsClosed
from minibroker.runtime.channel import ChannelClosed
from minibroker.runtime.handoff import Handoff


class AcceptorNotices:
    """Messages for the acceptor."""

    def __init__(self, first: Iterable[object]) -> None:
        """``first`` is sent before all other messages."""
        self._queue = deque(first)
        self._taken = 0
        self._closed: list[int] = []
        self._more = trio.Event()
        if self._queue:
            self._more.set()

    def taken(self) -> None:
        """Report that a connection was taken from the queue, so its slot is free."""
        self._taken += 1
        self._more.set()

    def closed(self, number: int) -> None:
        """Report that a connection is closed."""
        self._closed.append(number)
        if len(self._closed) == CLOSED_MAX:
            self._pack()
        self._more.set()

    def report(self, message: object) -> None:
        """Add any other message."""
        self._pack()
        self._queue.append(message)
        self._more.set()

    def _pack(self) -> None:
        if self._taken or self._closed:
            self._queue.append(ConnectionsClosed(self._taken, tuple(self._closed)))
            self._taken = 0
            self._closed.clear()

    async def deliver(self, handoff: Handoff) -> None:
        """Send messages until cancelled or until the acceptor has ended."""
        try:
            while True:
                await self._more.wait()
                self._more = trio.Event()
                self._pack()
                while self._queue:
                    await handoff.send(self._queue.popleft())
        except ChannelClosed:
            pass  # A restarted acceptor is sent all open connections first.
