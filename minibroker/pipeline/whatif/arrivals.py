"""Converts connection events to arrivals: when an address's rate checked a connection.

Owns what the events of a connection say about that check, and about the recheck of a delayed
connection. It must never know a rate. Invariant: a connection arrives at most once; the arrivals of
an address are in the order in which the broker checked them, and are the same however the events
are split into batches. Kafka has no counterpart, because it decides on live connections.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.lab.activity.schema import ConnectionStep
from minibroker.pipeline.whatif.columns import Lives, codes, longs
from minibroker.pipeline.whatif.events import NONE, Flags, Ints, Longs

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
