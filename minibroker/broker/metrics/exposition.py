"""``/metrics``: the broker's totals over its processes, in Prometheus' text format.

Owns the totals, from snapshots of processes and of those that have died, and their conversion to
metric families. Only the process that answers scrapes may import it, because prometheus-client
costs 3 MB. Invariant: no counter decreases, whichever process is killed, and whether its last
snapshots arrive late, twice or never; what a process counted between its last snapshot and its
death is lost. Every family shown is in the catalogue, with the catalogue's labels. Corresponds to
Kafka's JMX reporter. The multiprocess mode of prometheus-client is not used, because it cannot
remove series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from minibroker.broker.metrics import definitions as d
from minibroker.broker.metrics.definitions import METRICS, CloseReason, Metric, MetricKind
from minibroker.broker.metrics.metrics import (
    ERRORS_AT,
    HISTOGRAMS,
    OK_AT,
    CommitFigures,
    LogFigures,
    Series,
    Snapshot,
    bounded_commits,
    bounded_logs,
    group_gauges,
    log_gauges,
)
from minibroker_protocol.registry import ApiKey

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
            if name == d.OPEN.name and opened > 0:
                series = (d.CLOSED.name, (*labels, CloseReason.PROCESS_DIED.value))
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

    def commits(self) -> tuple[CommitFigures, ...]:
        """The committed offsets of all processes that answered last, bounded over all."""
        return bounded_commits(
            commit for name in self._answering() for commit in self._processes[name].latest.commits
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


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
UNKNOWN: Final = "unknown"
"""The label of requests whose api key Kafka doesn't have."""

_HISTOGRAMS: Final = {
    d.REQUEST_BYTES: "request_bytes",
    d.RESPONSE_BYTES: "response_bytes",
    d.QUEUE_TIME: "queue",
    d.NETWORK_TIME: "network",
    d.IO_TIME: "io",
    d.TOTAL_TIME: "total",
    d.THROTTLE_TIME: "throttle",
}
_COMPUTED: Final = (d.REQUESTS, d.BUSY, d.ELAPSED, d.IDLE, d.UP, d.RESTARTS)
"""Metrics whose values are computed here; processes report those of the others by name."""

_REPORTED: Final = tuple(metric for metric in METRICS if metric not in _COMPUTED)
_COUNTERS: Final = tuple(metric for metric in _REPORTED if metric.kind is MetricKind.COUNTER)
_GAUGES: Final = {metric.name: metric for metric in _REPORTED if metric.kind is MetricKind.GAUGE}


def render(totals: Totals, restarts: Mapping[str, int]) -> bytes:
    """The text of one scrape. ``restarts`` counts by process, as the supervisor knows them."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BrokerCollector(totals, restarts))
    return generate_latest(registry)


class BrokerCollector(Collector):
    """Shows every family of the catalogue, those without a value as well."""

    def __init__(self, totals: Totals, restarts: Mapping[str, int]) -> None:
        self._totals = totals
        self._restarts = restarts

    def describe(self) -> Iterable[Family]:
        """The empty families; requested at registration, to find clashes without collecting."""
        return [_family(metric) for metric in METRICS]

    def collect(self) -> Iterator[Family]:
        """All families in the order of the catalogue."""
        families = {metric.name: _family(metric) for metric in METRICS}
        self._add_requests(families)
        self._add_counters(families)
        self._add_gauges(families)
        self._add_processes(families)
        yield from families.values()

    def _add_requests(self, families: dict[str, Family]) -> None:
        by_name: dict[str, list[int]] = {}
        for api_key, row in self._totals.rows().items():
            _add_named(by_name, api_name(api_key), row)
        for api, row in sorted(by_name.items()):
            _add(families, d.REQUESTS, (api, "ok"), row[OK_AT])
            _add(families, d.REQUESTS, (api, "error"), row[ERRORS_AT])
            for metric, histogram in _HISTOGRAMS.items():
                _add_histogram(families[metric.name], metric, api, row, histogram)

    def _add_counters(self, families: dict[str, Family]) -> None:
        counters = self._totals.counters()
        for metric in _COUNTERS:
            if not metric.labels:
                _add(families, metric, (), counters.get((metric.name, ()), 0))
        by_name = {metric.name: metric for metric in _COUNTERS if metric.labels}
        for (name, labels), value in sorted(counters.items()):
            if name in by_name:
                _add(families, by_name[name], labels, value)

    def _add_gauges(self, families: dict[str, Family]) -> None:
        for process, gauges in sorted(self._totals.gauges().items()):
            for (name, labels), value in gauges.items():
                metric = _GAUGES[name]
                # Values of the broker as a whole are reported by one process, without its name.
                whose = (process,) if "process" in metric.labels else ()
                _add(families, metric, (*whose, *labels), value)
        logs = self._totals.logs()
        of_groups = group_gauges(self._totals.commits(), logs)
        for (name, labels), value in (log_gauges(logs) | of_groups).items():
            _add(families, _GAUGES[name], labels, value)

    def _add_processes(self, families: dict[str, Family]) -> None:
        for process, (busy, elapsed) in sorted(self._totals.worked().items()):
            _add(families, d.BUSY, (process,), busy)
            _add(families, d.ELAPSED, (process,), elapsed)
        for process, idle in sorted(self._totals.idle().items()):
            _add(families, d.IDLE, (process,), idle)
        for process in sorted({*self._totals.up(), *self._restarts}):
            _add(families, d.UP, (process,), self._totals.up().get(process, False))
            _add(families, d.RESTARTS, (process,), self._restarts.get(process, 0))


@cache
def api_name(api_key: int) -> str:
    """Kafka's name of the API, e.g. ``ApiVersions``; ``unknown`` where it has none."""
    try:
        return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))
    except ValueError:
        return UNKNOWN


def _family(metric: Metric) -> Family:
    match metric.kind:
        case MetricKind.COUNTER:
            return CounterMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        case MetricKind.GAUGE:
            return GaugeMetricFamily(metric.name, metric.meaning, labels=metric.labels)
        case MetricKind.HISTOGRAM:
            return HistogramMetricFamily(metric.name, metric.meaning, labels=metric.labels)


def _add(
    families: Mapping[str, Family], metric: Metric, labels: tuple[str, ...], value: float
) -> None:
    family = families[metric.name]
    assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
    family.add_metric(labels, value / metric.divisor if metric.divisor > 1 else value)


def _add_histogram(family: Family, metric: Metric, api: str, row: list[int], name: str) -> None:
    assert isinstance(family, HistogramMetricFamily)
    at = HISTOGRAMS[name]
    count = 0
    buckets = []
    for bound, in_bucket in zip(at.bounds, row[at.buckets_at :], strict=False):
        count += in_bucket
        buckets.append((_bound_text(bound, metric.divisor), float(count)))
    buckets.append(("+Inf", float(count + row[at.buckets_at + len(at.bounds)])))
    family.add_metric((api,), buckets, row[at.sum_at] / metric.divisor)


@cache
def _bound_text(bound: int, divisor: int) -> str:
    return str(bound / divisor) if divisor > 1 else str(bound)


def _add_named(rows: dict[str, list[int]], name: str, row: list[int]) -> None:
    known = rows.get(name)
    rows[name] = row if known is None else [a + b for a, b in zip(known, row, strict=True)]
