"""Checks each new connection against the limits of connections.

Owns which setting becomes which limit, which hosts have limits of their own, counts and rates
(``connections.limits``), and the connections that wait for a limit. It must never know processors
or resolve hosts. The order of the checks is Kafka's: Redpanda's limits first, then the rates of
broker and listener, a free slot, the rate of the address, and the number of its connections.
Invariants: any settings result in limits, and a host that is not resolved yet is left out; a new
connection is admitted, rejected or delayed; an admitted one is counted until ``left``. Kafka's
``ConnectionQuotas`` and ``Acceptor.accept``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, NamedTuple, NoReturn, TypeVar

import trio

from minibroker.broker.admission.connection_events import (
    BlockedTime,
    ConnectionEvents,
    ConnectionFacts,
    ConnectionFigures,
    ExceededLimit,
    read_connection_figures,
)
from minibroker.broker.admission.rejected_connections import AcceptedConnection, OpenConnection
from minibroker.broker.connections.limits import (
    ConnectionCountLimits,
    ConnectionCounts,
    ConnectionRateLimits,
    ConnectionRates,
    ExceededCount,
    client_ip,
)
from minibroker.broker.metadata.image import IP, Image
from minibroker.broker.metrics.definitions import (
    ACCEPT_RATE,
    ACCEPT_THROTTLE,
    BROKER_ACCEPT_RATE,
    COUNTED,
    IP_ACCEPT_THROTTLE,
    IPS_SHOWN_MAX,
    CloseReason,
)
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import Series
from minibroker.broker.process.environment import Environment
from minibroker.broker.settings import (
    CONNECTION_IP_THROTTLE_RECHECK,
    INTER_BROKER_LISTENER_NAME,
    KAFKA_CONNECTIONS_MAX,
    KAFKA_CONNECTIONS_MAX_OVERRIDES,
    KAFKA_CONNECTIONS_MAX_PER_IP,
    MAX_CONNECTION_CREATION_RATE,
    MAX_CONNECTIONS,
    MAX_CONNECTIONS_PER_IP,
    MAX_CONNECTIONS_PER_IP_OVERRIDES,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
    SECURITY_INTER_BROKER_PROTOCOL,
    Settings,
)
from minibroker.broker.settings.dynamic import DEFAULT_NAME, Configs, effective
from minibroker.broker.settings.setting import listener_name
from minibroker.runtime.clock import now_ms, whole_ms
from minibroker.runtime.hosts import is_address, look_up
from minibroker.runtime.stream import Address

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


DELAYED_MAX: Final = 1000
"""Connections delayed by the rate of their address; further ones are closed at once."""


class ConnectionRejected(Exception):
    """A new connection is rejected, and no longer counted."""

    def __init__(
        self, reason: CloseReason, limit: ExceededLimit | None = None, at: float | None = None
    ) -> None:
        """``at`` is the time of the decision, if it was read from the clock already."""
        super().__init__(reason.value)
        self.reason = reason
        self.limit = limit
        self.at = at


class NewConnection(NamedTuple):
    """A new connection, as far as limits need it."""

    number: int
    listener: str
    ip: str
    peer: Address


def new_connection(accepted: AcceptedConnection) -> NewConnection:
    """Return the facts that limits need of an accepted connection."""
    return NewConnection(
        accepted.number, accepted.listener, client_ip(accepted.peer[0]), accepted.peer
    )


class ConnectionQuotas:
    """The limits of a broker's connections, for its acceptor."""

    def __init__(self, env: Environment, log: EventLog) -> None:
        self._env = env
        self._log = log
        self._listeners = list(env.listeners)
        settings = env.settings
        self.hosts = HostAddresses(self._update_limits, self._log_unknown_host)
        self.counts = ConnectionCounts(ConnectionCountLimits())
        self._rates = ConnectionRates(
            self._listeners, settings[QUOTA_WINDOW_NUM], settings[QUOTA_WINDOW_SIZE_SECONDS] * 1000
        )
        self.events = ConnectionEvents(env.incarnation, env.clock.now)
        self._slot_waiters = trio.lowlevel.ParkingLot()
        """New connections that wait for a slot."""
        self._blocked_time = BlockedTime(self._listeners)
        self.changed = trio.Event()
        """Set, and replaced, when there may be too many connections."""
        self._apply(settings, {})
        env.metrics.watch_gauges(self._gauges)

    def on_image(self, before: Image, after: Image) -> Awaitable[None] | None:
        """Apply changed configs; return an awaitable until all hosts with limits are resolved."""
        if after.configs is not before.configs:
            self._apply(effective(self._env.settings, after.configs), after.configs)
        return None if self.hosts.are_resolved else self.hosts.wait_resolved()

    def _apply(self, settings: Settings, configs: Configs) -> None:
        self._settings, self._configs = settings, configs
        self.hosts.set_hosts(hosts_of(settings, configs))
        self._update_limits()

    def _update_limits(self) -> None:
        """Apply the limits; those of a host only if its addresses are known."""
        settings, find = self._settings, self.hosts.addresses
        self.counts.limits = count_limits(settings, self._listeners, find)
        self._rates.limits = rate_limits(settings, self._configs, self._listeners, find)
        self._override_hosts = override_hosts(settings, find)
        self._quota_hosts = quota_hosts(self._configs, find)
        self.notify()

    async def unknown_host(self) -> str:
        """Return an error text about hosts in the start settings that cannot be resolved, or "".

        Waits until all hosts were looked up.
        """
        await self.hosts.wait_resolved()
        overrides, started = MAX_CONNECTIONS_PER_IP_OVERRIDES, self._env.settings
        unknown = self.hosts.unknown([limit.host for limit in started[overrides]])
        if not unknown or self._settings[overrides] != started[overrides]:
            return ""
        return (
            f"{overrides.name}={started.text(overrides.name)} ({started.where(overrides)}): cannot "
            f"resolve {', '.join(unknown)}; name hosts that can be looked up, or their addresses"
        )

    def _log_unknown_host(self, host: str, error: OSError) -> None:
        self._log.warning(
            "a limit is not applied, as its host cannot be resolved", host=host, reason=error
        )

    def notify(self) -> None:
        """Wake connections that wait for a slot, and the task that closes excess connections."""
        self._slot_waiters.unpark_all()
        self.changed.set()
        self.changed = trio.Event()

    def restore(self, processor: int, connections: Iterable[OpenConnection]) -> None:
        """Count connections that a processor had before the acceptor restarted."""
        for number, listener, host in connections:
            self.counts.restore(number, listener, client_ip(host), processor)
        self.notify()

    def remove(self, numbers: Iterable[int]) -> None:
        """Stop counting closed connections."""
        for number in numbers:
            self.counts.remove(number)
        self._slot_waiters.unpark_all()

    def processor_died(self, processor: int) -> None:
        """Stop counting the connections of a dead processor."""
        self.counts.processor_died(processor)
        self.notify()

    async def admit(self, connection: NewConnection) -> float | None:
        """Admit a connection: return None when it is counted.

        If the rate of its address is exceeded, return at once the time until which it must be
        delayed; then call ``admit_delayed``. Raises ``ConnectionRejected``. The result is a time,
        not a duration: the clock may be advanced between the return and the wait.
        """
        now = self._env.clock.now()
        self.events.note("accepted", connection, at=now)
        exceeded = self.counts.arrive(connection.number, connection.listener, connection.ip)
        if exceeded is not None:
            limit = self._count_limit(exceeded, connection)
            raise ConnectionRejected(CloseReason(exceeded.value), limit)
        rate_delay_ms = self._rates.record(connection.listener, whole_ms(now))
        must_wait = rate_delay_ms > 0 or not self.counts.has_slot(connection.listener)
        if must_wait:
            await self._wait_rate_and_slot(connection, now, rate_delay_ms)
            now = self._env.clock.now()
        delay_ms = self._rates.record_ip(connection.listener, connection.ip, whole_ms(now))
        if delay_ms == 0:
            if must_wait:
                self.events.admit(connection, now)
            self._admit(connection)
            return None
        if self._blocked_time.all_delayed() >= DELAYED_MAX:
            self._reject_rate(connection, now)
        self._blocked_time.start_delay(connection.listener)
        self.events.note("held", connection, at=now, delay_ms=delay_ms)
        return now + delay_ms / 1000

    async def admit_delayed(self, connection: NewConnection) -> None:
        """Admit a delayed connection if the rate of its address allows it now.

        Raises ``ConnectionRejected``.
        """
        self._blocked_time.end_delay(connection.listener)
        recheck = self._settings[CONNECTION_IP_THROTTLE_RECHECK]
        now = self._env.clock.now()
        if not recheck or not self._rates.admit_delayed(
            connection.listener, connection.ip, whole_ms(now)
        ):
            self._reject_rate(connection, now)
        self.events.admit(connection, now)
        if not self.counts.has_slot(connection.listener):
            with self._waiting(connection, self._reason(connection.listener, 0), blocks=False):
                await self._wait_slot(connection.listener)
        self._admit(connection)

    async def _wait_rate_and_slot(
        self, connection: NewConnection, now: float, delay_ms: int
    ) -> None:
        listener = connection.listener
        with self.blocked(connection, self._reason(listener, delay_ms), delay_ms):
            # The rate was recorded, so both are needed: the delay and a free slot.
            await trio.sleep_until(now + delay_ms / 1000)
            await self._wait_slot(listener)

    def _reason(self, listener: str, delay_ms: int) -> str:
        if delay_ms > 0:
            own = self._rates.exceeds_listener_limit(listener, self._now_ms())
            return rate_setting(self._settings, listener, own=own)
        return slot_setting(self._settings, listener, own=self.counts.is_full(listener))

    @contextmanager
    def blocked(
        self, connection: ConnectionFacts, reason: str, delay_ms: int = 0
    ) -> Iterator[None]:
        """Context in which a connection waits, and later ones of its listener wait too."""
        started = self._env.clock.now()
        try:
            with self._waiting(connection, reason, delay_ms, blocks=True):
                yield
        finally:
            blocked_s = self._env.clock.now() - started
            self._env.metrics.acceptor_blocked(connection.listener, blocked_s)

    @contextmanager
    def _waiting(
        self, connection: ConnectionFacts, reason: str, delay_ms: int = 0, *, blocks: bool
    ) -> Iterator[None]:
        now = self._env.clock.now
        self.events.note("waiting", connection, reason=reason, delay_ms=delay_ms)
        self._blocked_time.begin(connection.listener, now(), blocks=blocks)
        try:
            yield
        finally:
            self._blocked_time.end(connection.listener, now(), blocks=blocks)

    async def _wait_slot(self, listener: str) -> None:
        while not self.counts.has_slot(listener):
            await self._slot_waiters.park()

    def _admit(self, connection: NewConnection) -> None:
        exceeded: ExceededCount | None = self.counts.admit(connection.number)
        if exceeded is not None:
            limit = self._count_limit(exceeded, connection)
            self._reject(connection, CloseReason(exceeded.value), limit)
        if self.counts.excess():
            self.notify()

    def _reject_rate(self, connection: NewConnection, at: float) -> NoReturn:
        limit = rate_limit(self._rates.limits, connection.ip, self._quota_hosts)
        self._reject(connection, CloseReason.IP_RATE, limit, at)

    def _count_limit(self, exceeded: ExceededCount, connection: NewConnection) -> ExceededLimit:
        return count_limit(self.counts.limits, exceeded, connection.ip, self._override_hosts)

    def _reject(
        self,
        connection: NewConnection,
        reason: CloseReason,
        limit: ExceededLimit,
        at: float | None = None,
    ) -> NoReturn:
        self.remove((connection.number,))
        raise ConnectionRejected(reason, limit, at)

    def _now_ms(self) -> int:
        return now_ms(self._env.clock)

    def figures(self) -> ConnectionFigures:
        """Return the figures for the control API."""
        now = self._env.clock.now()
        return read_connection_figures(
            self.counts, self._rates, self._blocked_time, now, self._now_ms()
        )

    def _gauges(self) -> dict[Series, float]:
        figures = self._rates.figures(self._now_ms(), IPS_SHOWN_MAX)
        counted = self.counts.by_listener()
        gauges: dict[Series, float] = {(BROKER_ACCEPT_RATE.name, ()): figures.broker}
        for listener in self._listeners:
            gauges[COUNTED.name, (listener,)] = counted.get(listener, 0)
            gauges[ACCEPT_RATE.name, (listener, "")] = figures.listeners[listener]
        gauges.update({(ACCEPT_RATE.name, ("", ip)): rate for ip, rate in figures.ips.items()})
        for metric, times in (
            (ACCEPT_THROTTLE, figures.throttle_ms),
            (IP_ACCEPT_THROTTLE, figures.ip_throttle_ms),
        ):
            gauges.update({(metric.name, (listener,)): ms for listener, ms in times.items()})
        return gauges


# --------------------------------------------------------------------------------------------------
# Addresses of the hosts that are named in limits.
#
# Owns the names to resolve and their addresses. It must never know what the addresses are for.
# Invariant: no connection waits for a resolver. A host has no addresses until they are known, and a
# callback reports the change; each host is resolved once while a limit names it. Kafka's
# ``ConnectionQuotas`` keeps an ``InetAddress`` in place of each name.


class HostAddresses:
    """Hosts and their addresses; ``run`` must be running to resolve them."""

    def __init__(
        self, changed: Callable[[], None], unknown: Callable[[str, OSError], None]
    ) -> None:
        """``changed`` is called when more is known, ``unknown`` for a host that has no address."""
        self._changed = changed
        self._unknown = unknown
        self._known: dict[str, Sequence[str]] = {}
        self._hosts: set[str] = set()
        self._in_progress: set[str] = set()
        self._hosts_changed = trio.Event()
        self._resolved = trio.Event()

    def set_hosts(self, hosts: Collection[str]) -> None:
        """Resolve these hosts if they are not known, and forget all others."""
        self._hosts = {host for host in hosts if not is_address(host)}
        self._known = {host: self._known[host] for host in self._hosts & set(self._known)}
        self._hosts_changed.set()

    def addresses(self, host: str) -> Sequence[str]:
        """Return the known addresses of a host; of an address, the address itself."""
        return [host] if is_address(host) else self._known.get(host, ())

    def unknown(self, hosts: Collection[str]) -> list[str]:
        """Return those of the hosts that have no address, or none yet."""
        return sorted({host for host in hosts if not self.addresses(host)})

    @property
    def are_resolved(self) -> bool:
        """Whether all hosts have been looked up."""
        return self._hosts <= self._known.keys()

    async def wait_resolved(self) -> None:
        """Wait until all hosts have been looked up."""
        while not self.are_resolved:
            await self._resolved.wait()

    async def run(self) -> None:
        """Look up hosts until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                for host in sorted(self._hosts - set(self._known) - self._in_progress):
                    self._in_progress.add(host)
                    nursery.start_soon(self._look_up, host)
                self._hosts_changed = trio.Event()
                await self._hosts_changed.wait()

    async def _look_up(self, host: str) -> None:
        try:
            found: Sequence[str] = await look_up(host)
        except OSError as error:
            found = ()
            if host in self._hosts:
                self._unknown(host, error)
        self._in_progress.discard(host)
        if host in self._hosts:
            self._known[host] = found
        if found:
            self._changed()
        self._hosts_changed.set()
        self._resolved.set()
        self._resolved = trio.Event()
