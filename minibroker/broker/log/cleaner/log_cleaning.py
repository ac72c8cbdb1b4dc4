"""The cleaning of an open log: what can be cleaned, the task for it, and the use of its result.

Owns the arithmetic of ``min.cleanable.dirty.ratio`` and of the compaction lags, and the way from a
log to a task and back. It must never know which process runs the task. Invariant: nothing from the
last stable offset, the recovery point or the active segment on is cleaned; groups contain adjacent
segments; a result replaces segments only while they are still those of the task, and the checkpoint
never exceeds what was replaced. Echoes ``LogCleanerManager``, ``LogToClean``,
``Cleaner.groupSegmentsBySize`` and ``UnifiedLog.replaceSegments``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from minibroker.broker.log.checkpoint import (
    has_cleaner_checkpoint,
    read_cleaner_checkpoint,
    write_cleaner_checkpoint,
)
from minibroker.broker.log.cleaner.batch_filter import LastRecord
from minibroker.broker.log.cleaner.cleaning import (
    CleanedGroup,
    CleaningFailedError,
    CleaningResult,
    CleaningTask,
    SourceSegment,
)
from minibroker.broker.log.config import UNBOUNDED, LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.paths import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    commit,
    discard,
    install,
    offset_file,
)
from minibroker.broker.log.producers import AbortedTransaction
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.log.segment import Segment

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
POSITION_MAX: Final = 2**31 - 1
"""Largest position that an index entry can hold."""


class SegmentFigures(NamedTuple):
    """A segment as the plan sees it. Index sizes count for ``group_segments`` only.

    ``first_timestamp`` is that of the first batch; it counts for ``max.compaction.lag.ms`` only.
    """

    base_offset: int
    size: int
    max_timestamp: int = -1
    first_timestamp: int = -1
    index_bytes: int = 0
    time_index_bytes: int = 0


class LogFacts(NamedTuple):
    """What the plan knows of a log; the last segment is the active one.

    ``clean_offset`` is the checkpoint, None without one. ``stable_offset`` is the smaller one of
    last stable offset and recovery point.
    """

    segments: Sequence[SegmentFigures]
    log_start_offset: int
    stable_offset: int
    clean_offset: int | None


class CleanableRange(NamedTuple):
    """The part of a log that can be cleaned, and how dirty the log is.

    ``first_uncleanable`` is the base offset of a segment.
    """

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int
    """How long the oldest dirty record has exceeded ``max.compaction.lag.ms``."""

    @property
    def ratio(self) -> float:
        """Share of the dirty bytes among all that would be read."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether the log is to be cleaned without a request."""
        if not self.cleanable_bytes:
            return False
        return self.delay_ms > 0 or self.ratio > config.min_cleanable_dirty_ratio


def cleanable_range(log: LogFacts, config: LogConfig, now_ms: int) -> CleanableRange:
    """The part of a log that can be cleaned now; it may be empty."""
    first_dirty = _first_dirty(log)
    sealed, active = log.segments[:-1], log.segments[-1]
    dirty = _from_offset(sealed, first_dirty, active.base_offset)
    limit = min(log.stable_offset, active.base_offset)
    if config.min_compaction_lag_ms > 0:
        latest = now_ms - config.min_compaction_lag_ms
        recent = (each.base_offset for each in dirty if each.max_timestamp > latest)
        limit = min(limit, next(recent, limit))
    limit = max(first_dirty, limit)
    bases = [each.base_offset for each in _from_offset(log.segments, limit, UNBOUNDED)]
    first_uncleanable = bases[0] if bases else active.base_offset
    cleanable = _from_offset(sealed, min(first_dirty, first_uncleanable), first_uncleanable)
    return CleanableRange(
        first_dirty,
        first_uncleanable,
        sum(each.size for each in sealed if each.base_offset < first_dirty),
        sum(each.size for each in cleanable),
        _delay_ms(dirty, config, now_ms),
    )


def _first_dirty(log: LogFacts) -> int:
    """The checkpoint, unless it is outside the log, of which all is then dirty."""
    clean, start = log.clean_offset, log.log_start_offset
    end = log.segments[-1].base_offset
    return start if clean is None or not start <= clean <= end else clean


def _from_offset(
    segments: Sequence[SegmentFigures], first: int, end: int
) -> Sequence[SegmentFigures]:
    """The segments from the one with offset ``first`` on that start before ``end``."""
    if first >= end:
        return []
    floor = max((each.base_offset for each in segments if each.base_offset <= first), default=first)
    return [each for each in segments if floor <= each.base_offset < end]


def _delay_ms(dirty: Sequence[SegmentFigures], config: LogConfig, now_ms: int) -> int:
    timestamps = [each.first_timestamp for each in dirty if each.first_timestamp > 0]
    clean_until = now_ms - max(config.max_compaction_lag_ms, 0)
    return max(0, clean_until - min(timestamps)) if timestamps else 0


def group_segments(
    segments: Sequence[SegmentFigures], config: LogConfig, end_offset: int
) -> list[list[SegmentFigures]]:
    """Group adjacent segments that fit into one, so that segments do not become ever smaller.

    ``end_offset`` is the end of the last segment.
    """
    groups: list[list[SegmentFigures]] = []
    for index, segment in enumerate(segments, start=1):
        end = segments[index].base_offset if index < len(segments) else end_offset
        if groups and _fits(groups[-1], segment, end, config):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(group: Sequence[SegmentFigures], segment: SegmentFigures, end: int, c: LogConfig) -> bool:
    return (
        _total(group, "size") + segment.size <= min(c.segment_bytes, POSITION_MAX)
        and _total(group, "index_bytes") + segment.index_bytes <= c.segment_index_bytes
        and _total(group, "time_index_bytes") + segment.time_index_bytes <= c.segment_index_bytes
        and end - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
    )


def _total(group: Iterable[SegmentFigures], field: str) -> int:
    return sum(getattr(segment, field) for segment in group)


class Buffers(NamedTuple):
    """Memory of one cleaning: entries of the offset map, and bytes of a read or write buffer."""

    entries_max: int
    buffer_bytes: int


class LogCleaning:
    """The cleanings of one partition. Methods raise OSError."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.log: Log = partition.log
        self._clean_offset = read_cleaner_checkpoint(self.log.directory)

    def range(self, now_ms: int) -> CleanableRange:
        """The part of the log that can be cleaned now."""
        log = self.log
        needs_times = log.config.max_compaction_lag_ms < UNBOUNDED
        segments = [_figures(segment, needs_time=needs_times) for segment in log.segments]
        stable = min(self.partition.last_stable_offset, log.recovery_point)
        facts = LogFacts(segments, log.log_start_offset, stable, self._clean_offset)
        return cleanable_range(facts, log.config, now_ms)

    def task(self, found: CleanableRange, buffers: Buffers, now_ms: int) -> CleaningTask:
        """The task that cleans this part of the log."""
        log, config = self.log, self.log.config
        segments = [each for each in log.segments if each.base_offset < found.first_uncleanable]
        by_base = {segment.base_offset: segment for segment in segments}
        groups = group_segments(
            [_with_index_sizes(segment) for segment in segments], config, found.first_uncleanable
        )
        return CleaningTask(
            log.directory,
            tuple(tuple(_source(by_base[each.base_offset]) for each in group) for group in groups),
            found.first_dirty,
            found.first_uncleanable,
            now_ms,
            config.delete_retention_ms,
            config.index_interval_bytes,
            buffers.entries_max,
            buffers.buffer_bytes,
            _last_records(log),
            _aborted(log, found.first_uncleanable),
        )

    def sources(self, task: CleaningTask) -> list[list[Segment]]:
        """The log's segments of each group of a task."""
        by_base = {segment.base_offset: segment for segment in self.log.segments}
        return [[by_base[each.base_offset] for each in group] for group in task.groups]

    def apply(self, result: CleaningResult, sources: list[list[Segment]], now_ms: int) -> None:
        """Replace the groups of segments by their cleaned copies.

        Raises CleaningFailedError if the log has changed since; the copies are then removed.
        """
        log = self.log
        if not (self.is_current(sources) and _are_copies(log.directory, result.groups)):
            self.discard()
            raise CleaningFailedError(f"{log.directory} has changed while it was cleaned")
        if not has_cleaner_checkpoint(log.directory):
            start = log.log_start_offset
            write_cleaner_checkpoint(log.directory, log.topic, log.partition, start)
        for group, replaced in zip(result.groups, sources, strict=False):
            _replace(log, group, replaced, now_ms)
        write_cleaner_checkpoint(log.directory, log.topic, log.partition, result.end_offset)
        self._clean_offset = result.end_offset

    def is_current(self, sources: list[list[Segment]]) -> bool:
        """Whether the log still has all of these segments."""
        current = set(self.log.segments)
        is_same = all(segment in current for group in sources for segment in group)
        return self.log.is_open and is_same

    def discard(self) -> None:
        """Remove the files of a cleaning that failed."""
        with suppress(OSError):
            discard(self.log.directory)


def _replace(log: Log, group: CleanedGroup, replaced: list[Segment], now_ms: int) -> None:
    commit(log.directory, group.base_offset)
    bases = [segment.base_offset for segment in replaced]
    renamed = install(log.directory, group.base_offset, bases)
    log.dropped.add_replaced(renamed, now_ms + log.config.file_delete_delay_ms)
    cleaned = Segment(
        log.directory,
        group.base_offset,
        size=group.size,
        next_offset=replaced[-1].next_offset,
        max_timestamp=group.max_timestamp,
        modified_ms=group.modified_ms,
        aborted_count=group.aborted_count,
        inode=group.inode,
    )
    log.segments.replace(replaced, cleaned)


def _are_copies(directory: str, groups: tuple[CleanedGroup, ...]) -> bool:
    """Whether the files are those that the cleaning has written."""
    paths = (offset_file(directory, group.base_offset, LOG + CLEANED) for group in groups)
    with suppress(FileNotFoundError):
        return [os.stat(path).st_ino for path in paths] == [group.inode for group in groups]
    return False


def _figures(segment: Segment, *, needs_time: bool) -> SegmentFigures:
    first_timestamp = -1
    if needs_time and segment.size:
        first_timestamp = next(segment.headers()).max_timestamp
    return SegmentFigures(
        segment.base_offset, segment.size, segment.extent.latest_ms, first_timestamp
    )


def _with_index_sizes(segment: Segment) -> SegmentFigures:
    def size(suffix: str) -> int:
        return os.path.getsize(offset_file(segment.directory, segment.base_offset, suffix))

    return SegmentFigures(
        segment.base_offset,
        segment.size,
        index_bytes=size(OFFSET_INDEX),
        time_index_bytes=size(TIME_INDEX),
    )


def _source(segment: Segment) -> SourceSegment:
    return SourceSegment(segment.base_offset, segment.size, segment.modified_ms)


def _last_records(log: Log) -> dict[int, LastRecord]:
    """The last batch of each active producer."""
    return {
        producer_id: LastRecord(
            producer.batches[-1].last_offset if producer.batches else -1, producer.epoch
        )
        for producer_id, producer in log.producers.producers.items()
    }


def _aborted(log: Log, end_offset: int) -> tuple[AbortedTransaction, ...]:
    """The aborted transactions with records below ``end_offset``."""
    found: list[AbortedTransaction] = []
    for segment in log.segments:
        if segment.aborted_count:
            entries, _ = segment.aborted_transactions(0, end_offset)
            found += entries
    return tuple(found)
