"""The brokers behind a proxy, each with the port at which the proxy listens for it.

Owns this table and the choice of ports. It must never open a socket. Invariant: one port belongs to
one broker, and a broker keeps its port, so addresses that clients have cached stay right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from minibroker.broker.settings.types import HostPort

BROKERS_MAX: Final = 1000
"""Brokers of a cluster that the proxy listens for."""

PORTS_TRIED_MAX: Final = 100
"""Ports after that of the first listener that are tried for another broker."""

_PORT_MAX: Final = 65535


class ListenFailed(Exception):
    """The proxy cannot listen for a broker; the text says why."""


class AddressTable:
    """The port of each broker, by the broker's own address."""

    def __init__(self, first_port: int) -> None:
        """``first_port`` is that of the first listener; 0 if any free ports will do."""
        self._first_port = first_port
        self._ports: dict[HostPort, int] = {}

    def port_of(self, broker: HostPort) -> int | None:
        """The port for a broker; None if the proxy does not listen for it yet."""
        return self._ports.get(broker)

    def brokers(self) -> list[HostPort]:
        """All brokers, in the order in which they became known."""
        return list(self._ports)

    def candidates(self) -> Iterator[int]:
        """Ports to try for another broker; the last one is 0, any free port.

        Raises ``ListenFailed``.
        """
        if len(self._ports) >= BROKERS_MAX:
            raise ListenFailed(f"the cluster has more than {BROKERS_MAX} broker addresses")
        if self._first_port and not self._ports:
            yield self._first_port
            return
        if self._first_port:
            used = set(self._ports.values())
            for port in range(self._first_port + 1, self._first_port + 1 + PORTS_TRIED_MAX):
                if port <= _PORT_MAX and port not in used:
                    yield port
        yield 0

    def add(self, broker: HostPort, port: int) -> None:
        """Keep the port at which the proxy listens for a broker."""
        self._ports[broker] = port
