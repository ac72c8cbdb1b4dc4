"""Replays connections under proposed per-IP connection rates.

Owns what events say about the checks of a connection, the decisions on arrivals, and when delayed
connections are checked again; the rates are computed by the broker's own module, for each
connection. It must never know requests. Invariant: a connection arrives at most once, when it was
checked originally, however it was delayed or accepted then; the arrivals of an address are in the
order in which the broker checked them, and are the same however the events are split into batches.
A connection that is delayed in the replay is checked again after its delay, if that is configured:
at the recorded time if the broker delayed it equally. ``ConnectionQuotas`` and KIP-612.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from minibroker.broker.connections.limits import ConnectionRateLimits, ConnectionRates
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.lab.activity.events import ConnectionStep
from minibroker.pipeline.whatif.columns import NONE, Flags, Ints, Lives, Longs, codes, longs
from minibroker.pipeline.whatif.counters import MS_PER_MINUTE
from minibroker.pipeline.whatif.proposal import COLD, Counting, Proposal

# Arrivals ----------------------------------------------------------------------------------------

LATE_MAX_MS: Final = 10_000
"""A recheck that is later than this after its exact time may be missed."""

_EARLIER: Final = (CloseReason.DROPPED.value, CloseReason.DROPPED_PER_IP.value)
"""Reasons for rejecting a connection before the rate of its address is checked: Redpanda's."""

_STEPS: Final = (
    ConnectionStep.ACCEPTED,
    ConnectionStep.DELAYED,
    ConnectionStep.HELD,
    ConnectionStep.ADMITTED,
    ConnectionStep.REFUSED,
)
_ACCEPTED, _DELAYED, _HELD, _ADMITTED, _REFUSED = range(len(_STEPS))
_FIELDS: Final = (
    "broker", "started_us", "sequence", "time_us", "clock_ms", "sample", "connection", "ip",
    "happened", "reason", "delay_ms",
)  # fmt: skip


class OtherLimit(StrEnum):
    """Recorded decisions by other limits, which a replay does not take."""

    REJECTED = "rejections before the rate of the address was checked"
    DELAYED = "delays by the rate of a listener or of the broker, which quota files do not contain"
    WAITING = "connections still waiting for another limit at the end"


class Recheck(NamedTuple):
    """The recorded check of a connection after its delay."""

    ms: int
    sequence: int
    admitted: bool


class Arrival(NamedTuple):
    """A connection whose address is checked."""

    ms: int
    sequence: int
    life: int
    ip: str
    wall_ms: int
    is_sampled: bool
    """Whether the events are a sample, so that other connections are missing."""
    delay_ms: int | None
    """The recorded delay; None if the broker rejected it at once, as too many were delayed."""
    recheck: Recheck | None
    """None if it was not delayed, or the recording ended before."""


class Arrivals:
    """Collects the events of connections until their arrivals are complete."""

    def __init__(self, lives: Lives, window_ms: int) -> None:
        """``window_ms`` is the longest delay."""
        self.not_replayed: Counter[OtherLimit] = Counter()
        self._lives = lives
        self._complete_after_ms = window_ms + LATE_MAX_MS
        self._kept: list[pa.Table] = []

    def add(self, connections: pa.Table) -> list[Arrival]:
        """Add events; return the arrivals that are complete."""
        return self._take(connections.select(_FIELDS), final=False)

    def rest(self) -> list[Arrival]:
        """Return the remaining arrivals, after the last event of the addresses so far."""
        if not self._kept:
            return []
        return self._take(self._kept.pop(), final=True)

    def _take(self, connections: pa.Table, *, final: bool) -> list[Arrival]:
        events = _Events(pa.concat_tables([*self._kept, connections]), self._lives)
        self._kept.clear()
        rows = events.arrival_rows()
        if not final:
            rows = rows[events.ms[rows] < events.latest_ms()[rows] - self._complete_after_ms]
        found = [events.arrival(row) for row in rows.tolist()]
        is_open = events.may_arrive()
        is_open[events.whose[rows]] = False
        self.not_replayed[OtherLimit.REJECTED] += int(events.rejected_earlier.sum())
        self.not_replayed[OtherLimit.DELAYED] += events.delayed_by_other_rate(rows)
        if final:
            self.not_replayed[OtherLimit.WAITING] += int(is_open.sum())
        elif is_open.any():
            self._kept.append(events.table.filter(pa.array(is_open[events.whose])))
        return found


class _Events:
    """Events of connections, in the order in which the broker recorded them."""

    def __init__(self, table: pa.Table, lives: Lives) -> None:
        steps, texts = codes(table, "happened")
        of_text = np.array([_STEPS.index(text) if text in _STEPS else NONE for text in texts])
        all_steps = of_text[steps]
        rows = np.flatnonzero(all_steps != NONE)
        rows = rows[np.argsort(longs(table, "sequence")[rows], kind="stable")]
        self.table = table.take(pa.array(rows))
        self.ms, self._sequence = longs(self.table, "clock_ms"), longs(self.table, "sequence")
        self._steps = all_steps[rows]
        self._wall_ms = longs(self.table, "time_us") // 1000
        self._delay_ms = longs(self.table, "delay_ms")
        self._sampled = _is_sampled(self.table)
        self._ips, self._ip_texts = codes(self.table, "ip")
        brokers = longs(self.table, "broker")
        self._life: Ints = lives.of(brokers, longs(self.table, "started_us"))
        keys = np.stack((self._life.astype(np.int64), longs(self.table, "connection")), axis=1)
        _, whose = np.unique(keys, axis=0, return_inverse=True)
        self.whose: Longs = whose.reshape(-1)
        self.count = int(self.whose.max(initial=-1)) + 1
        reasons, names = codes(self.table, "reason")
        reason = np.array(names, object)[reasons]
        refused = self._steps == _REFUSED
        self._accepted = self._first(self._steps == _ACCEPTED)
        self._delayed = self._first(self._steps == _DELAYED)
        self._held = self._first(self._steps == _HELD)
        self._admitted = self._first(self._steps == _ADMITTED)
        self._refused_by_rate = self._first(refused & (reason == CloseReason.IP_RATE.value))
        self._refused = self._first(refused)
        earlier = self._first(refused & np.isin(reason, _EARLIER))
        self.rejected_earlier: Flags = earlier != NONE

    def _first(self, where: Flags) -> Longs:
        """By connection: its first row of these, or ``NONE``."""
        found = np.full(self.count, NONE, np.int64)
        rows = np.flatnonzero(where)[::-1]
        found[self.whose[rows]] = rows
        return found

    def _arrival_rows(self) -> Longs:
        """By connection: the row of the event with which its address was checked, or ``NONE``."""
        at_once = np.where(self._delayed == NONE, self._accepted, self._admitted)
        row = np.where(at_once == NONE, self._refused_by_rate, at_once)
        # Without the first event, these are the last ones of a connection that arrived before.
        row = np.where(self._accepted == NONE, NONE, row)
        was_held_later = (self._held != NONE) & ((row == NONE) | (self._delayed != NONE))
        row = np.where(was_held_later, self._held, row)
        found: Longs = np.where(self.rejected_earlier, NONE, row)
        return found

    def arrival_rows(self) -> Longs:
        """The rows of the events with which addresses were checked, in order."""
        rows = self._arrival_rows()
        return np.sort(rows[rows != NONE])

    def may_arrive(self) -> Flags:
        """By connection: whether its address was checked, or will be."""
        waits = (self._accepted != NONE) & (self._refused == NONE)
        found: Flags = (self._arrival_rows() != NONE) | waits & ~self.rejected_earlier
        return found

    def delayed_by_other_rate(self, rows: Longs) -> int:
        """How many of some arrivals waited for the rate of a listener or of the broker."""
        delayed = self._delayed[self.whose[rows]]
        return int(np.count_nonzero((delayed != NONE) & (self._delay_ms[delayed] > 0)))

    def latest_ms(self) -> Longs:
        """By row: the time of the latest event of its address."""
        keys = self._life.astype(np.int64) * (len(self._ip_texts) + 1) + self._ips
        _, groups = np.unique(keys, return_inverse=True)
        latest = np.full(int(groups.max(initial=-1)) + 1, -(2**62), np.int64)
        np.maximum.at(latest, groups, self.ms)
        found: Longs = latest[groups]
        return found

    def arrival(self, row: int) -> Arrival:
        """The arrival at a row."""
        connection = self.whose[row]
        held, recheck = self._held[connection], None
        delay_ms: int | None = 0
        if held != NONE:
            delay_ms = int(self._delay_ms[held])
            recheck = self._recheck(connection)
        elif self._refused_by_rate[connection] != NONE:
            delay_ms = None
        return Arrival(
            int(self.ms[row]),
            int(self._sequence[row]),
            int(self._life[row]),
            self._ip_texts[self._ips[row]],
            int(self._wall_ms[row]),
            bool(self._sampled[row]),
            delay_ms,
            recheck,
        )

    def _recheck(self, connection: int) -> Recheck | None:
        # An admission precedes the delay by the address's rate only if it is that of another limit,
        # after which no event says that it was admitted.
        for rows, admitted in ((self._admitted, True), (self._refused_by_rate, False)):
            row = int(rows[connection])
            if row > self._held[connection]:
                return Recheck(int(self.ms[row]), int(self._sequence[row]), admitted)
        return None


def _is_sampled(table: pa.Table) -> Flags:
    """Flag the rows that are a sample."""
    found: Flags = table.column("sample").fill_null(1.0).to_numpy() < 1
    return found


# Decisions ---------------------------------------------------------------------------------------

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
