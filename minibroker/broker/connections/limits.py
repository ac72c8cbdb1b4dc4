"""Limits of connections: whether one more is admitted, how long it waits, and who serves it.

Owns the counts of the whole broker in the mode with one acceptor (every accepted connection that is
not closed), the rates of new connections of the broker, of each listener and of each limited
address (KIP-612), the one form of each address, and the round robin over processors with free
slots. It must never know sockets, wait, or read a clock: ``now_ms`` is an argument. Two kinds of
limits of numbers apply: Kafka's (KIP-402: at ``max.connections`` new connections wait; an address
with too many is rejected) and Redpanda's ``kafka_connections_*`` (rejected at once, before any wait
of Kafka).

Invariants: a connection is counted once from ``arrive`` to ``remove``, however often its end is
reported; it is recorded once in the rates of broker and listener, or not at all if the rate of its
address was exceeded; the inter-broker listener does not count for the broker's rate. The rate of an
address is forgotten an hour after its last connection, and there are at most ``IPS_MAX``. An IPv4
client has the same form over an IPv4 socket and, as ``::ffff:10.0.0.1``, over an IPv6 socket, so it
cannot get twice its limit; Kafka gets this from Java's ``InetAddress``. A processor has at most
``SLOTS`` connections that it has not taken yet, and is passed over only while it is full or
disconnected. Kafka's ``ConnectionQuotas`` and ``Acceptor.assignNewConnection``.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from minibroker.broker.quotas.rate import Average, Rate


def client_ip(host: str) -> str:
    """Return the canonical form of a numeric address; any other text is unchanged."""
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    return str(address.ipv4_mapped or address)


UNLIMITED: Final = 2**31 - 1


class ExceededCount(StrEnum):
    """Limit that rejected a connection; the values are those of the metric of closed ones."""

    DROPPED = "kafka_connections_max"
    DROPPED_PER_IP = "kafka_connections_max_per_ip"
    PER_IP = "max_connections_per_ip"


@dataclass(frozen=True)
class ConnectionCountLimits:
    """The limits in force; addresses have the form of ``client_ip``.

    A listener without its own limit is limited by ``total`` only. ``protected`` is the inter-broker
    listener if there are others: ``total`` does not limit it. The last three are Redpanda's, None
    for no limit.
    """

    total: int = UNLIMITED
    listeners: Mapping[str, int] = field(default_factory=dict)
    per_ip: int = UNLIMITED
    per_ip_overrides: Mapping[str, int] = field(default_factory=dict)
    protected: str | None = None
    drop_total: int | None = None
    drop_per_ip: int | None = None
    drop_overrides: Mapping[str, int] = field(default_factory=dict)

    def of_listener(self, listener: str) -> int:
        return self.listeners.get(listener, self.total)

    def of_ip(self, ip: str) -> int:
        """Return the limit of an address."""
        return self.per_ip_overrides.get(ip, self.per_ip)


class LastUse(NamedTuple):
    """Time of a connection's last use (seconds of the broker's clock), and its number."""

    used: float
    number: int


class _Connection:
    __slots__ = ("counted", "ip", "leaving", "listener", "processor")

    def __init__(self, listener: str, ip: str) -> None:
        self.listener = listener
        self.ip = ip
        self.counted = False
        self.processor: int | None = None
        self.leaving = False


class ConnectionCounts:
    """Counts of connections, which are identified by the numbers that the acceptor assigned."""

    def __init__(self, limits: ConnectionCountLimits) -> None:
        self.limits = limits
        self._connections: dict[int, _Connection] = {}
        self._held_by_ip: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._waiting_by_ip: Counter[str] = Counter()
        self._total = 0
        self._leaving = 0

    def arrive(self, number: int, listener: str, ip: str) -> ExceededCount | None:
        """Add an accepted connection; if one of Redpanda's limits rejects it, it isn't counted."""
        limits = self.limits
        if limits.drop_total is not None and len(self._connections) >= limits.drop_total:
            return ExceededCount.DROPPED
        most = limits.drop_overrides.get(ip, limits.drop_per_ip)
        if most is not None and self._held_by_ip[ip] >= most:
            return ExceededCount.DROPPED_PER_IP
        self._connections[number] = _Connection(listener, ip)
        self._held_by_ip[ip] += 1
        self._waiting_by_ip[ip] += 1
        return None

    def has_slot(self, listener: str) -> bool:
        """Whether one more connection of this listener may be counted now."""
        limits = self.limits
        if self.is_full(listener):
            return False
        return listener == limits.protected or self._total < limits.total

    def is_full(self, listener: str) -> bool:
        """Whether a listener has reached its own limit."""
        return self._by_listener[listener] >= self.limits.of_listener(listener)

    def admit(self, number: int) -> ExceededCount | None:
        """Count a connection that arrived and has a slot; if it is rejected, it is removed."""
        connection = self._connections[number]
        ip = connection.ip
        if self._held_by_ip[ip] - self._waiting_by_ip[ip] >= self.limits.of_ip(ip):
            self.remove(number)
            return ExceededCount.PER_IP
        _lower(self._waiting_by_ip, ip)
        self._count(connection)
        return None

    def _count(self, connection: _Connection) -> None:
        connection.counted = True
        self._total += 1
        self._by_listener[connection.listener] += 1

    def set_processor(self, number: int, processor: int) -> None:
        """Set the processor that the connection was passed to."""
        self._connections[number].processor = processor

    def remove(self, number: int) -> bool:
        """Remove a closed connection; return False if it was removed already."""
        connection = self._connections.pop(number, None)
        if connection is None:
            return False
        _lower(self._held_by_ip, connection.ip)
        if connection.counted:
            self._total -= 1
            _lower(self._by_listener, connection.listener)
        else:
            _lower(self._waiting_by_ip, connection.ip)
        self._leaving -= connection.leaving
        return True

    def restore(self, number: int, listener: str, ip: str, processor: int) -> None:
        """Add a connection that a processor reported after a restart of the acceptor."""
        connection = self._connections[number] = _Connection(listener, ip)
        connection.processor = processor
        self._held_by_ip[ip] += 1
        self._count(connection)

    def processor_died(self, processor: int) -> None:
        """Remove all connections of a dead processor."""
        for number in self._numbers_of(processor):
            self.remove(number)

    def _numbers_of(self, processor: int) -> list[int]:
        return [
            number
            for number, connection in self._connections.items()
            if connection.processor == processor
        ]

    def excess(self) -> int:
        """Number of connections that must be closed to satisfy ``total``."""
        return max(0, self._total - self._leaving - self.limits.total)

    def select_excess(self, offers: Iterable[LastUse]) -> dict[int, list[int]]:
        """Choose the connections to close, by processor: the least recently used of those offered.

        As many as exceed the limit, and none of the protected listener.
        """
        chosen: dict[int, list[int]] = {}
        for _, number in sorted(offers):
            connection = self._connections.get(number)
            if connection is None or connection.leaving:
                continue
            if connection.processor is None or connection.listener == self.limits.protected:
                continue
            if not self.excess():
                break
            connection.leaving = True
            self._leaving += 1
            chosen.setdefault(connection.processor, []).append(number)
        return chosen

    @property
    def total(self) -> int:
        """Number of counted connections."""
        return self._total

    @property
    def arrived(self) -> int:
        """Number of connections that are accepted and not closed, including those that wait."""
        return len(self._connections)

    def by_listener(self) -> dict[str, int]:
        """Counted connections by listener; listeners without connections are left out."""
        return dict(self._by_listener)

    def by_ip(self) -> dict[str, int]:
        """Counted connections by address; addresses without connections are left out."""
        waiting = self._waiting_by_ip
        return {
            ip: counted for ip, held in self._held_by_ip.items() if (counted := held - waiting[ip])
        }


def _lower(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


IPS_MAX: Final = 100_000
"""Addresses whose rates are kept: 65 MB if all connect every second.

Beyond that, the address without a new connection for the longest time is forgotten.
"""

IP_EXPIRES_MS: Final = 3_600_000
"""Time without new connections after which an address is forgotten, as in Kafka."""


@dataclass(frozen=True)
class ConnectionRateLimits:
    """Limits in connections per second.

    A listener without its own limit is limited by ``total`` only; the rate of an address without a
    limit is not measured. ``protected`` as in ``ConnectionCountLimits``.
    """

    total: float = UNLIMITED
    listeners: Mapping[str, float] = field(default_factory=dict)
    ips: Mapping[str, float] = field(default_factory=dict)
    ip_default: float | None = None
    protected: str | None = None

    def of_listener(self, listener: str) -> float:
        return self.listeners.get(listener, self.total)

    def of_ip(self, ip: str) -> float | None:
        """Return the limit of an address."""
        return self.ips.get(ip, self.ip_default)


class RateFigures(NamedTuple):
    """Rates per second and average throttle times in ms; times are NaN if no connection waited."""

    broker: float
    listeners: dict[str, float]
    ips: dict[str, float]
    throttle_ms: dict[str, float]
    ip_throttle_ms: dict[str, float]


class _IpRate(Rate):
    __slots__ = ("last_ms",)
    last_ms: int


class ConnectionRates:
    """Rates of a broker whose listeners are known from the start."""

    def __init__(self, listeners: list[str], samples: int, window_ms: int) -> None:
        """``samples`` and ``window_ms`` as in ``Rate``; no delay is longer than a window."""
        self.limits = ConnectionRateLimits()
        self._samples = samples
        self._window_ms = window_ms
        self._broker = self._new_rate()
        self._listeners = {listener: self._new_rate() for listener in listeners}
        self._ips: OrderedDict[str, _IpRate] = OrderedDict()
        self._throttle = {listener: Average() for listener in listeners}
        self._ip_throttle = {listener: Average() for listener in listeners}

    def _new_rate(self) -> Rate:
        return Rate(self._samples, self._window_ms)

    def record(self, listener: str, now_ms: int) -> int:
        """Record a connection; return how long it must wait, in ms."""
        self._record(listener, 1, now_ms)
        limits = self.limits
        rate = self._listeners[listener]
        delay_ms = rate.throttle_ms(limits.of_listener(listener), now_ms, self._window_ms)
        if listener != limits.protected:
            broker_ms = self._broker.throttle_ms(limits.total, now_ms, self._window_ms)
            delay_ms = max(delay_ms, broker_ms)
        if delay_ms > 0:
            self._throttle[listener].record(delay_ms, now_ms)
        return delay_ms

    def exceeds_listener_limit(self, listener: str, now_ms: int) -> bool:
        """Whether a listener exceeds its own limit."""
        return self._listeners[listener].measure(now_ms) > self.limits.of_listener(listener)

    def record_ip(self, listener: str, ip: str, now_ms: int) -> int:
        """Record a connection of an address; return how long it must be delayed, in ms.

        If it must be delayed, it is recorded nowhere, and its record by ``record`` is removed.
        """
        delay_ms = self._ip_delay(ip, now_ms)
        if delay_ms > 0:
            self._record(listener, -1, now_ms)
            self._ip_throttle[listener].record(delay_ms, now_ms)
        return delay_ms

    def repeat_ip_decision(self, ip: str, now_ms: int, *, admitted: bool) -> None:
        """Record a connection of an address as when it was admitted, or not, before."""
        rate = self._ip_rate(ip, now_ms)
        rate.record(1, now_ms)
        rate.purge(now_ms)
        if not admitted:
            rate.record(-1, now_ms)

    def admit_delayed(self, listener: str, ip: str, now_ms: int) -> bool:
        """Whether a delayed connection may be admitted now; if so, record it everywhere."""
        if self._ip_delay(ip, now_ms) > 0:
            return False
        self._record(listener, 1, now_ms)
        return True

    def _ip_delay(self, ip: str, now_ms: int) -> int:
        limit = self.limits.of_ip(ip)
        if limit is None:
            return 0
        rate = self._ip_rate(ip, now_ms)
        rate.record(1, now_ms)
        delay_ms = rate.throttle_ms(limit, now_ms, self._window_ms)
        if delay_ms > 0:
            rate.record(-1, now_ms)
        return delay_ms

    def _ip_rate(self, ip: str, now_ms: int) -> Rate:
        self._expire_ips(now_ms)
        rate = self._ips.get(ip)
        if rate is None:
            if len(self._ips) >= IPS_MAX:
                self._ips.popitem(last=False)
            rate = self._ips[ip] = _IpRate(self._samples, self._window_ms)
        rate.last_ms = now_ms
        self._ips.move_to_end(ip)
        return rate

    def _expire_ips(self, now_ms: int) -> None:
        while self._ips:
            ip, oldest = next(iter(self._ips.items()))
            if now_ms - oldest.last_ms <= IP_EXPIRES_MS:
                return
            del self._ips[ip]

    def _record(self, listener: str, value: int, now_ms: int) -> None:
        if listener != self.limits.protected:
            self._broker.record(value, now_ms)
        self._listeners[listener].record(value, now_ms)

    def of_ip(self, ip: str, now_ms: int) -> float | None:
        """Return the rate of an address, or None if it has no limit."""
        if self.limits.of_ip(ip) is None:
            return None
        rate = self._ips.get(ip)
        return 0.0 if rate is None else rate.measure(now_ms)

    def figures(self, now_ms: int, ips_max: int) -> RateFigures:
        """Return all rates; of addresses the ``ips_max`` with the latest connections."""
        self._expire_ips(now_ms)
        latest = islice(reversed(self._ips.items()), ips_max)
        return RateFigures(
            self._broker.measure(now_ms),
            {name: rate.measure(now_ms) for name, rate in self._listeners.items()},
            {ip: rate.measure(now_ms) for ip, rate in latest},
            _averages(self._throttle, now_ms),
            _averages(self._ip_throttle, now_ms),
        )


def _averages(averages: Mapping[str, Average], now_ms: int) -> dict[str, float]:
    measured = {name: average.measure(now_ms) for name, average in averages.items()}
    return {name: value for name, value in measured.items() if not math.isnan(value)}


SLOTS: Final = 20
"""New connections that wait for one processor (Kafka's ``ConnectionQueueSize``)."""


class Slots:
    """Free slots by processor."""

    def __init__(self, processors: int, slots: int = SLOTS) -> None:
        self._slots = slots
        self._free: list[int | None] = [None] * processors
        self._lowest = [slots] * processors
        self._turn = 0

    def joined(self, processor: int) -> None:
        """Add a processor that has started: all of its slots are free."""
        self._free[processor] = self._slots

    def left(self, processor: int) -> None:
        """Remove a processor that died, with the connections in its slots."""
        self._free[processor] = None

    def freed(self, processor: int, taken: int = 1) -> None:
        """Free the slots of ``taken`` connections that a processor took from its queue."""
        free = self._free[processor]
        if free is None or free + taken > self._slots:
            raise ValueError(f"processor {processor} freed a slot that was not in use")
        self._free[processor] = free + taken

    def take(self) -> int | None:
        """Return the processor that gets the next connection, or None if all are full or dead.

        Each attempt advances the turn, as in Kafka, so a full processor loses its turn.
        """
        for _ in self._free:
            processor = self._turn
            self._turn = (processor + 1) % len(self._free)
            free = self._free[processor]
            if free:
                self._free[processor] = free - 1
                self._lowest[processor] = min(self._lowest[processor], free - 1)
                return processor
        return None

    def used(self, processor: int) -> int:
        """Number of connections that wait for a processor."""
        free = self._free[processor]
        return 0 if free is None else self._slots - free

    def peak(self, processor: int) -> int:
        """Largest number of connections that ever waited for a processor."""
        return self._slots - self._lowest[processor]
