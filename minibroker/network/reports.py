"""Reports of acceptor and processors about their connections, for the control API.

Owns the shapes of the reports. It must never collect what they contain. Invariant: a report is
bounded, and gives the total beside the connections that it shows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.admission.connection_events import RecentConnectionEvents
from minibroker.admission.connection_figures import ConnectionFigures
from minibroker.network.client_connection import ConnectionReport
from minibroker.network.unserved_clients import UnservedClient

CONNECTIONS_SHOWN_MAX: Final = 1000
"""Connections of one processor that are shown: the oldest."""


class AcceptorReport(NamedTuple):
    """What an acceptor shows; ``slots`` are those in use of each processor."""

    slots: tuple[int, ...]
    figures: ConnectionFigures
    recent: RecentConnectionEvents


class ProcessorReport(NamedTuple):
    """What a processor shows; ``figures`` if it has one of its own."""

    connections: tuple[ConnectionReport, ...]
    connections_total: int
    recent: RecentConnectionEvents
    figures: ConnectionFigures | None = None
    unserved: tuple[UnservedClient, ...] = ()
