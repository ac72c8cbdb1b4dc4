"""Reports of acceptor and processors about their connections, for the control API.

Owns the shapes of the reports. It must never collect their content. Invariant: a report is bounded,
and contains the total number of connections.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.broker.admission.connection_events import RecentConnectionEvents
from minibroker.broker.admission.connection_figures import ConnectionFigures
from minibroker.broker.network.client_connection import ConnectionReport
from minibroker.broker.network.unserved_clients import UnservedClient

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
