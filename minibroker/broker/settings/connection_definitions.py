"""Settings that limit the number of connections and the connection creation rate.

Owns their declarations; like ``definitions``, it must never read a file or hold a configured value.
The invariant: names and units are Kafka's or, with underscores, Redpanda's, and a host in an
override is not resolved.  Echoes ``SocketServerConfigs``.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from minibroker.broker.settings.listeners import SECURITY_PROTOCOLS
from minibroker.broker.settings.setting import setting
from minibroker.broker.settings.types import (
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
    """Maximum number of connections of one host, e.g. ``127.0.0.1:200``."""

    host: str
    connections: int

    def __str__(self) -> str:
        return f"{self.host}:{self.connections}"


def _parse_limits(text: str) -> tuple[HostLimit, ...]:
    return tuple(_parse_limit(entry.strip()) for entry in text.split(",") if entry.strip())


def _parse_limit(entry: str) -> HostLimit:
    # Split at the last colon, because an IPv6 address contains colons.
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
            raise BadValueError(f"has the host '{host}', which is not an IP address") from None
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
    doc="Which processes accept connections. `single`: one acceptor process, which assigns "
    "connections to network processors in turn, as in Kafka. `sharded`: each network processor "
    "accepts its own connections, and the kernel distributes them. In this mode, only "
    "`kafka_connections_max`, `kafka_connections_max_per_ip` and `kafka_connections_max_overrides` "
    "limit connections. Not a Kafka setting.",
)

COMBINED = "combined"
SEPARATE = "separate"
PROCESS_MODE = setting(
    "process.mode",
    STRING,
    default=COMBINED,
    valid=one_of(COMBINED, SEPARATE),
    doc="How network processors and I/O workers share processes. `combined`: one of each runs in "
    "a process, which executes requests for its own partitions and groups without sending them to "
    "another process; small requests are fastest with one of each. `separate`: each has a process "
    "of its own. Not a Kafka setting.",
)

MAX_CONNECTIONS = setting(
    "max.connections",
    INT,
    default=INT_MAX,
    valid=at_least(0),
    dynamic=True,
    per_listener=True,
    doc="The maximum number of connections to the broker; further ones wait to be accepted. "
    "`listener.name.<listener>.max.connections` limits the connections of one listener.",
)
MAX_CONNECTIONS_PER_IP = setting(
    "max.connections.per.ip",
    INT,
    default=INT_MAX,
    valid=at_least(0),
    dynamic=True,
    doc="The maximum number of connections from one client IP address; further ones are closed.",
)
MAX_CONNECTIONS_PER_IP_OVERRIDES = setting(
    "max.connections.per.ip.overrides",
    HOST_LIMITS,
    default=(),
    dynamic=True,
    doc="Overrides of `max.connections.per.ip` for single hosts, as a comma-separated list of "
    "host:number. A host that cannot be resolved is rejected.",
)
MAX_CONNECTION_CREATION_RATE = setting(
    "max.connection.creation.rate",
    INT,
    default=INT_MAX,
    valid=at_least(0),
    dynamic=True,
    per_listener=True,
    doc="The maximum number of connections accepted per second; further ones wait. "
    "`listener.name.<listener>.max.connection.creation.rate` limits the rate of one listener.",
)
CONNECTION_IP_THROTTLE_RECHECK = setting(
    "connection.ip.throttle.recheck",
    BOOLEAN,
    default=True,
    doc="A connection from an IP address that exceeds its `connection_creation_rate` is delayed "
    "until the rate is met. After the delay, `true` checks the rate again and accepts or closes "
    "the connection, as described in KIP-612; `false` closes it, as Kafka does. Not a Kafka "
    "setting.",
)
INTER_BROKER_LISTENER_NAME = setting(
    "inter.broker.listener.name",
    optional(STRING),
    default=None,
    default_text="the listener of `security.inter.broker.protocol`",
    doc="The listener for other brokers. If there is more than one listener, connections to this "
    "one do not wait for `max.connections`: the broker closes the least recently used connection "
    "of another listener instead.",
)
SECURITY_INTER_BROKER_PROTOCOL = setting(
    "security.inter.broker.protocol",
    STRING,
    default="PLAINTEXT",
    valid=one_of(*SECURITY_PROTOCOLS),
    doc="If `inter.broker.listener.name` is not set, the listener with the name of this security "
    "protocol is the one for other brokers.",
)
KAFKA_CONNECTIONS_MAX = setting(
    "kafka_connections_max",
    _OPTIONAL_INT,
    default=None,
    default_text="no limit",
    valid=at_least(0),
    dynamic=True,
    doc="The maximum number of connections to the broker; further ones are closed at once. It is "
    "checked before `max.connections`. Redpanda's setting.",
)
KAFKA_CONNECTIONS_MAX_PER_IP = setting(
    "kafka_connections_max_per_ip",
    _OPTIONAL_INT,
    default=None,
    default_text="no limit",
    valid=at_least(0),
    dynamic=True,
    doc="The maximum number of connections from one client IP address; further ones are closed at "
    "once. Redpanda's setting.",
)
KAFKA_CONNECTIONS_MAX_OVERRIDES = setting(
    "kafka_connections_max_overrides",
    IP_LIMITS,
    default=(),
    dynamic=True,
    doc="Limits for single IP addresses, as a comma-separated list of ip:number. They apply even "
    "if `kafka_connections_max_per_ip` is not set. Redpanda's setting.",
)

ONE_ACCEPTOR_ONLY = (
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    MAX_CONNECTIONS_PER_IP_OVERRIDES,
    MAX_CONNECTION_CREATION_RATE,
)
"""Limits that need a single acceptor, which knows all connections and when they were used."""

SHARDED_ADVICE = (
    "one acceptor is needed for it: set acceptor.mode=single, or use kafka_connections_max, "
    "kafka_connections_max_per_ip or kafka_connections_max_overrides"
)
"""Advice for the error about such a limit in sharded mode."""
