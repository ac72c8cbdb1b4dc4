"""Messages between the acceptor and a processor, in addition to the sockets that are passed.

Owns the shapes of the messages. It must never know how they are handled. A processor first sends
``ProcessorConnections``, so that a restarted acceptor knows all connections before it accepts
another one. Each close is reported once, by ``ConnectionsClosed``. Invariant: a message is small
plain data and fits into one packet.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.broker.connections.counts import LastUse
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
