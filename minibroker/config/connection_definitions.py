"""The settings that bound how many connections there are, and how fast new ones come.

Owns their declarations; like ``definitions``, of which it is a part, it must never read a file or
hold a value in force.  The invariant: names and units are Kafka's, and a host in an override is
written as it was given, not yet resolved.  Echoes ``SocketServerConfigs``.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from minibroker.config.setting import setting
from minibroker.config.types import (
    INT,
    INT_MAX,
    BadValueError,
    Kind,
    SettingType,
    at_least,
)

_NOT_YET = "connections are not counted yet"
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

MAX_CONNECTIONS = setting(
    "max.connections",
    INT,
    default=INT_MAX,
    valid=at_least(0),
    dynamic=True,
    per_listener=True,
    no_effect=_NOT_YET,
    doc="How many connections the broker has at most; further ones wait to be accepted. For one "
    "listener, `listener.name.<listener>.max.connections` bounds that listener's.",
)
MAX_CONNECTIONS_PER_IP = setting(
    "max.connections.per.ip",
    INT,
    default=INT_MAX,
    valid=at_least(0),
    dynamic=True,
    no_effect=_NOT_YET,
    doc="How many connections one client address has at most; further ones are closed.",
)
MAX_CONNECTIONS_PER_IP_OVERRIDES = setting(
    "max.connections.per.ip.overrides",
    HOST_LIMITS,
    default=(),
    dynamic=True,
    no_effect=_NOT_YET,
    doc="The same for single hosts, as a comma-separated list of host:number.",
)
MAX_CONNECTION_CREATION_RATE = setting(
    "max.connection.creation.rate",
    INT,
    default=INT_MAX,
    valid=at_least(0),
    dynamic=True,
    per_listener=True,
    no_effect=_NOT_YET,
    doc="How many connections a second are accepted at most; further ones wait. May be given for "
    "one listener, as `max.connections` may.",
)
