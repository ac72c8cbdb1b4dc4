"""The address at which a client reaches this broker, from the two ends of its connection.

Owns the rule for listeners that are advertised by connection (``PLAINTEXT://*:9092``). It must
never open a socket. Invariant: a client gets the address that it connected to, unless it came
through a forwarded port, where it cannot reach that address; then it gets the one that the listener
advertises. Kafka has one fixed address for all clients of a listener.

A connection through a published port of a container comes from the default gateway or, depending on
the container engine, from the container's own address or from any foreign one. Connections of
other containers, and of other hosts where the broker runs without a container, come from a network
that this host is in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import ip_address, ip_network
from typing import Final

from minibroker.broker.connections.limits import client_ip

ROUTES_KEPT_S: Final = 1.0
"""How long routes are used before they are read again, because networks come and go."""


Route = tuple[str, str | None]
"""A route of this host: a network, and the gateway to it if the host is not in that network."""


class ConnectedAddresses:
    """Addresses at which clients reach the broker; ``read_routes`` reads this host's routes."""

    def __init__(self, read_routes: Callable[[], Sequence[Route]]) -> None:
        self._read_routes = read_routes
        self._routes: Sequence[Route] = ()
        self._read_again_at = 0.0

    def find(self, local: tuple[str, int], client_host: str, now: float) -> tuple[str, int] | None:
        """Return the address that a client connected to, or None if a port was forwarded."""
        if now >= self._read_again_at:
            self._routes = self._read_routes()
            self._read_again_at = now + ROUTES_KEPT_S
        host = client_ip(local[0])
        return (host, local[1]) if is_direct(host, client_ip(client_host), self._routes) else None


def is_direct(local_host: str, client_host: str, routes: Sequence[Route]) -> bool:
    """Whether a client with this address connected to ``local_host`` without a forwarded port.

    Without known routes every client but this host itself did.
    """
    local, client = ip_address(local_host), ip_address(client_host)
    if client.is_loopback:
        return True
    if client == local or any(gateway == str(client) for _, gateway in routes):
        return False
    networks = [ip_network(network) for network, gateway in routes if gateway is None]
    # A network of all addresses is a default route without a gateway.
    return not routes or any(client in network for network in networks if network.prefixlen)
