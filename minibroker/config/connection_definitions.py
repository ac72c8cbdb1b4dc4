"""The settings that bound how many connections there are, and how fast new ones come.

Owns their declarations; like ``definitions``, of which it is a part, it must never read a file or
hold a value in force.  The invariant: names and units are Kafka's or, with underscores, Redpanda's,
and a host in an override is written as it was given, not yet resolved.  Echoes
``SocketServerConfigs``.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from minibroker.config.listeners import SECURITY_PROTOCOLS
from minibroker.config.setting import setting
from minibroker.config.types import (
    BOOLEAN,
    INT,
    INT_MAX,
    STRING,
    BadValueError,
    Kind,
    SettingType,
    at_least,
    one_of,
    optional,
)

_HOST = re.compile(r"[0-9A-Za-z:%._-]+")


class HostLimit(NamedTuple):
    """How many connections one host may have, e.g. ``127.0.0.1:200``."""

    host: str
    connections: int

    def __str__(self) -> str:
        return f"{self.host}:{self.connections}"


def _parse_limits(text: str) -> tuple[HostLimit, ...]:
    return tuple(_parse_limit(entry.strip()) for entry in text.split(",") if entry.strip())


def _parse_limit(entry: str) -> HostLimit:
    # At the last colon, as an IPv6 address has some of its own.
    host, _, count = entry.rpartition(":")
    host = host.strip().strip("[]")
    if not _HOST.fullmatch(host) or not re.fullmatch(r"[0-9]{1,10}", count.strip()):
        raise BadValueError(f"has the entry '{entry}'; an entry is host:number, e.g. 127.0.0.1:200")
    if int(count) > INT_MAX:
        raise BadValueError(f"has the entry '{entry}', whose number exceeds {INT_MAX}")
    return HostLimit(host, int(count))


def _render_limits(limits: tuple[HostLimit, ...]) -> str:
    return ",".join(map(str, limits))


HOST_LIMITS = SettingType(Kind.STRING, "list of host:number", _parse_limits, _render_limits)


def _parse_ip_limits(text: str) -> tuple[HostLimit, ...]:
    limits = _parse_limits(text)
    for host, _ in limits:
        try:
            ipaddress.ip_address(host)
        except ValueError:
            raise BadValueError(f"has the host '{host}', which is no IP address") from None
        if sum(host == limit.host for limit in limits) > 1:
            raise BadValueError(f"names {host} twice")
    return limits


IP_LIMITS = SettingType(Kind.STRING, "list of ip:number", _parse_ip_limits, _render_limits)

_OPTIONAL_INT = optional(INT)

SINGLE = "single"
SHARDED = "sharded"

ACCEPTOR_MODE = setting(
    "acceptor.mode",
    STRING,
    default=SINGLE,
    valid=one_of(SINGLE, SHARDED),
    doc="Who accepts connections. `single`: one process does and deals them out in turn, as in "
    "Kafka. `sharded`: each network processor does for itself, and the kernel deals them out; then "
    "only `kafka_connections_max`, `kafka_connections_max_per_ip` and "
    "`kafka_connections_max_overrides` limit connections. Not a Kafka setting.",
)

MAX_CONNECTIONS = setting(
    "max.connections",
    INT,
    default=INT_MAX,
    valid=at_least(0),
    dynamic=True,
    per_listener=True,
    doc="How many connections the broker has at most; further ones wait to be accepted. For one "
    "listener, `listener.name.<listener>.max.connections` bounds that listener's.",
)
MAX_CONNECTIONS_PER_IP = setting(
    "max.connections.per.ip",
    INT,
    default=INT_MAX,
    valid=at_least(0),
    dynamic=True,
    doc="How many connections one client address has at most; further ones are closed.",
)
MAX_CONNECTIONS_PER_IP_OVERRIDES = setting(
    "max.connections.per.ip.overrides",
    HOST_LIMITS,
    default=(),
    dynamic=True,
    doc="The same for single hosts, as a comma-separated list of host:number. A host that cannot "
    "be looked up is refused.",
)
MAX_CONNECTION_CREATION_RATE = setting(
    "max.connection.creation.rate",
    INT,
    default=INT_MAX,
    valid=at_least(0),
    dynamic=True,
    per_listener=True,
    doc="How many connections a second are accepted at most; further ones wait. May be given for "
    "one listener, as `max.connections` may.",
)
CONNECTION_IP_THROTTLE_RECHECK = setting(
    "connection.ip.throttle.recheck",
    BOOLEAN,
    default=True,
    doc="What becomes of a connection from an address that exceeds its "
    "`connection_creation_rate`, once it has been held for as long as it takes to meet the rate: "
    "`true` looks again and lets it in or closes it, as KIP-612 has it; `false` closes it, as "
    "Kafka does. Not a Kafka setting.",
)
INTER_BROKER_LISTENER_NAME = setting(
    "inter.broker.listener.name",
    optional(STRING),
    default=None,
    default_text="that of `security.inter.broker.protocol`",
    doc="The listener of the other brokers. If there are others beside it, `max.connections` does "
    "not keep its connections waiting: the least recently used one of another listener is closed "
    "instead.",
)
SECURITY_INTER_BROKER_PROTOCOL = setting(
    "security.inter.broker.protocol",
    STRING,
    default="PLAINTEXT",
    valid=one_of(*SECURITY_PROTOCOLS),
    doc="The security protocol whose listener, of the same name, is the one of the other brokers "
    "if `inter.broker.listener.name` names none.",
)
KAFKA_CONNECTIONS_MAX = setting(
    "kafka_connections_max",
    _OPTIONAL_INT,
    default=None,
    default_text="no limit",
    valid=at_least(0),
    dynamic=True,
    doc="How many connections the broker has at most; further ones are closed at once, before "
    "`max.connections` makes them wait. Redpanda's setting.",
)
KAFKA_CONNECTIONS_MAX_PER_IP = setting(
    "kafka_connections_max_per_ip",
    _OPTIONAL_INT,
    default=None,
    default_text="no limit",
    valid=at_least(0),
    dynamic=True,
    doc="How many connections one client address has at most; further ones are closed at once. "
    "Redpanda's setting.",
)
KAFKA_CONNECTIONS_MAX_OVERRIDES = setting(
    "kafka_connections_max_overrides",
    IP_LIMITS,
    default=(),
    dynamic=True,
    doc="The same for single addresses, as a comma-separated list of ip:number; they hold also "
    "without `kafka_connections_max_per_ip`. Redpanda's setting.",
)

ONE_ACCEPTOR_ONLY = (
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    MAX_CONNECTIONS_PER_IP_OVERRIDES,
    MAX_CONNECTION_CREATION_RATE,
)
"""Limits that only one acceptor can hold, who knows all connections and the time of each."""

SHARDED_ADVICE = (
    "one acceptor is needed for it: set acceptor.mode=single, or use kafka_connections_max, "
    "kafka_connections_max_per_ip or kafka_connections_max_overrides"
)
"""What to do about such a limit in the other mode."""
