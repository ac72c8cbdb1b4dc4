"""What acceptor and processors report of connections, for people to see.

Owns the shapes of their reports and how a door's books are read into them; decides nothing.
Invariant: whatever there are of addresses and connections, a report is bounded, and says how many
there are beside those that it shows. What Kafka spreads over its MBeans of ``SocketServer``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Final, NamedTuple

from minibroker.connections.counts import UNLIMITED, CountLimits, Counts
from minibroker.connections.rates import Rates
from minibroker.network.client import ClientView
from minibroker.network.happenings import Lately
from minibroker.network.unserved_clients import UnservedClient
from minibroker.network.waits import Waits

ADDRESSES_SHOWN_MAX: Final = 100
"""Addresses that are shown: those with the most connections, then those that came last."""

CONNECTIONS_SHOWN_MAX: Final = 1000
"""Connections of one processor that are shown: the oldest."""


class ListenerFigures(NamedTuple):
    """A listener's connections, those of them that count, and their rate a second."""

    listener: str
    connections: int
    rate: float
    blocked_share: float
    waiting: int
    held: int


class AddressFigures(NamedTuple):
    """An address's connections and their rate, which is known where it is limited."""

    ip: str
    connections: int
    limit: int | None
    rate: float | None = None
    rate_limit: float | None = None


class DoorFigures(NamedTuple):
    """What the books of one door say."""

    total: int
    rate: float
    listeners: tuple[ListenerFigures, ...]
    addresses: tuple[AddressFigures, ...]
    addresses_total: int


class AcceptorReport(NamedTuple):
    """What an acceptor shows; ``slots`` are those in use of each processor."""

    slots: tuple[int, ...]
    door: DoorFigures
    lately: Lately


class ProcessorReport(NamedTuple):
    """What a processor shows; ``door`` if it has one of its own."""

    connections: tuple[ClientView, ...]
    connections_total: int
    lately: Lately
    door: DoorFigures | None = None
    unserved: tuple[UnservedClient, ...] = ()


def door_figures(
    counts: Counts, rates: Rates, waits: Waits, now: float, now_ms: int
) -> DoorFigures:
    """What the books say now; ``now`` in seconds, as waits are timed, and in ms, as rates are."""
    figures = rates.figures(now_ms, ADDRESSES_SHOWN_MAX)
    counted, by_ip = counts.by_listener(), counts.by_ip()
    most = largest(by_ip, ADDRESSES_SHOWN_MAX)
    shown = list(dict.fromkeys((*most, *figures.ips)))[:ADDRESSES_SHOWN_MAX]
    return DoorFigures(
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
    """The names with the largest counts, largest first, as many as ``most``.

    By a histogram, since few are wanted of perhaps a hundred thousand that are nearly all equal:
    nobody may connect while this goes on.
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


def _limit_of_ip(limits: CountLimits, ip: str) -> int | None:
    dropped = limits.drop_overrides.get(ip, limits.drop_per_ip)
    limit = min(limits.of_ip(ip), UNLIMITED if dropped is None else dropped)
    return None if limit >= UNLIMITED else limit
