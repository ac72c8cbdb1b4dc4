"""Canonical form of client addresses, for counting connections by address.

Owns one form for each address. It must never resolve a name. Invariant: an IPv4 client has the same
form over an IPv4 socket and, as ``::ffff:10.0.0.1``, over an IPv6 socket, so it cannot get twice
its limit. Kafka gets this from Java's ``InetAddress``.
"""

from __future__ import annotations

import ipaddress


def client_ip(host: str) -> str:
    """Return the canonical form of a numeric address; any other text is unchanged."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)
