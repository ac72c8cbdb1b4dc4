"""Reports of acceptor and processors about their connections, for the control API.

Owns the shapes of the reports. It must never collect what they contain. Invariant: a report is
bounded, and gives the total beside the connections that it shows.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.admission.connection_events import Lately
from minibroker.admission.connection_figures import DoorFigures
from minibroker.network.client_connection import ClientView
from minibroker.network.unserved_clients import UnservedClient

CONNECTIONS_SHOWN_MAX: Final = 1000
"""Connections of one processor that are shown: the oldest."""


class AcceptorReport(NamedTuple):
    """What an acceptor shows; ``slots`` are those in use of each processor."""

    slots: tuple[int, ...]
    door: DoorFigures
    lately: Lately


class ProcessorReport(NamedTuple):
    """What a processor shows; ``door`` if it has one of its own."""

    connections: tuple[ClientView, ...]
    connections_total: int
    lately: Lately
    door: DoorFigures | None = None
    unserved: tuple[UnservedClient, ...] = ()
