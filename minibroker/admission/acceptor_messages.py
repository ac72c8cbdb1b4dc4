"""What acceptor and processor tell each other beside the connections that pass between them.

Owns the shapes of these messages, nothing else. A processor begins with ``Present``, so that an
acceptor that was reborn knows every connection before it lets another one in; from then on each
end is told once, by ``Done``. Invariant: all are small plain data that fit one packet.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.connections.counts import Use
from minibroker.runtime.stream import Address

CLOSED_MAX: Final = 1000
"""Connections that one ``Done`` names; more go into further ones."""

PRESENT_MAX: Final = 32
"""Connections that one ``Present`` names; more go into further ones."""

OFFERS_MAX: Final = 400
"""Connections that one ``Offers`` or ``Leave`` names; more take another round."""


class Accepted(NamedTuple):
    """A connection that was accepted; ``number`` makes its id unique, as in Kafka."""

    listener: str
    local: Address
    peer: Address
    number: int

    @property
    def connection_id(self) -> str:
        """Kafka's form: ``127.0.0.1:9092-127.0.0.1:51234-7``."""
        local, peer = self.local, self.peer
        return f"{local[0]}:{local[1]}-{peer[0]}:{peer[1]}-{self.number}"


class Open(NamedTuple):
    """A connection that a processor has."""

    number: int
    listener: str
    host: str


class Present(NamedTuple):
    """A processor listens, and these are its connections; ``more`` of them follow."""

    connections: tuple[Open, ...]
    more: bool


class Done(NamedTuple):
    """A processor has taken so many connections from its queue, and closed these."""

    taken: int
    closed: tuple[int, ...]


class OffersWanted(NamedTuple):
    """Asks a processor for its least recently used connections, but those of one listener."""

    at_most: int
    spared: str | None


class Offers(NamedTuple):
    """A processor's answer, the least recently used first."""

    uses: tuple[Use, ...]


class Leave(NamedTuple):
    """Tells a processor to close these connections, because there are too many."""

    numbers: tuple[int, ...]
