"""Limits of connections, from the settings and the cluster image.

Owns which setting becomes which limit, and which hosts have limits of their own. It must never
count connections or resolve hosts. Invariant: any settings result in limits; a host that is not
resolved yet is left out. Kafka's ``ConnectionQuotas.reconfigure`` and ``listenerConfigs``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeVar

from minibroker.broker.admission.connection_events import ExceededLimit
from minibroker.broker.connections.address import client_ip
from minibroker.broker.connections.counts import ConnectionCountLimits, ExceededCount
from minibroker.broker.connections.rates import ConnectionRateLimits
from minibroker.broker.metadata.image import IP
from minibroker.broker.settings import (
    INTER_BROKER_LISTENER_NAME,
    KAFKA_CONNECTIONS_MAX,
    KAFKA_CONNECTIONS_MAX_OVERRIDES,
    KAFKA_CONNECTIONS_MAX_PER_IP,
    MAX_CONNECTION_CREATION_RATE,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    MAX_CONNECTIONS_PER_IP_OVERRIDES,
    SECURITY_INTER_BROKER_PROTOCOL,
    Settings,
)
from minibroker.broker.settings.dynamic import DEFAULT_NAME, Configs
from minibroker.broker.settings.setting import listener_name
from minibroker.runtime.hosts import is_address

IP_RATE_KEY: Final = "connection_creation_rate"

N = TypeVar("N", int, float)

Find = Callable[[str], Sequence[str]]
"""Function from a host to its known addresses; an address is returned unchanged."""


def protected_listener(settings: Settings, listeners: Sequence[str]) -> str | None:
    """Return the inter-broker listener if there are other listeners, else None."""
    name = settings[INTER_BROKER_LISTENER_NAME] or settings[SECURITY_INTER_BROKER_PROTOCOL]
    name = name.upper()
    return name if name in listeners and len(listeners) > 1 else None


def hosts_of(settings: Settings, configs: Configs) -> set[str]:
    """Return the hosts that have a limit of their own, as written in settings and quotas."""
    overrides = settings[MAX_CONNECTIONS_PER_IP_OVERRIDES]
    return {limit.host for limit in overrides} | _ip_rates(configs).keys() - {DEFAULT_NAME}


def count_limits(settings: Settings, listeners: Sequence[str], find: Find) -> ConnectionCountLimits:
    """Return the limits of the number of connections."""
    overrides = settings[MAX_CONNECTIONS_PER_IP_OVERRIDES]
    drop_overrides = settings[KAFKA_CONNECTIONS_MAX_OVERRIDES]
    return ConnectionCountLimits(
        total=settings[MAX_CONNECTIONS],
        listeners={name: settings.at_listener(name, MAX_CONNECTIONS) for name in listeners},
        per_ip=settings[MAX_CONNECTIONS_PER_IP],
        per_ip_overrides=_by_address(overrides, find),
        protected=protected_listener(settings, listeners),
        drop_total=settings[KAFKA_CONNECTIONS_MAX],
        drop_per_ip=settings[KAFKA_CONNECTIONS_MAX_PER_IP],
        drop_overrides=_by_address(drop_overrides, find),
    )


def drop_limits(settings: Settings) -> ConnectionCountLimits:
    """Return Redpanda's limits only; their overrides contain addresses, not hosts."""
    return ConnectionCountLimits(
        drop_total=settings[KAFKA_CONNECTIONS_MAX],
        drop_per_ip=settings[KAFKA_CONNECTIONS_MAX_PER_IP],
        drop_overrides={
            client_ip(ip): limit for ip, limit in settings[KAFKA_CONNECTIONS_MAX_OVERRIDES]
        },
    )


def _by_address(limits: Iterable[tuple[str, N]], find: Find) -> dict[str, N]:
    return {client_ip(address): limit for host, limit in limits for address in find(host)}


def rate_limits(
    settings: Settings, configs: Configs, listeners: Sequence[str], find: Find
) -> ConnectionRateLimits:
    """Return the limits of the rate of new connections; quotas of addresses may name a host."""
    rate = MAX_CONNECTION_CREATION_RATE
    rates = _ip_rates(configs)
    default = rates.pop(DEFAULT_NAME, None)
    return ConnectionRateLimits(
        total=settings[rate],
        listeners={name: settings.at_listener(name, rate) for name in listeners},
        ips=_by_address(rates.items(), find),
        ip_default=default,
        protected=protected_listener(settings, listeners),
    )


def _ip_rates(configs: Configs) -> dict[str, float]:
    return {
        name: limit
        for (kind, name), config in configs.items()
        if kind == IP and (limit := _ip_rate(config)) is not None
    }


def _ip_rate(config: Mapping[str, str]) -> float | None:
    try:
        limit = float(config[IP_RATE_KEY])
    except (KeyError, ValueError):
        return None
    return limit if limit >= 0 else None


# --------------------------------------------------------------------------------------------------
# Maps a rejected or waiting connection to the setting that caused it.
#
# Owns the way back from a decision to the name of the setting. It must never decide. Pure.
# Invariant: the name is the most specific one in force: the listener's before the broker's, an
# override or the quota of an address before the default. Kafka's log lines name the number, but not
# the setting.

PROCESSORS: Final = "processors"
"""The reason of waiting if no limit is reached: the queues of all processors are full."""

TOKENS: Final = "tokens"
"""The reason of waiting with ``acceptor.mode=sharded``: other processors may have tokens to spare.
"""


Hosts = Mapping[str, str]
"""Maps addresses to their host names in a setting or in quotas."""

NO_HOSTS: Final[Hosts] = MappingProxyType({})


def override_hosts(settings: Settings, find: Find) -> Hosts:
    """Return the hosts of ``max.connections.per.ip.overrides`` by address."""
    return _hosts((limit.host for limit in settings[MAX_CONNECTIONS_PER_IP_OVERRIDES]), find)


def quota_hosts(configs: Configs, find: Find) -> Hosts:
    """Return the hosts of per-IP quotas by address."""
    return _hosts((name for kind, name in configs if kind == IP), find)


def _hosts(names: Iterable[str], find: Find) -> Hosts:
    named = (name for name in names if not is_address(name))
    return {client_ip(address): name for name in named for address in find(name)}


def count_limit(
    limits: ConnectionCountLimits, refusal: ExceededCount, ip: str, hosts: Hosts = NO_HOSTS
) -> ExceededLimit:
    """Return the limit that rejected a connection of this address."""
    if refusal is ExceededCount.DROPPED:
        return ExceededLimit(KAFKA_CONNECTIONS_MAX.name, limits.drop_total or 0)
    if refusal is ExceededCount.DROPPED_PER_IP:
        if ip in limits.drop_overrides:
            own = limits.drop_overrides[ip]
            return ExceededLimit(KAFKA_CONNECTIONS_MAX_OVERRIDES.name, own, ip)
        return ExceededLimit(KAFKA_CONNECTIONS_MAX_PER_IP.name, limits.drop_per_ip or 0)
    if ip in limits.per_ip_overrides:
        own = limits.per_ip_overrides[ip]
        return ExceededLimit(MAX_CONNECTIONS_PER_IP_OVERRIDES.name, own, hosts.get(ip, ip))
    return ExceededLimit(MAX_CONNECTIONS_PER_IP.name, limits.per_ip)


def rate_limit(limits: ConnectionRateLimits, ip: str, hosts: Hosts = NO_HOSTS) -> ExceededLimit:
    """Return the rate quota of an address, its own or the default."""
    if ip in limits.ips:
        return ExceededLimit(IP_RATE_KEY, limits.ips[ip], hosts.get(ip, ip))
    return ExceededLimit(IP_RATE_KEY, limits.ip_default or 0, DEFAULT_NAME)


def slot_setting(settings: Settings, listener: str, *, own: bool) -> str:
    """Return the setting a connection waits for without a free slot; ``own``: of its listener."""
    return _setting(settings, listener, MAX_CONNECTIONS.name, own=own)


def rate_setting(settings: Settings, listener: str, *, own: bool) -> str:
    """Return the setting whose rate delays a connection; ``own``: that of its listener."""
    return _setting(settings, listener, MAX_CONNECTION_CREATION_RATE.name, own=own)


def _setting(settings: Settings, listener: str, name: str, *, own: bool) -> str:
    particular = listener_name(listener, name)
    return particular if own and settings.text(particular) is not None else name
