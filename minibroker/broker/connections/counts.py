"""Counts connections and decides whether one more is admitted.

Owns the counts of the whole broker in the mode with one acceptor: every accepted connection that is
not closed. It must never know sockets or clocks. Two kinds of limits apply: Kafka's (KIP-402: at
``max.connections`` new connections wait; an address with too many is rejected) and Redpanda's
``kafka_connections_*`` (rejected at once, before any wait of Kafka). Invariant: a connection is
counted once from ``arrive`` to ``remove``, however often its end is reported. Kafka's
``ConnectionQuotas``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

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
        """Return the limit of a listener."""
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
