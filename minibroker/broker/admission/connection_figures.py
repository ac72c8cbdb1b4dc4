"""Figures of connections by listener and address, for the control API and the console.

Owns how counts and rates are read into figures. It must never decide about a connection. Invariant:
the number of addresses shown is bounded, and the total is given with them. Kafka has MBeans of
``SocketServer`` instead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Final, NamedTuple

from minibroker.broker.connections.limits import (
    UNLIMITED,
    ConnectionCountLimits,
    ConnectionCounts,
    ConnectionRates,
)

ADDRESSES_SHOWN_MAX: Final = 100
"""Addresses shown: those with the most connections, then those that connected last."""


class ListenerFigures(NamedTuple):
    """Connections of a listener, how many count towards its limit, and its rate of new ones."""

    listener: str
    connections: int
    rate: float
    blocked_share: float
    waiting: int
    held: int


class AddressFigures(NamedTuple):
    """Connections of an address; the rate is known only if it is limited."""

    ip: str
    connections: int
    limit: int | None
    rate: float | None = None
    rate_limit: float | None = None


class ConnectionFigures(NamedTuple):
    """Figures of one acceptor, or of one processor that accepts connections itself."""

    total: int
    rate: float
    listeners: tuple[ListenerFigures, ...]
    addresses: tuple[AddressFigures, ...]
    addresses_total: int


def read_connection_figures(
    counts: ConnectionCounts, rates: ConnectionRates, waits: BlockedTime, now: float, now_ms: int
) -> ConnectionFigures:
    """Read the figures; ``now`` is in seconds, as waits are timed, and ``now_ms`` in ms, as rates
    are.
    """
    figures = rates.figures(now_ms, ADDRESSES_SHOWN_MAX)
    counted, by_ip = counts.by_listener(), counts.by_ip()
    most = largest(by_ip, ADDRESSES_SHOWN_MAX)
    shown = list(dict.fromkeys((*most, *figures.ips)))[:ADDRESSES_SHOWN_MAX]
    return ConnectionFigures(
        total=counts.total,
        rate=figures.broker,
        listeners=tuple(
            ListenerFigures(
                listener,
                connections=counted.get(listener, 0),
                rate=rate,
                blocked_share=waits.blocked_share(listener, now),
                waiting=waits.waiting(listener),
                held=waits.held(listener),
            )
            for listener, rate in figures.listeners.items()
        ),
        addresses=tuple(
            AddressFigures(
                ip,
                connections=by_ip.get(ip, 0),
                limit=_limit_of_ip(counts.limits, ip),
                rate=rates.of_ip(ip, now_ms),
                rate_limit=rates.limits.of_ip(ip),
            )
            for ip in shown
        ),
        addresses_total=len(by_ip),
    )


def largest(counts: Mapping[str, int], most: int) -> list[str]:
    """Return the names of the largest counts, largest first, ``most`` at most.

    Uses a histogram, because few names are needed of perhaps a hundred thousand with almost equal
    counts, and no connection is accepted meanwhile.
    """
    least, missing = 0, most
    for count, names in sorted(Counter(counts.values()).items(), reverse=True):
        least = count
        if names >= missing:
            break
        missing -= names
    above = sorted(
        (name for name, count in counts.items() if count > least),
        key=counts.__getitem__,
        reverse=True,
    )
    equal = (name for name, count in counts.items() if count == least)
    return [*above, *islice(equal, most - len(above))]


def _limit_of_ip(limits: ConnectionCountLimits, ip: str) -> int | None:
    dropped = limits.drop_overrides.get(ip, limits.drop_per_ip)
    limit = min(limits.of_ip(ip), UNLIMITED if dropped is None else dropped)
    return None if limit >= UNLIMITED else limit


# --------------------------------------------------------------------------------------------------
# Waiting connections and the share of recent time in which a listener was blocked.
#
# Owns the figures of each listener. It must never know why a connection waits. Pure: ``now``
# (seconds of the broker's clock) is an argument. Invariant: the blocked share is at most 1 however
# many connections wait at once, and memory does not grow with the number of waits. Kafka's
# ``AcceptorBlockedPercent`` averages over a minute; this share is for the console.

SHARE_OVER_S: Final = 10
"""Seconds that the share is calculated over, including the current one."""


class BlockedTime:
    """Waiting connections and blocked time by listener."""

    def __init__(self, listeners: Iterable[str]) -> None:
        self._blocked = {listener: _Blocked() for listener in listeners}
        self._waiting: Counter[str] = Counter()
        self._held: Counter[str] = Counter()

    def begin(self, listener: str, now: float, *, blocks: bool) -> None:
        """Note that a connection waits; with ``blocks`` later ones of its listener wait too."""
        self._waiting[listener] += 1
        if blocks:
            self._blocked[listener].begin(now)

    def end(self, listener: str, now: float, *, blocks: bool) -> None:
        """Note that a connection stops waiting."""
        self._waiting[listener] -= 1
        if blocks:
            self._blocked[listener].end(now)

    def start_delay(self, listener: str) -> None:
        """Note that a connection is delayed by the rate of its address."""
        self._held[listener] += 1

    def end_delay(self, listener: str) -> None:
        """Note that a connection is no longer delayed."""
        self._held[listener] -= 1

    def waiting(self, listener: str) -> int:
        """Number of waiting connections of a listener, without those delayed by their address's
        rate.
        """
        return self._waiting[listener]

    def held(self, listener: str) -> int:
        """Number of connections of a listener that are delayed by their address's rate."""
        return self._held[listener]

    def all_delayed(self) -> int:
        """Number of delayed connections of all listeners."""
        return self._held.total()

    def blocked_share(self, listener: str, now: float) -> float:
        """Share of recent time in which the listener was blocked, from 0 to 1."""
        return self._blocked[listener].share(now)


class _Blocked:
    """Blocked time by the second in which it passed."""

    __slots__ = ("_by_second", "_depth", "_since")

    def __init__(self) -> None:
        self._by_second: dict[int, float] = {}
        self._depth = 0
        self._since = 0.0

    def begin(self, now: float) -> None:
        if self._depth == 0:
            self._since = now
        self._depth += 1

    def end(self, now: float) -> None:
        self._settle(now)
        self._depth -= 1

    def _settle(self, now: float) -> None:
        """Add the time of the current block up to now."""
        first = math.floor(now) - SHARE_OVER_S + 1
        if self._depth:
            at = max(self._since, float(first))
            while at < now:
                second = math.floor(at)
                until = min(now, second + 1.0)
                self._by_second[second] = self._by_second.get(second, 0.0) + until - at
                at = until
            self._since = now
        for second in [each for each in self._by_second if each < first]:
            del self._by_second[second]

    def share(self, now: float) -> float:
        self._settle(now)
        passed = now - (math.floor(now) - SHARE_OVER_S + 1)
        return min(1.0, sum(self._by_second.values()) / passed)
