"""Listeners and advertised listeners: the addresses that clients connect to.

Owns the syntax of ``listeners``, ``advertised.listeners`` and ``listener.security.protocol.map``
and the constraints between them; it must never open a socket or look up the hostname (the caller
passes it).  The invariant: listener names are unique, upper case, and each has a security
protocol that this broker supports.  Echoes Kafka's ``SocketServerConfigs.listenerListToEndPoints``
and ``AbstractKafkaConfig.effectiveAdvertisedBrokerListeners``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from minibroker.broker.settings.setting import (
    BadValueError,
    HostPort,
    Kind,
    SettingType,
    parse_host_port,
    similar_names,
)

SECURITY_PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
META_ADDRESSES = ("0.0.0.0", "::")  # noqa: S104 - wildcard addresses in settings
EXAMPLE = "PLAINTEXT://127.0.0.1:9092"
BY_CONNECTION = "*"
"""Advertised host: each client gets the address that it connected to, if it is known."""
LOCALHOST = "localhost"
"""Host for clients of such a listener that connected through a forwarded port."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")


class Listener(NamedTuple):
    """One entry of a listener list, e.g. ``PLAINTEXT://127.0.0.1:9092``.

    An empty host means all interfaces, and port 0 a free port. The host `BY_CONNECTION` is only for
    advertised listeners.
    """

    name: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.name}://{HostPort(self.host, self.port)}"


def parse_listeners(text: str) -> tuple[Listener, ...]:
    """Parse a comma-separated listener list; raise `BadValueError` with the invalid entry."""
    found: dict[str, Listener] = {}
    for entry in (part.strip() for part in text.split(",")):
        name, separator, address = entry.partition("://")
        if not separator or not _NAME.fullmatch(name):
            raise BadValueError(
                f"has the entry '{entry}'; an entry is NAME://host:port, e.g. {EXAMPLE}"
            )
        is_by_connection = address.startswith(f"{BY_CONNECTION}:")
        try:
            host, port = parse_host_port(address[1:] if is_by_connection else address)
        except BadValueError as error:
            raise BadValueError(
                f"has the entry '{entry}', whose address {error}; an entry is NAME://host:port"
            ) from None
        listener = Listener(name.upper(), BY_CONNECTION if is_by_connection else host, port)
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
    """Return the listeners without those of the controller.

    A KRaft configuration lists the controller's listeners among the others.  This broker's
    controller needs no listener, because only the broker's own processes connect to it.
    """
    hidden = {name.upper() for name in controller_names}
    return tuple(listener for listener in listeners if listener.name not in hidden)


def listener_problems(
    listeners: tuple[Listener, ...],
    advertised: tuple[Listener, ...],
    protocols: Mapping[str, str],
) -> list[tuple[str, str]]:
    """Check the three settings against each other: (setting name, problem) pairs.

    ``protocols`` is the configured map. A listener that is not in it must have the name of a
    security protocol.
    """
    without_protocol = [_protocol_problem(listener, protocols) for listener in listeners]
    found = [("listeners", problem) for problem in without_protocol if problem]
    if not listeners:
        found.append(("listeners", f"must name a listener for clients, e.g. {EXAMPLE}"))
    names = {listener.name: listener for listener in listeners}
    advertised_names = {listener.name for listener in advertised}
    for listener in listeners:
        if listener.host == BY_CONNECTION:
            problem = f"has {listener}, but {BY_CONNECTION} is for advertised.listeners; 0.0.0.0 "
            found.append(("listeners", f"{problem}means all interfaces"))
        if listener.host in META_ADDRESSES and listener.name not in advertised_names:
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
        bound = names.get(listener.name)
        if listener.host == BY_CONNECTION and bound and bound.host not in ("", *META_ADDRESSES):
            everywhere = bound._replace(host=META_ADDRESSES[0])
            problem = f"has {listener}, but clients connect to {bound.host} only; name that host, "
            problem += f"or listen on all interfaces with listeners={everywhere}"
            found.append(("advertised.listeners", problem))
    return found


def security_protocol(name: str, protocols: Mapping[str, str]) -> str:
    """Return the security protocol of a listener; ``protocols`` as above.

    PLAINTEXT for a listener without one, which `listener_problems` rejects.
    """
    return protocols.get(name) or (name if name in SECURITY_PROTOCOLS else "PLAINTEXT")


def has_sasl(protocol: str) -> bool:
    """Whether clients must authenticate with SASL."""
    return protocol.startswith("SASL")


def has_tls(protocol: str) -> bool:
    """Whether a security protocol encrypts."""
    return protocol.endswith("SSL")


def _protocol_problem(listener: Listener, protocols: Mapping[str, str]) -> str | None:
    name = listener.name
    if name in protocols or name in SECURITY_PROTOCOLS:
        return None
    nearest = similar_names(name, SECURITY_PROTOCOLS, count_max=1, similarity_min=0.6)
    advice = f"did you mean {nearest[0]}? Otherwise set" if nearest else "set"
    others = "".join(f"{other}:{protocol}," for other, protocol in protocols.items())
    return (
        f"has {listener}, but no security protocol is named {name}: {advice} "
        f"listener.security.protocol.map={others}{name}:PLAINTEXT"
    )


def advertised_endpoints(
    listeners: tuple[Listener, ...],
    advertised: tuple[Listener, ...],
    bound_ports: Mapping[str, int],
    hostname: str,
) -> dict[str, tuple[str, int]]:
    """Return the advertised address of each listener: listener name -> (host, port).

    ``bound_ports`` maps each listener to its actual port, which replaces port 0.  ``hostname``
    replaces an empty host, as in Kafka.
    """
    bound = {
        listener.name: (listener.host or hostname, listener.port or bound_ports[listener.name])
        for listener in listeners
    }
    named = (listener._replace(host=listener.host or hostname) for listener in advertised)
    return advertised_again(bound, tuple(named))


def advertised_again(
    endpoints: Mapping[str, tuple[str, int]], advertised: tuple[Listener, ...]
) -> dict[str, tuple[str, int]]:
    """Return the addresses after a change of the advertised ones.

    An empty host, port 0 and a listener that is not advertised keep what they were.
    """
    changed = dict(endpoints)
    for listener in advertised:
        if listener.name in endpoints:
            host, port = endpoints[listener.name]
            host = LOCALHOST if listener.host == BY_CONNECTION else listener.host or host
            changed[listener.name] = (host, listener.port or port)
    return changed


def advertised_by_connection(advertised: tuple[Listener, ...]) -> frozenset[str]:
    """Return the names of the listeners whose clients get the address that they connected to."""
    return frozenset(listener.name for listener in advertised if listener.host == BY_CONNECTION)
