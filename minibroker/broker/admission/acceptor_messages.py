"""Messages between the acceptor and a processor, in addition to the sockets that are passed.

Owns the shapes of the messages. It must never know how they are handled. A processor first sends
``ProcessorConnections``, so that a restarted acceptor knows all connections before it accepts
another one. Each close is reported once, by ``ConnectionsClosed``. Invariant: a message is small
plain data and fits into one packet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import trio

from minibroker.broker.connections.limits import LastUse
from minibroker.runtime.channel import ChannelClosed
from minibroker.runtime.handoff import Handoff
from minibroker.runtime.stream import Address

CLOSED_MAX: Final = 1000
"""Connections in one ``ConnectionsClosed``; further ones go into the next message."""

PROCESSOR_CONNECTIONS_MAX: Final = 32
"""Connections in one ``ProcessorConnections``; further ones go into the next message."""

LEAST_RECENTLY_USED_MAX: Final = 400
"""Connections in one ``LeastRecentlyUsed`` or ``CloseConnections``; more need another round."""


class AcceptedConnection(NamedTuple):
    """An accepted connection; ``number`` makes its id unique, as in Kafka."""

    listener: str
    local: Address
    peer: Address
    number: int

    @property
    def connection_id(self) -> str:
        """Kafka's form: ``127.0.0.1:9092-127.0.0.1:51234-7``."""
        local, peer = self.local, self.peer
        return f"{local[0]}:{local[1]}-{peer[0]}:{peer[1]}-{self.number}"


class OpenConnection(NamedTuple):
    """An open connection of a processor."""

    number: int
    listener: str
    host: str


class ProcessorConnections(NamedTuple):
    """The connections of a processor that has started; ``more`` says whether others follow."""

    connections: tuple[OpenConnection, ...]
    more: bool


class ConnectionsClosed(NamedTuple):
    """How many connections a processor took from its queue, and which connections it closed."""

    taken: int
    closed: tuple[int, ...]


class LeastRecentlyUsedRequest(NamedTuple):
    """Request for a processor's least recently used connections, except those of one listener."""

    count_max: int
    protected: str | None


class LeastRecentlyUsed(NamedTuple):
    """A processor's answer: its connections, least recently used first."""

    uses: tuple[LastUse, ...]


class CloseConnections(NamedTuple):
    """Request to a processor to close connections, because there are more than ``limit``."""

    numbers: tuple[int, ...]
    limit: int


# --------------------------------------------------------------------------------------------------
# Messages that a processor has not yet sent to the current acceptor process, in order.
#
# Owns the queue and its delivery. Adding a message never waits, so it can be done when a connection
# ends, even by cancellation. Messages added in the same turn of the event loop share one packet,
# because during a connection storm a packet costs more than a connection. Invariant: one task sends
# on a handoff; the queue is bounded by the number of connections passed, each of which has two
# messages.


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
