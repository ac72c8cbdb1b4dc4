"""How many connections there are, whose they are, and whether one more may come.

Owns the books of the whole broker in the mode with one acceptor: every connection that was
accepted and is not closed yet. It must never know sockets, clocks or who enforces what it says.
Two kinds of limits hold side by side: Kafka's (KIP-402; at ``max.connections`` newcomers wait, an
address with too many is turned away) and Redpanda's ``kafka_connections_*`` (turned away at once,
before Kafka's wait, whatever they wait for). Invariant: a connection is counted from ``arrive``
to ``left`` once, however often its end is told. Kafka's ``ConnectionQuotas``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

UNLIMITED: Final = 2**31 - 1


class ExceededCount(StrEnum):
    """Why a connection is turned away; the words are those of the counter of closed ones."""

    DROPPED = "kafka_connections_max"
    DROPPED_PER_IP = "kafka_connections_max_per_ip"
    PER_IP = "max_connections_per_ip"


@dataclass(frozen=True)
class ConnectionCountLimits:
    """The limits in force; addresses are spelt as ``client_ip`` does.

    A listener without a limit of its own is bounded by ``total`` alone, too. ``protected`` is the
    inter-broker listener where it is one of several: it is not bounded by ``total``. The last
    three are Redpanda's, ``None`` for no limit.
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
        """How many connections a listener may have."""
        return self.listeners.get(listener, self.total)

    def of_ip(self, ip: str) -> int:
        """How many connections an address may have."""
        return self.per_ip_overrides.get(ip, self.per_ip)


class LastUse(NamedTuple):
    """When a connection was last used (seconds of the broker's clock), and its number."""

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
    """The books. Connections are known by the numbers that the acceptor gave them."""

    def __init__(self, limits: ConnectionCountLimits) -> None:
        self.limits = limits
        self._connections: dict[int, _Connection] = {}
        self._held_by_ip: Counter[str] = Counter()
        self._by_listener: Counter[str] = Counter()
        self._waiting_by_ip: Counter[str] = Counter()
        self._total = 0
        self._leaving = 0

    def arrive(self, number: int, listener: str, ip: str) -> ExceededCount | None:
        """A connection was accepted. Redpanda's limits are applied; if it is refused, it's gone."""
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
        """Whether a listener has as many connections as it may, whatever the others have."""
        return self._by_listener[listener] >= self.limits.of_listener(listener)

    def admit(self, number: int) -> ExceededCount | None:
        """Counts a connection that arrived and found a slot; if it is refused, it is gone."""
        connection = self._connections[number]
        ip = connection.ip
        if self._held_by_ip[ip] - self._waiting_by_ip[ip] >= self.limits.of_ip(ip):
            self.left(number)
            return ExceededCount.PER_IP
        _lower(self._waiting_by_ip, ip)
        self._count(connection)
        return None

    def _count(self, connection: _Connection) -> None:
        connection.counted = True
        self._total += 1
        self._by_listener[connection.listener] += 1

    def handed(self, number: int, processor: int) -> None:
        """A processor owns the connection from now on."""
        self._connections[number].processor = processor

    def left(self, number: int) -> bool:
        """A connection is closed; False if that was known already."""
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

    def found(self, number: int, listener: str, ip: str, processor: int) -> None:
        """A processor told of a connection from a former life of the acceptor."""
        connection = self._connections[number] = _Connection(listener, ip)
        connection.processor = processor
        self._held_by_ip[ip] += 1
        self._count(connection)

    def processor_died(self, processor: int) -> None:
        """All connections of a processor are gone with it."""
        for number in self._numbers_of(processor):
            self.left(number)

    def _numbers_of(self, processor: int) -> list[int]:
        return [
            number
            for number, connection in self._connections.items()
            if connection.processor == processor
        ]

    def excess(self) -> int:
        """How many more connections must be told to leave for ``total`` to hold."""
        return max(0, self._total - self._leaving - self.limits.total)

    def send_away(self, offers: Iterable[LastUse]) -> dict[int, list[int]]:
        """Chooses who leaves: of the connections offered the least recently used, as many as
        there are too many, never a protected one. By processor.
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
        """Connections counted."""
        return self._total

    @property
    def arrived(self) -> int:
        """Connections accepted and not closed, those that wait to be counted among them."""
        return len(self._connections)

    def by_listener(self) -> dict[str, int]:
        """Connections counted by listener; those without any are left out."""
        return dict(self._by_listener)

    def by_ip(self) -> dict[str, int]:
        """Connections counted by address; those without any are left out."""
        waiting = self._waiting_by_ip
        return {
            ip: counted for ip, held in self._held_by_ip.items() if (counted := held - waiting[ip])
        }


def _lower(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]
