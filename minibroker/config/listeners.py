"""Listeners: the named places where clients connect, and what the broker tells them to dial.

Owns the syntax of ``listeners``, ``advertised.listeners`` and ``listener.security.protocol.map``
and the rules between the three; it must never open a socket or ask for the machine's name (the
caller passes it).  The invariant: listener names are unique, upper case, and each has a security
protocol that this broker serves.  Echoes Kafka's ``SocketServerConfigs.listenerListToEndPoints``
and ``AbstractKafkaConfig.effectiveAdvertisedBrokerListeners``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from minibroker.config.types import BadValueError, HostPort, Kind, SettingType, parse_host_port

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
META_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - what people may write, and then mean
EXAMPLE = "PLAINTEXT://127.0.0.1:9092"

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


class Listener(NamedTuple):
    """One entry of a listener list, e.g. ``PLAINTEXT://127.0.0.1:9092``; an empty host means
    every interface, port 0 a free port.
    """

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{HostPort(self.host, self.port)}"


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Read a comma-separated listener list; raises `BadValueError` naming the entry at fault."""
    found: dict[str, Listener] = {}
    for entry in (part.strip() for part in text.split(",")):
        name, separator, address = entry.partition("://")
        if not separator or not _NAME.fullmatch(name):
            raise BadValueError(
                f"has the entry '{entry}'; an entry is NAME://host:port, e.g. {EXAMPLE}"
            )
        try:
            host, port = parse_host_port(address)
        except BadValueError as error:
            raise BadValueError(
                f"has the entry '{entry}', whose address {error}; an entry is NAME://host:port"
            ) from None
        listener = Listener(name.upper(), host, port)
        if listener.name in found:
            raise BadValueError(
                f"names the listener {listener.name} twice; every name must be unique"
            )
        found[listener.name] = listener
    return tuple(found.values())


def _render_listeners(listeners: tuple[Listener, ...]) -> str:
    return ",".join(map(str, listeners))


LISTENERS_TYPE = SettingType(Kind.STRING, "list of listeners", parse_listeners, _render_listeners)


def _parse_protocol_map(text: str) -> tuple[tuple[str, str], ...]:
    found: dict[str, str] = {}
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        name, _, protocol = (part.strip().upper() for part in entry.partition(":"))
        if protocol not in SECURITY_PROTOCOLS or not _NAME.fullmatch(name):
            raise BadValueError(
                f"has the entry '{entry}'; an entry is NAME:PROTOCOL with a protocol of "
                + ", ".join(SECURITY_PROTOCOLS)
            )
        if name in found:
            raise BadValueError(f"names the listener {name} twice")
        found[name] = protocol
    return tuple(found.items())


def _render_protocol_map(pairs: tuple[tuple[str, str], ...]) -> str:
    return ",".join(f"{name}:{protocol}" for name, protocol in pairs)


PROTOCOL_MAP_TYPE = SettingType(
    Kind.STRING, "list of NAME:PROTOCOL", _parse_protocol_map, _render_protocol_map
)


def client_listeners(
    listeners: tuple[Listener, ...], controller_names: tuple[str, ...]
) -> tuple[Listener, ...]:
    """The listeners that clients may use.

    A file written for KRaft lists its controller's listener among the others; this broker's
    controller speaks to its own processes only, so those are left out.
    """
    hidden = {name.upper() for name in controller_names}
    return tuple(listener for listener in listeners if listener.name not in hidden)


def listener_problems(
    listeners: tuple[Listener, ...],
    advertised: tuple[Listener, ...],
    protocols: Mapping[str, str],
) -> list[tuple[str, str]]:
    """What is wrong between the three settings: (setting's name, what to mend) pairs.

    ``protocols`` is the explicit map or empty; without one, a name that is no security protocol
    stands for PLAINTEXT, as KRaft does for its controller's listeners.
    """
    unfit = [_protocol_problem(listener, protocols) for listener in listeners]
    found = [("listeners", problem) for problem in unfit if problem]
    if not listeners:
        found.append(("listeners", f"must name a listener for clients, e.g. {EXAMPLE}"))
    names = {listener.name for listener in listeners}
    told = {listener.name for listener in advertised}
    for listener in listeners:
        if listener.host in META_ADDRESSES and listener.name not in told:
            problem = f"has {listener}, an address no client can dial; set advertised.listeners="
            problem += f"{listener.name}://<host that clients reach>:{listener.port}"
            found.append(("listeners", problem))
    for listener in advertised:
        if listener.name not in names:
            problem = f"names {listener.name}; listeners has {', '.join(sorted(names))}"
            found.append(("advertised.listeners", problem))
        if listener.host in META_ADDRESSES:
            problem = f"has {listener}, an address no client can dial; name the host they reach"
            found.append(("advertised.listeners", problem))
    return found


def security_protocol(name: str, protocols: Mapping[str, str]) -> str:
    """What is spoken on a listener; ``protocols`` as above."""
    return protocols.get(name) or (name if name in SECURITY_PROTOCOLS else "PLAINTEXT")


def has_sasl(protocol: str) -> bool:
    """Whether clients must prove by SASL who they are."""
    return protocol.startswith("SASL")


def has_tls(protocol: str) -> bool:
    """Whether a security protocol encrypts."""
    return protocol.endswith("SSL")


def _protocol_problem(listener: Listener, protocols: Mapping[str, str]) -> str | None:
    if protocols and listener.name not in (*protocols, *SECURITY_PROTOCOLS):
        return f"has {listener}, but listener.security.protocol.map gives it no protocol"
    return None


def advertised_endpoints(
    listeners: tuple[Listener, ...],
    advertised: tuple[Listener, ...],
    bound_ports: Mapping[str, int],
    hostname: str,
) -> dict[str, tuple[str, int]]:
    """What clients of each listener are told to dial: listener name -> (host, port).

    ``bound_ports`` has the port each listener really got, which stands in wherever port 0 was
    asked for; ``hostname`` stands in for an empty host, as in Kafka.
    """
    told = {listener.name: listener for listener in advertised}
    endpoints = {}
    for listener in listeners:
        entry = told.get(listener.name, listener)
        port = entry.port or bound_ports[listener.name]
        endpoints[listener.name] = (entry.host or hostname, port)
    return endpoints
