"""What a client's address is called where connections are counted by address.

Owns one spelling for each address; it must never look a name up. Invariant: an IPv4 client is
one and the same whether it comes through an IPv4 socket or, as ``::ffff:10.0.0.1``, through an
IPv6 one, so that it can't have twice its share. Kafka gets this from Java's ``InetAddress``.
"""

from __future__ import annotations

import ipaddress


def client_ip(host: str) -> str:
    """The one spelling of a numeric address; anything else as it is."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)
