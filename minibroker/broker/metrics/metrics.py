"""Counters of one process, cheap enough for every request, and snapshots of them as plain data.

Owns the counters of one process and the shape of a snapshot. It must never know how snapshots are
merged, displayed or sent, and it measures nothing: times and sizes are arguments. Invariants:
within one incarnation no count decreases, and no input makes the number of series exceed the bounds
in ``definitions``. Corresponds to Kafka's ``RequestChannel.Metrics`` and ``BrokerTopicStats``,
which are shared by threads, while this is used by one.
"""

from __future__ import annotations

import errno
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import Final, NamedTuple, TypeAlias, TypeVar

from minibroker.broker.metrics import definitions as d
from minibroker.broker.metrics.conditions import Conditions
from minibroker.broker.metrics.definitions import (
    API_KEYS_MAX,
    GROUP_PARTITIONS_MAX,
    LISTENERS_MAX,
    OTHER,
    QUEUES_MAX,
    SIZE_BUCKETS_BYTES,
    TIME_BUCKETS_NS,
    TOPIC_PARTITIONS_MAX,
    TOPICS_MAX,
    CloseReason,
)

Series: TypeAlias = tuple[str, tuple[str, ...]]
"""A metric's name and the values of its labels, without the process."""

UNKNOWN_API: Final = -1
"""The row that takes requests with an api key past ``API_KEYS_MAX``."""

# A row is one flat list, because one list costs one attribute look-up a request and a snapshot
# is then a copy: ok, errors, seven sums, then the buckets of seven histograms, each with one more
# bucket for what is past its last bound.
_OK: Final = 0
_ERRORS: Final = 1
_SUM_REQUEST: Final = 2
_SUM_RESPONSE: Final = 3
_SUM_QUEUE: Final = 4
_SUM_NETWORK: Final = 5
_SUM_IO: Final = 6
_SUM_TOTAL: Final = 7
_SUM_THROTTLE: Final = 8
_REQUEST: Final = 9
_RESPONSE: Final = _REQUEST + len(SIZE_BUCKETS_BYTES) + 1
_QUEUE: Final = _RESPONSE + len(SIZE_BUCKETS_BYTES) + 1
_NETWORK: Final = _QUEUE + len(TIME_BUCKETS_NS) + 1
_IO: Final = _NETWORK + len(TIME_BUCKETS_NS) + 1
_TOTAL: Final = _IO + len(TIME_BUCKETS_NS) + 1
_THROTTLE: Final = _TOTAL + len(TIME_BUCKETS_NS) + 1
ROW_LENGTH: Final = _THROTTLE + len(TIME_BUCKETS_NS) + 1


class Histogram(NamedTuple):
    """Position of a histogram in a row: its sum, its first bucket, and the buckets' bounds."""

    sum_at: int
    buckets_at: int
    bounds: tuple[int, ...]


HISTOGRAMS: Final = {
    "request_bytes": Histogram(_SUM_REQUEST, _REQUEST, SIZE_BUCKETS_BYTES),
    "response_bytes": Histogram(_SUM_RESPONSE, _RESPONSE, SIZE_BUCKETS_BYTES),
    "queue": Histogram(_SUM_QUEUE, _QUEUE, TIME_BUCKETS_NS),
    "network": Histogram(_SUM_NETWORK, _NETWORK, TIME_BUCKETS_NS),
    "io": Histogram(_SUM_IO, _IO, TIME_BUCKETS_NS),
    "total": Histogram(_SUM_TOTAL, _TOTAL, TIME_BUCKETS_NS),
    "throttle": Histogram(_SUM_THROTTLE, _THROTTLE, TIME_BUCKETS_NS),
}
OK_AT: Final = _OK
ERRORS_AT: Final = _ERRORS

_Source = TypeVar("_Source")


class Fill(NamedTuple):
    """Current and largest use of a bounded queue, in the queue's own unit."""

    used: int
    capacity: int
    peak: int
    waiting: int = 0


class FetchSessionFigures(NamedTuple):
    """Fetch sessions of one process and their partitions, and how many sessions were evicted."""

    sessions: int
    partitions: int
    evictions: int


class LogFigures(NamedTuple):
    """Size and bounds of one partition's log."""

    topic: str
    partition: int
    size_bytes: int
    start_offset: int
    end_offset: int


class CommitFigures(NamedTuple):
    """An offset that a group has committed, and when."""

    commit_ms: int
    group: str
    topic: str
    partition: int
    offset: int


# What a process counts for one topic, at these places of a list.
_BYTES_IN: Final = 0
_RECORDS_IN: Final = 1
_BYTES_OUT: Final = 2
_TOPIC_COUNTERS: Final = (
    (_BYTES_IN, d.RECORD_BYTES_IN, d.TOPIC_BYTES_IN),
    (_RECORDS_IN, d.RECORDS_IN, d.TOPIC_RECORDS_IN),
    (_BYTES_OUT, d.RECORD_BYTES_OUT, d.TOPIC_BYTES_OUT),
)
"""Place, metric of the sum, and metric by topic."""


@dataclass(slots=True)
class CleanerFigures:
    """The figures of one worker's log cleaner."""

    runs: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    recopy_ratio: float = 0.0
    clean_time_ms: int = 0
    map_utilization: float = 0.0
    max_delay_ms: int = 0
    max_dirty_ratio: float = 0.0
    last_run_ms: int = 0
    uncleanable_partitions: int = 0

    def add(
        self, bytes_read: int, bytes_written: int, map_utilization: float, time_ms: int
    ) -> None:
        """Count a cleaning that was completed."""
        self.runs += 1
        self.bytes_read += bytes_read
        self.bytes_written += bytes_written
        self.recopy_ratio = bytes_written / bytes_read if bytes_read else 0.0
        self.map_utilization = map_utilization
        self.clean_time_ms = time_ms

    def gauges(self, now_ms: int) -> dict[tuple[str, tuple[str, ...]], float]:
        """The values of all metrics."""
        values = {
            d.CLEANER_RUNS: self.runs,
            d.CLEANER_BYTES_READ: self.bytes_read,
            d.CLEANER_BYTES_WRITTEN: self.bytes_written,
            d.CLEANER_RECOPY: self.recopy_ratio,
            d.CLEANER_CLEAN_TIME: self.clean_time_ms,
            d.CLEANER_BUFFER_UTILIZATION: self.map_utilization,
            d.CLEANER_COMPACTION_DELAY: self.max_delay_ms,
            d.CLEANER_MAX_DIRTY: self.max_dirty_ratio,
            d.CLEANER_SINCE_LAST_RUN: now_ms - self.last_run_ms if self.last_run_ms else 0,
            d.CLEANER_UNCLEANABLE: self.uncleanable_partitions,
        }
        return {(metric.name, ()): value for metric, value in values.items()}


class Snapshot(NamedTuple):
    """Everything one incarnation of one process has counted; plain data, cheap to pickle.

    ``process`` is the name that the supervisor and the control API use too, e.g. ``processor-0``.
    ``incarnation`` grows from one incarnation of a process to the next, ``elapsed_ns`` within one.
    ``rows`` maps an api key to a row (see ``HISTOGRAMS``); counters only grow; gauges are as read
    when the snapshot was taken; ``logs`` holds at most ``TOPIC_PARTITIONS_MAX`` + 1 entries, and
    ``commits`` at most ``GROUP_PARTITIONS_MAX``.
    """

    process: str
    incarnation: int
    elapsed_ns: int
    busy_ns: int
    rows: Mapping[int, list[int]]
    counters: Mapping[Series, int]
    gauges: Mapping[Series, float]
    logs: tuple[LogFigures, ...]
    commits: tuple[CommitFigures, ...]


class ProcessMetrics:
    """The counters of one process. Not for use by several threads."""

    def __init__(self, process: str) -> None:
        """``process`` is the process's name, e.g. ``worker-1``."""
        self.process = process
        # The machine's monotonic clock orders incarnations across forks, and is real time even
        # where the broker's own clock is frozen: an idle share is a share of the real core.
        self._born_ns = time.perf_counter_ns()
        self._rows: dict[int, list[int]] = {}
        self._counters: dict[Series, int] = {}
        self._listeners: set[str] = set()
        self._open: dict[str, int] = {}
        self._topics: dict[str, list[int]] = {}
        self._deleted_topics = [0, 0, 0]
        """The sum of what was counted for topics that do not exist any more."""
        self._existing_topics: Callable[[], Mapping[str, object]] | None = None
        self._cleaned_for: Mapping[str, object] | None = None
        self._queues: dict[str, Callable[[], Fill]] = {}
        self._purgatories: dict[str, Callable[[], int]] = {}
        self._logs: Callable[[], Iterable[LogFigures]] | None = None
        self._commits: Callable[[], Iterable[CommitFigures]] | None = None
        self._busy: Callable[[], int] | None = None
        self._fetch_sessions: Callable[[], FetchSessionFigures] | None = None
        self._gauges: list[Callable[[], Mapping[Series, float]]] = []
        self._memory: Callable[[], int] | None = None

    # Recording ------------------------------------------------------------------------------

    # Positional, because naming eight arguments would cost a tenth of the call.
    def request(  # noqa: PLR0917
        self,
        api_key: int,
        error: bool,
        request_bytes: int,
        response_bytes: int,
        queue_ns: int,
        network_ns: int,
        io_ns: int,
        total_ns: int,
    ) -> None:
        """Count one answered request. Costs about 0.6 µs; sizes and times are not negative."""
        row = self._rows.get(api_key) or self._new_row(api_key)
        row[_ERRORS if error else _OK] += 1
        row[_SUM_REQUEST] += request_bytes
        row[_SUM_RESPONSE] += response_bytes
        row[_SUM_QUEUE] += queue_ns
        row[_SUM_NETWORK] += network_ns
        row[_SUM_IO] += io_ns
        row[_SUM_TOTAL] += total_ns
        row[_REQUEST + bisect_left(SIZE_BUCKETS_BYTES, request_bytes)] += 1
        row[_RESPONSE + bisect_left(SIZE_BUCKETS_BYTES, response_bytes)] += 1
        row[_QUEUE + bisect_left(TIME_BUCKETS_NS, queue_ns)] += 1
        row[_NETWORK + bisect_left(TIME_BUCKETS_NS, network_ns)] += 1
        row[_IO + bisect_left(TIME_BUCKETS_NS, io_ns)] += 1
        row[_TOTAL + bisect_left(TIME_BUCKETS_NS, total_ns)] += 1

    def throttled(self, api_key: int, throttle_ns: int) -> None:
        """Count a throttle of an answered request's sender."""
        row = self._rows.get(api_key) or self._new_row(api_key)
        row[_SUM_THROTTLE] += throttle_ns
        row[_THROTTLE + bisect_left(TIME_BUCKETS_NS, throttle_ns)] += 1

    def produced(self, topic: str, size_bytes: int, records: int) -> None:
        """Count record batches appended for a client."""
        row = self._topics.get(topic) or self._new_topic(topic)
        row[_BYTES_IN] += size_bytes
        row[_RECORDS_IN] += records

    def fetched(self, topic: str, size_bytes: int) -> None:
        """Count record batches handed out to a consumer."""
        if size_bytes:
            row = self._topics.get(topic) or self._new_topic(topic)
            row[_BYTES_OUT] += size_bytes

    def connection_accepted(self, listener: str) -> None:
        """Count a connection that the acceptor took from the kernel."""
        self._add(d.ACCEPTED.name, (self._known(listener),), 1)

    def connection_opened(self, listener: str) -> None:
        """Count a connection as open in this process, the one that will close it."""
        listener = self._known(listener)
        self._open[listener] = self._open.get(listener, 0) + 1

    def connection_closed(self, listener: str, reason: CloseReason) -> None:
        """Count the end of a connection that this process had opened."""
        listener = self._known(listener)
        self._open[listener] = self._open.get(listener, 0) - 1
        self._add(d.CLOSED.name, (listener, reason.value), 1)

    def connection_refused(self, listener: str, reason: CloseReason) -> None:
        """Count the end of a connection that was never open in this process."""
        self._add(d.CLOSED.name, (self._known(listener), reason.value), 1)

    def acceptor_blocked(self, listener: str, blocked_s: float) -> None:
        """Add time, on the broker's clock, in which this listener's next connection waited."""
        self._add(d.ACCEPTOR_BLOCKED.name, (self._known(listener),), round(blocked_s * 1e9))

    def storage_failed(self, error: OSError) -> None:
        """Count a read or write of a log that failed."""
        name = errno.errorcode.get(error.errno or 0, OTHER)
        self._add(d.STORAGE_ERRORS.name, (name,), 1)

    def log_truncated(self, records: int, size_bytes: int) -> None:
        """Count what recovery removed from a log."""
        self._add(d.TRUNCATED_RECORDS.name, (), records)
        self._add(d.TRUNCATED_BYTES.name, (), size_bytes)

    def activity_written(self, events: int, size_bytes: int) -> None:
        """Count events that were written to the activity topic."""
        self._add(d.ACTIVITY_EVENTS.name, (), events)
        self._add(d.ACTIVITY_BYTES.name, (), size_bytes)

    def activity_dropped(self, events: int) -> None:
        """Count events that were not."""
        if events:
            self._add(d.ACTIVITY_DROPPED.name, (), events)

    # Sources, read only when a snapshot is taken ----------------------------------------------

    def watch_queue(self, queue: str, read: Callable[[], Fill]) -> None:
        """Show a bounded queue under this name; a second call with a name replaces its source.

        Raises ``ValueError`` past ``QUEUES_MAX`` names: names come from the code, not from clients.
        """
        _watch(self._queues, queue, read)

    def watch_purgatory(self, operation: str, read: Callable[[], int]) -> None:
        """Show how many requests wait for this operation, e.g. ``fetch`` or ``join_group``.

        Raises ``ValueError`` past ``QUEUES_MAX`` operations.
        """
        _watch(self._purgatories, operation, read)

    def watch_fetch_sessions(self, read: Callable[[], FetchSessionFigures]) -> None:
        """Show the fetch sessions of this process."""
        self._fetch_sessions = read

    def watch_logs(self, read: Callable[[], Iterable[LogFigures]]) -> None:
        """Show the logs this process owns; past ``TOPIC_PARTITIONS_MAX`` they are summed."""
        self._logs = read

    def watch_topics(self, read: Callable[[], Mapping[str, object]]) -> None:
        """Stop to show topics that are not in this mapping by name, which is never changed."""
        self._existing_topics = read

    def watch_commits(self, read: Callable[[], Iterable[CommitFigures]]) -> None:
        """Show the committed offsets of the groups of this process."""
        self._commits = read

    def watch_gauges(self, read: Callable[[], Mapping[Series, float]]) -> None:
        """Show these gauges in addition to all others; the caller limits their number."""
        self._gauges.append(read)

    def watch_busy(self, read: Callable[[], int]) -> None:
        """Take the nanoseconds this process has worked so far from ``read``."""
        self._busy = read

    def watch_memory(self, read: Callable[[], int]) -> None:
        """Take the bytes that this process has in RAM from ``read``."""
        self._memory = read

    # Handing over -----------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A copy of everything counted so far, with the watched sources read now."""
        self._forget_deleted_topics()
        counters = dict(self._counters)
        for place, metric, by_topic in _TOPIC_COUNTERS:
            total = self._deleted_topics[place]
            for topic, row in self._topics.items():
                if row[place]:
                    counters[by_topic.name, (topic,)] = row[place]
                    total += row[place]
            if total:
                counters[metric.name, ()] = total
        if self._fetch_sessions is not None and (evictions := self._fetch_sessions().evictions):
            counters[d.FETCH_SESSION_EVICTIONS.name, ()] = evictions
        return Snapshot(
            process=self.process,
            incarnation=self._born_ns,
            elapsed_ns=time.perf_counter_ns() - self._born_ns,
            busy_ns=0 if self._busy is None else self._busy(),
            rows={api_key: row.copy() for api_key, row in self._rows.items()},
            counters=counters,
            gauges=self._read_gauges(),
            logs=() if self._logs is None else bounded_logs(self._logs()),
            commits=() if self._commits is None else bounded_commits(self._commits()),
        )

    def _read_gauges(self) -> dict[Series, float]:
        gauges: dict[Series, float] = {}
        for read_gauges in self._gauges:
            gauges.update(read_gauges())
        if self._memory is not None:
            gauges[d.MEMORY.name, ()] = self._memory()
        for listener, count in self._open.items():
            gauges[d.OPEN.name, (listener,)] = count
        if self._fetch_sessions is not None:
            figures = self._fetch_sessions()
            gauges[d.FETCH_SESSIONS.name, ()] = figures.sessions
            gauges[d.FETCH_SESSION_PARTITIONS.name, ()] = figures.partitions
        for operation, read_size in self._purgatories.items():
            gauges[d.PURGATORY.name, (operation,)] = read_size()
        for queue, read_fill in self._queues.items():
            fill = read_fill()
            gauges[d.QUEUE_USED.name, (queue,)] = fill.used
            gauges[d.QUEUE_CAPACITY.name, (queue,)] = fill.capacity
            gauges[d.QUEUE_PEAK.name, (queue,)] = fill.peak
            gauges[d.QUEUE_WAITING.name, (queue,)] = fill.waiting
        return gauges

    def _new_row(self, api_key: int) -> list[int]:
        if not 0 <= api_key < API_KEYS_MAX:
            api_key = UNKNOWN_API
        return self._rows.setdefault(api_key, [0] * ROW_LENGTH)

    def _new_topic(self, topic: str) -> list[int]:
        if len(self._topics) >= TOPICS_MAX:
            self._forget_deleted_topics()
            if len(self._topics) >= TOPICS_MAX:
                topic = OTHER
        return self._topics.setdefault(topic, [0, 0, 0])

    def _forget_deleted_topics(self) -> None:
        """Add the counts of deleted topics to their sum, once for each change of topics."""
        if self._existing_topics is None:
            return
        existing = self._existing_topics()
        if existing is self._cleaned_for:
            return
        self._cleaned_for = existing
        for topic in [name for name in self._topics if name not in existing and name != OTHER]:
            row = self._topics.pop(topic)
            self._deleted_topics = [a + b for a, b in zip(self._deleted_topics, row, strict=True)]

    def _known(self, listener: str) -> str:
        if listener in self._listeners:
            return listener
        if len(self._listeners) >= LISTENERS_MAX:
            return OTHER
        self._listeners.add(listener)
        return listener

    def _add(self, name: str, labels: tuple[str, ...], amount: int) -> None:
        series = (name, labels)
        self._counters[series] = self._counters.get(series, 0) + amount


def bounded_logs(logs: Iterable[LogFigures]) -> tuple[LogFigures, ...]:
    """The first ``TOPIC_PARTITIONS_MAX`` logs by topic and partition, then one sum of the rest.

    The sum's offsets are 0: sums of offsets mean nothing.
    """
    ordered = sorted(logs)
    shown, rest = ordered[:TOPIC_PARTITIONS_MAX], ordered[TOPIC_PARTITIONS_MAX:]
    if rest:
        shown.append(LogFigures(OTHER, -1, sum(log.size_bytes for log in rest), 0, 0))
    return tuple(shown)


def bounded_commits(commits: Iterable[CommitFigures]) -> tuple[CommitFigures, ...]:
    """The ``GROUP_PARTITIONS_MAX`` offsets that were committed last."""
    return tuple(nlargest(GROUP_PARTITIONS_MAX, commits))


def group_gauges(commits: Iterable[CommitFigures], logs: Iterable[LogFigures]) -> dict[Series, int]:
    """The gauges that show these offsets, and their distance to the ends of these logs."""
    ends = {(log.topic, log.partition): log.end_offset for log in logs}
    gauges: dict[Series, int] = {}
    for commit in sorted(commits, key=lambda each: each[1:]):
        labels = (commit.group, commit.topic, str(commit.partition))
        gauges[d.GROUP_OFFSET.name, labels] = commit.offset
        end = ends.get((commit.topic, commit.partition))
        if end is not None:
            gauges[d.GROUP_LAG.name, labels] = max(end - commit.offset, 0)
    return gauges


def condition_gauges(conditions: Conditions) -> dict[Series, float]:
    """The gauges that show these conditions."""
    return {
        (d.CONDITIONS.name, (kind.value,)): count for kind, count in conditions.counts().items()
    }


def log_gauges(logs: Iterable[LogFigures]) -> dict[Series, int]:
    """The gauges that show these logs."""
    gauges: dict[Series, int] = {}
    for log in logs:
        labels = (log.topic, str(log.partition))
        gauges[d.LOG_SIZE.name, labels] = gauges.get((d.LOG_SIZE.name, labels), 0) + log.size_bytes
        if log.topic != OTHER:
            gauges[d.LOG_START_OFFSET.name, labels] = log.start_offset
            gauges[d.LOG_END_OFFSET.name, labels] = log.end_offset
    return gauges


def _watch(sources: dict[str, _Source], name: str, read: _Source) -> None:
    if name not in sources and len(sources) >= QUEUES_MAX:
        raise ValueError(
            f"cannot watch {name!r}: {QUEUES_MAX} names are taken already "
            "(minibroker.broker.metrics.definitions.QUEUES_MAX)"
        )
    sources[name] = read
