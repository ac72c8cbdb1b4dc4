"""Reports of acceptor and processors about their connections, for the control API.

Owns the shapes of the reports, and the clients of protocols that are not served. Invariant: a
report is bounded, and contains the total number of connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from minibroker.broker.admission.connection_events import ConnectionFigures, RecentConnectionEvents
from minibroker.broker.network.client_connection import SHOWN_MAX, ConnectionReport

if TYPE_CHECKING:
    from minibroker.broker.apis.unserved import Unserved
    from minibroker.broker.metrics.log import EventLog
    from minibroker.broker.network.client_connection import ClientConnection


CONNECTIONS_SHOWN_MAX: Final = 1000
"""Connections of one processor that are shown: the oldest."""


class AcceptorReport(NamedTuple):
    """Report of an acceptor; ``slots`` are the occupied slots of each processor."""

    slots: tuple[int, ...]
    figures: ConnectionFigures
    recent: RecentConnectionEvents


class ProcessorReport(NamedTuple):
    """Report of a processor; ``figures`` if it accepts connections itself."""

    connections: tuple[ConnectionReport, ...]
    connections_total: int
    recent: RecentConnectionEvents
    figures: ConnectionFigures | None = None
    unserved: tuple[UnservedClient, ...] = ()


# --------------------------------------------------------------------------------------------------
# Clients that requested a protocol that is not served, for the log and the console.
#
# Owns when a client is logged, and which clients are remembered. It must never know how a request
# was rejected. Invariant: a client is logged once for each protocol while it is remembered; at most
# ``CLIENTS_MAX`` are, and the least recently seen one is forgotten first. Kafka logs nothing.

CLIENTS_MAX: Final = 100
"""Clients that one processor remembers."""


class UnservedClient(NamedTuple):
    """A client and the protocol that it requested; ``last`` in seconds of the broker's clock."""

    client_id: str | None
    software_name: str | None
    software_version: str | None
    host: str
    protocol: str
    advice: str
    last: float
    requests: int


ClientKey: TypeAlias = tuple[str | None, tuple[str, str] | None, str]
"""Client id, software, protocol."""


class UnservedClients:
    """Unserved clients of one processor."""

    def __init__(self, log: EventLog, now: Callable[[], float]) -> None:
        self._log = log
        self._now = now
        self._known: dict[ClientKey, UnservedClient] = {}

    def note(self, client: ClientConnection, unserved: Unserved) -> None:
        """Remember that a client requested a protocol that is not served."""
        client_id = None if client.client_id is None else client.client_id[:SHOWN_MAX]
        protocol = unserved.protocol[:SHOWN_MAX]
        name, version = client.software or (None, None)
        host = client.caller.client_host
        key = client_id, client.software, protocol
        known = self._known.pop(key, None)
        if known is None:
            self._log.warning(
                "a client asked for a protocol that is not served",
                client_id=client_id,
                software=name and f"{name} {version}",
                client=host,
                protocol=protocol,
                advice=unserved.advice,
            )
            if len(self._known) >= CLIENTS_MAX:
                del self._known[next(iter(self._known))]
        requests = 1 if known is None else known.requests + 1
        self._known[key] = UnservedClient(
            client_id, name, version, host, protocol, unserved.advice, self._now(), requests
        )

    def all(self) -> tuple[UnservedClient, ...]:
        """Return the remembered clients, the most recently seen last."""
        return tuple(self._known.values())
