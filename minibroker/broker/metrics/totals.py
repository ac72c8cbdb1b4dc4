"""Totals of the broker, from snapshots of its processes and of those that have died.

Owns the counts of dead incarnations. It must never know how snapshots arrive or how totals are
shown. Invariant: no counter decreases, whichever process is killed, and whether its last snapshots
arrive late, twice or never; what a process counted between its last snapshot and its death is lost.
Kafka has one process and no counterpart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from minibroker.broker.metrics.definitions import CLOSED, OPEN, CloseReason
from minibroker.broker.metrics.metrics import (
    LogFigures,
    Series,
    Snapshot,
    bounded_logs,
)

IDLE_SPAN_NS: Final = 1_000_000_000
"""Shortest time over which an idle share is computed, so that frequent scrapes show no noise."""

PROCESSES_MAX: Final = 256
"""Largest number of processes; a broker has a few, and their number is fixed at its start."""


@dataclass(slots=True)
class _Process:
    """One process: its newest snapshot and what its earlier incarnations had counted."""

    latest: Snapshot
    rows: dict[int, list[int]] = field(default_factory=dict)
    counters: dict[Series, int] = field(default_factory=dict)
    busy_ns: int = 0
    elapsed_ns: int = 0
    idle: float = 1.0
    idle_since: tuple[int, int] = (0, 0)  # elapsed and busy time at the start of the idle span

    def take(self, snapshot: Snapshot) -> None:
        order = (snapshot.incarnation, snapshot.elapsed_ns)
        if order < (self.latest.incarnation, self.latest.elapsed_ns):
            return  # An older snapshot: its counts are already included.
        if snapshot.incarnation != self.latest.incarnation:
            self._bury(self.latest)
        self.latest = snapshot
        self._measure_idle()

    def _bury(self, dead: Snapshot) -> None:
        for api_key, row in dead.rows.items():
            add_rows(self.rows, api_key, row)
        for series, value in dead.counters.items():
            self.counters[series] = self.counters.get(series, 0) + value
        # Its connections ended with it, without being counted.
        for (name, labels), opened in dead.gauges.items():
            if name == OPEN.name and opened > 0:
                series = (CLOSED.name, (*labels, CloseReason.PROCESS_DIED.value))
                self.counters[series] = self.counters.get(series, 0) + int(opened)
        self.busy_ns += dead.busy_ns
        self.elapsed_ns += dead.elapsed_ns
        self.idle_since = (0, 0)

    def _measure_idle(self) -> None:
        elapsed, busy = self.latest.elapsed_ns, self.latest.busy_ns
        elapsed_then, busy_then = self.idle_since
        span = elapsed - elapsed_then
        if span >= IDLE_SPAN_NS or elapsed_then == 0 < span:
            self.idle = min(1.0, max(0.0, 1 - (busy - busy_then) / span))
        if span >= IDLE_SPAN_NS:
            self.idle_since = (elapsed, busy)


class Totals:
    """Takes snapshots, gives totals. One per broker, in the process that answers scrapes."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}
        self._present: frozenset[str] = frozenset()

    def take(self, snapshots: Iterable[Snapshot]) -> None:
        """Take one snapshot of each process that answered.

        Processes that are missing count as down until they answer again: their counters stay,
        their gauges go. Taking the same snapshot twice changes nothing.
        """
        present = set()
        for snapshot in snapshots:
            self._take_one(snapshot)
            present.add(snapshot.process)
        self._present = frozenset(present)

    def _take_one(self, snapshot: Snapshot) -> None:
        process = self._processes.get(snapshot.process)
        if process is not None:
            process.take(snapshot)
        elif len(self._processes) < PROCESSES_MAX:
            self._processes[snapshot.process] = process = _Process(snapshot)
            process.take(snapshot)

    def rows(self) -> dict[int, list[int]]:
        """Requests by api key, over all processes and incarnations."""
        rows: dict[int, list[int]] = {}
        for process in self._processes.values():
            for source in (process.rows, process.latest.rows):
                for api_key, row in source.items():
                    add_rows(rows, api_key, row)
        return rows

    def counters(self) -> dict[Series, int]:
        """Counters over all processes and incarnations."""
        counters: dict[Series, int] = {}
        for process in self._processes.values():
            for source in (process.counters, process.latest.counters):
                for series, value in source.items():
                    counters[series] = counters.get(series, 0) + value
        return counters

    def gauges(self) -> dict[str, Mapping[Series, float]]:
        """Gauges of each process that answered last."""
        return {name: self._processes[name].latest.gauges for name in self._answering()}

    def logs(self) -> tuple[LogFigures, ...]:
        """The logs of all processes that answered last, bounded over all."""
        return bounded_logs(
            log for name in self._answering() for log in self._processes[name].latest.logs
        )

    def worked(self) -> dict[str, tuple[int, int]]:
        """Busy and elapsed nanoseconds of each process over its incarnations."""
        return {
            name: (
                process.busy_ns + process.latest.busy_ns,
                process.elapsed_ns + process.latest.elapsed_ns,
            )
            for name, process in self._processes.items()
        }

    def idle(self) -> dict[str, float]:
        """Idle share of each process that answered last, 0 to 1."""
        return {name: self._processes[name].idle for name in self._answering()}

    def up(self) -> dict[str, bool]:
        """Every process ever heard of, and whether it answered last."""
        return {name: name in self._present for name in self._processes}

    def _answering(self) -> list[str]:
        return [name for name in self._processes if name in self._present]


def add_rows(rows: dict[int, list[int]], api_key: int, row: list[int]) -> None:
    """Add one row to the row of its api, which must not be shared with a snapshot."""
    known = rows.get(api_key)
    rows[api_key] = list(row) if known is None else [a + b for a, b in zip(known, row, strict=True)]
