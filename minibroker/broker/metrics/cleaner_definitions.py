"""Metrics of the log cleaner.

Owns their names and the figures of one worker. It must never know logs. Invariant: totals only
grow while the process lives. Echoes the metrics of ``LogCleaner`` and ``LogCleanerManager``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from minibroker.broker.metrics.metric import Metric, MetricKind

_LABELS: Final = ("process",)
_MS: Final = 1000
_CLEANER: Final = "kafka.log:type=LogCleaner,name={}"
_MANAGER: Final = "kafka.log:type=LogCleanerManager,name={}"


def _metric(name: str, meaning: str, jmx: str = "") -> Metric:
    divisor = _MS if name.endswith("_seconds") else 1
    full_name = f"minibroker_log_cleaner_{name}"
    return Metric(full_name, MetricKind.GAUGE, _LABELS, meaning, jmx, divisor)


RUNS: Final = _metric("runs", "Cleanings of a log since the process started.")
BYTES_READ: Final = _metric("read_bytes", "Bytes that cleanings have read since the start.")
BYTES_WRITTEN: Final = _metric(
    "written_bytes", "Bytes that cleanings have written since the start."
)
RECOPY: Final = _metric(
    "recopy_ratio",
    "Bytes written ÷ bytes read of the last cleaning. It reads dirty parts twice.",
    _CLEANER.format("cleaner-recopy-percent"),
)
CLEAN_TIME: Final = _metric(
    "clean_time_seconds", "Time of the last cleaning.", _CLEANER.format("max-clean-time-secs")
)
BUFFER_UTILIZATION: Final = _metric(
    "buffer_utilization_ratio",
    "Share of the map of keys that the last cleaning used.",
    _CLEANER.format("max-buffer-utilization-percent"),
)
COMPACTION_DELAY: Final = _metric(
    "max_compaction_delay_seconds",
    "How long the most delayed log has exceeded `max.compaction.lag.ms`.",
    _CLEANER.format("max-compaction-delay-secs"),
)
MAX_DIRTY: Final = _metric(
    "max_dirty_ratio",
    "Share of dirty bytes of the dirtiest log.",
    _MANAGER.format("max-dirty-percent"),
)
SINCE_LAST_RUN: Final = _metric(
    "time_since_last_run_seconds",
    "Time since logs were last checked.",
    _MANAGER.format("time-since-last-run-ms"),
)
UNCLEANABLE: Final = _metric(
    "uncleanable_partitions",
    "Partitions that cannot be compacted, because it failed.",
    _MANAGER.format("uncleanable-partitions-count"),
)

CLEANER_METRICS: Final = (
    *(RUNS, BYTES_READ, BYTES_WRITTEN, RECOPY, CLEAN_TIME, BUFFER_UTILIZATION, COMPACTION_DELAY),
    *(MAX_DIRTY, SINCE_LAST_RUN, UNCLEANABLE),
)


@dataclass(slots=True)
class CleanerFigures:
    """The figures of one worker's cleaner."""

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
            RUNS: self.runs,
            BYTES_READ: self.bytes_read,
            BYTES_WRITTEN: self.bytes_written,
            RECOPY: self.recopy_ratio,
            CLEAN_TIME: self.clean_time_ms,
            BUFFER_UTILIZATION: self.map_utilization,
            COMPACTION_DELAY: self.max_delay_ms,
            MAX_DIRTY: self.max_dirty_ratio,
            SINCE_LAST_RUN: now_ms - self.last_run_ms if self.last_run_ms else 0,
            UNCLEANABLE: self.uncleanable_partitions,
        }
        return {(metric.name, ()): value for metric, value in values.items()}
