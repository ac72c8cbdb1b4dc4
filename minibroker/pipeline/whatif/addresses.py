"""Replays connections under proposed per-IP connection rates.

Owns the decisions on arrivals, and when delayed connections are checked again; the rates are
computed by the broker's own module, for each connection. It must never know requests, or an event.
Invariant: a connection arrives when it was checked originally, however it was delayed or accepted
then. If it is delayed in the replay, it is checked again after its delay, if that is configured: at
the recorded time if the broker delayed it equally. ``ConnectionQuotas`` and KIP-612.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from minibroker.broker.connections.rates import ConnectionRateLimits, ConnectionRates
from minibroker.pipeline.whatif.arrivals import Arrival
from minibroker.pipeline.whatif.decisions import MS_PER_MINUTE
from minibroker.pipeline.whatif.proposal import COLD, Counting, Proposal

ANY: Final = "any"
"""Listeners have rates too, but quota files don't contain them."""

LATE_MS: Final = 1
"""How late a delayed connection is checked again, if the broker did not delay it: a sleeping task
wakes up after its time, and a time is rounded down to milliseconds.
"""


class ConnectionDecision(NamedTuple):
    """What a replay decided on a connection."""

    arrival: Arrival
    delay_ms: int
    is_limited: bool
    """Whether its address has a rate."""
    is_repeated: bool = False
    """Whether the recorded decision was repeated, because the counters are unknown."""


class RecheckDecision(NamedTuple):
    """What a replay decided on a delayed connection after its delay."""

    arrival: Arrival
    delay_ms: int
    admitted: bool
    is_repeated: bool
    """As in ``ConnectionDecision``."""

    @property
    def was_delayed_equally(self) -> bool:
        """Whether the recorded delay before it is the same."""
        return self.delay_ms == self.arrival.delay_ms


class _Delayed(NamedTuple):
    """A connection to be checked again."""

    ms: int
    sequence: int
    delay_ms: int
    arrival: Arrival


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

    def __init__(self, proposal: Proposal, counting: Counting, *, answers: bool = False) -> None:
        """With ``answers``, decisions are collected in ``decided`` until the caller clears it."""
        self.proposal = proposal
        self.tallies: dict[tuple[int, str], AddressTally] = {}
        self.decided: list[ConnectionDecision | RecheckDecision] = []
        self._answers = answers
        self._counting = counting
        self._rates: dict[int, ConnectionRates] = {}
        self._delayed: dict[tuple[int, str], list[_Delayed]] = {}
        """By life and address, as a heap."""

    def feed(self, arrivals: Iterable[Arrival], brokers: Sequence[int]) -> None:
        """Process the next arrivals; ``brokers`` are those of each life."""
        for arrival in arrivals:
            if self.proposal.of_ip(arrival.ip) is not None:
                self._recheck_until(arrival, brokers[arrival.life])
                self._arrive(arrival, brokers[arrival.life])
            elif self._answers:
                self.decided.append(ConnectionDecision(arrival, 0, is_limited=False))

    def settle(self, brokers: Sequence[int]) -> None:
        """Process the delayed connections after the last arrival."""
        for (life, _), delayed in self._delayed.items():
            while delayed:
                self._recheck(heapq.heappop(delayed), brokers[life])
        self._delayed.clear()

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

    def _is_counted(self, ms: int, broker: int) -> bool:
        """Whether the counters at a time are known, so that decisions are reported."""
        return ms >= self._counting.counted_from_ms.get(broker, COLD)

    def _arrive(self, arrival: Arrival, broker: int) -> None:
        is_counted = self._is_counted(arrival.ms, broker)
        delay_ms = self._delay(arrival, is_counted=is_counted)
        tally = AddressTally()  # Not reported.
        if is_counted:
            tally = self.tallies.setdefault((broker, arrival.ip), tally)
        if self._answers:
            self.decided.append(
                ConnectionDecision(arrival, delay_ms, is_limited=True, is_repeated=not is_counted)
            )
        tally.seen += 1
        if delay_ms == 0:
            return
        tally.add_throttle(arrival.wall_ms, delay_ms)
        if not self._counting.rechecks or arrival.delay_ms is None:
            tally.refused += 1
            return
        delayed = self._delayed.setdefault((arrival.life, arrival.ip), [])
        heapq.heappush(delayed, _delayed(arrival, delay_ms))

    def _delay(self, arrival: Arrival, *, is_counted: bool) -> int:
        """Record a connection; return its delay.

        Whether a connection counts depends on the decision on it, so a wrong decision is followed
        by others. While the counters are unknown, the recorded decisions are repeated.
        """
        rates = self._of(arrival.life)
        if is_counted:
            return rates.record_ip(ANY, arrival.ip, arrival.ms)
        rates.repeat_ip_decision(arrival.ip, arrival.ms, admitted=arrival.delay_ms == 0)
        return arrival.delay_ms or 0

    def _recheck_until(self, arrival: Arrival, broker: int) -> None:
        """Recheck the delayed connections of an address that are due before an arrival."""
        delayed = self._delayed.get((arrival.life, arrival.ip))
        while delayed and delayed[0][:2] < (arrival.ms, arrival.sequence):
            self._recheck(heapq.heappop(delayed), broker)

    def _recheck(self, due: _Delayed, broker: int) -> None:
        arrival, rates = due.arrival, self._of(due.arrival.life)
        recorded = arrival.recheck
        is_repeated = recorded is not None and not self._is_counted(due.ms, broker)
        if recorded is None or not is_repeated:
            admitted = rates.admit_delayed(ANY, arrival.ip, due.ms)
        else:
            admitted = recorded.admitted
            rates.repeat_ip_decision(arrival.ip, due.ms, admitted=admitted)
        if self._answers:
            self.decided.append(RecheckDecision(arrival, due.delay_ms, admitted, is_repeated))
        tally = self.tallies.get((broker, arrival.ip))
        if not admitted and tally is not None and self._is_counted(arrival.ms, broker):
            tally.refused += 1


def _delayed(arrival: Arrival, delay_ms: int) -> _Delayed:
    """When a connection is checked again."""
    due_ms, recheck = arrival.ms + delay_ms, arrival.recheck
    if recheck is None or arrival.delay_ms is None:
        return _Delayed(due_ms + LATE_MS, arrival.sequence, delay_ms, arrival)
    if delay_ms == arrival.delay_ms:
        return _Delayed(recheck.ms, recheck.sequence, delay_ms, arrival)
    late_ms = max(0, recheck.ms - arrival.ms - arrival.delay_ms)
    return _Delayed(due_ms + late_ms, arrival.sequence, delay_ms, arrival)
