"""Figures of connections by listener and address, for the control API and the console.

Owns how counts and rates are read into figures. It must never decide about a connection. Invariant:
the number of addresses shown is bounded, and the total is given with them. Kafka has MBeans of
``SocketServer`` instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from minibroker.broker.admission.blocked_time import BlockedTime
from minibroker.broker.connections.counts import UNLIMITED, ConnectionCountLimits, ConnectionCounts
from minibroker.broker.connections.rates import ConnectionRates

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
