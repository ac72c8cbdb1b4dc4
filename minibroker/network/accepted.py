"""What the acceptor tells a processor beside a new connection.

Owns the shape of that message and of the answer, nothing else. Invariant: both are small plain
data that fit one packet.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.runtime.stream import Address

SLOT_FREED: Final = "slot freed"
"""What a processor sends back when it has taken a connection from its queue."""


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
