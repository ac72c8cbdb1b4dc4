"""Replays connections under proposed per-IP connection rates.

Owns deriving from events when an address's rate counted a connection; the rates are computed by the
broker's own module, for each connection. It must never know requests. Invariant: a connection
arrives once, when it was checked originally, however it was delayed or accepted then; if it is
delayed in the replay, it is checked again after its delay, if that is configured.
``ConnectionQuotas`` and KIP-612.
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from minibroker.activity.schema import ConnectionStep
from minibroker.connections.rates import ConnectionRateLimits, ConnectionRates
from minibroker.pipeline.whatif.columns import Lives, codes, longs
from minibroker.pipeline.whatif.decisions import MS_PER_MINUTE
from minibroker.pipeline.whatif.events import Ints, Longs
from minibroker.pipeline.whatif.proposal import COLD, Counting, Proposal

ANY: Final = "any"
"""Listeners have rates too, but quota files don't contain them."""

EARLIER: Final = ("kafka_connections_max", "kafka_connections_max_per_ip")
"""Reasons for rejecting a connection before the rate of its address is checked."""


class Arrival(NamedTuple):
    """A connection whose address is checked."""

    ms: int
    sequence: int
    life: int
    ip: str
    wall_ms: int


class AddressTally:
    """The replayed outcome of an address's connections."""

    __slots__ = ("first_ms", "last_ms", "longest_ms", "minutes", "refused", "seen", "throttled",
                 "total_ms")  # fmt: skip

    def __init__(self) -> None:
        self.seen = self.throttled = self.refused = 0
        self.total_ms = self.longest_ms = self.first_ms = self.last_ms = 0
        self.minutes: dict[int, tuple[int, int]] = {}

    def add_throttle(self, wall_ms: int, delay_ms: int) -> None:
        """Record a delayed connection."""
        if not self.throttled:
            self.first_ms = wall_ms
        self.last_ms = wall_ms
        self.throttled += 1
        self.total_ms += delay_ms
        self.longest_ms = max(self.longest_ms, delay_ms)
        count, total_ms = self.minutes.get(wall_ms // MS_PER_MINUTE, (0, 0))
        self.minutes[wall_ms // MS_PER_MINUTE] = count + 1, total_ms + delay_ms


class Addresses:
    """The connection rates of one proposal, for each broker."""

    def __init__(self, proposal: Proposal, counting: Counting) -> None:
        self.proposal = proposal
        self.tallies: dict[tuple[int, str], AddressTally] = {}
        self._counting = counting
        self._rates: dict[int, ConnectionRates] = {}
        self._delayed: list[tuple[int, int, int, str, int]] = []

    def feed(self, connections: pa.Table, lives: Lives) -> None:
        """Process the next batch of connection events."""
        if not self.proposal.ips and self.proposal.ip_default is None:
            return
        found = arrivals(connections, lives)
        brokers = lives.brokers()
        for arrival in found:
            if self.proposal.of_ip(arrival.ip) is not None:
                self._again(arrival.ms, arrival.sequence)
                self._arrive(arrival, brokers[arrival.life])

    def settle(self) -> None:
        """Process the delayed connections after the last arrival."""
        self._again(2**62, 0)

    def _of(self, life: int) -> ConnectionRates:
        rates = self._rates.get(life)
        if rates is None:
            counting = self._counting
            rates = ConnectionRates([ANY], counting.quota_window_num, counting.window_ms)
            rates.limits = ConnectionRateLimits(
                ips=self.proposal.ips, ip_default=self.proposal.ip_default
            )
            self._rates[life] = rates
        return rates

    def _arrive(self, arrival: Arrival, broker: int) -> None:
        ms, sequence, life, ip, wall_ms = arrival
        delay_ms = self._of(life).record_ip(ANY, ip, ms)
        if ms < self._counting.counted_from_ms.get(broker, COLD):
            tally = AddressTally()  # Not reported.
        else:
            tally = self.tallies.setdefault((broker, ip), AddressTally())
        tally.seen += 1
        if delay_ms > 0:
            tally.add_throttle(wall_ms, delay_ms)
            if self._counting.rechecks:
                heapq.heappush(self._delayed, (ms + delay_ms, sequence, life, ip, broker))
            else:
                tally.refused += 1

    def _again(self, ms: int, sequence: int) -> None:
        """Recheck delayed connections that are due before the given arrival."""
        while self._delayed and self._delayed[0][:2] < (ms, sequence):
            at_ms, _, life, ip, broker = heapq.heappop(self._delayed)
            if not self._of(life).admit_delayed(ANY, ip, at_ms):
                tally = self.tallies.get((broker, ip))
                if tally is not None:
                    tally.refused += 1


def arrivals(connections: pa.Table, lives: Lives) -> list[Arrival]:
    """The arrivals that addresses' rates counted, ordered by time."""
    ms, brokers = longs(connections, "clock_ms"), longs(connections, "broker")
    wall_ms = longs(connections, "time_us") // 1000
    sequence, ips = longs(connections, "sequence"), codes(connections, "ip")
    life = lives.of(brokers, longs(connections, "started_us"))
    return [
        Arrival(
            int(ms[row]), int(sequence[row]), int(life[row]), ips[1][ips[0][row]], int(wall_ms[row])
        )
        for row in _rows(connections, life, sequence)
    ]


def _rows(connections: pa.Table, life: Ints, sequence: Longs) -> Longs:
    """The rows of arrivals: delayed connections are checked after their delay, others at once."""
    happened, reasons = (
        np.array([*texts, ""], object)[numbers]
        for numbers, texts in (codes(connections, "happened"), codes(connections, "reason"))
    )
    keys = np.stack((life.astype(np.int64), longs(connections, "connection")), axis=1)
    _, whose = np.unique(keys, axis=0, return_inverse=True)
    whose = whose.reshape(-1)
    count = int(whose.max(initial=-1)) + 1
    delayed, turned_away = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    delayed[whose[happened == ConnectionStep.DELAYED]] = True
    turned_away[whose[(happened == ConnectionStep.REFUSED) & np.isin(reasons, EARLIER)]] = True
    at_once = (happened == ConnectionStep.ACCEPTED) & ~delayed[whose] & ~turned_away[whose]
    after = np.flatnonzero(
        delayed[whose] & np.isin(happened, [ConnectionStep.HELD, ConnectionStep.ADMITTED])
    )
    after = after[np.argsort(sequence[after], kind="stable")]
    _, first = np.unique(whose[after], return_index=True)
    rows = np.concatenate((np.flatnonzero(at_once), after[first]))
    clock_ms = longs(connections, "clock_ms")
    found: Longs = rows[np.lexsort((sequence[rows], clock_ms[rows]))]
    return found
