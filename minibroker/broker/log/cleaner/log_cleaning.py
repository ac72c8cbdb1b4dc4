"""The cleaning of an open log: what can be cleaned, the task for it, and the use of its result.

Owns the way from a log to a task and back. It must never know which process runs the task.
Invariant: a result replaces segments only while they are still those of the task, and the
checkpoint never exceeds what was replaced. Echoes ``LogCleanerManager`` and
``UnifiedLog.replaceSegments``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from minibroker.broker.log.cleaner.batch_filter import LastRecord
from minibroker.broker.log.cleaner.checkpoint import (
    has_cleaner_checkpoint,
    read_cleaner_checkpoint,
    write_cleaner_checkpoint,
)
from minibroker.broker.log.cleaner.plan import (
    CleanableRange,
    LogFacts,
    SegmentFigures,
    cleanable_range,
    group_segments,
)
from minibroker.broker.log.cleaner.swap import CLEANED, commit, discard, install
from minibroker.broker.log.cleaner.task import (
    CleanedGroup,
    CleaningFailedError,
    CleaningResult,
    CleaningTask,
    SourceSegment,
)
from minibroker.broker.log.config import UNBOUNDED
from minibroker.broker.log.log import Log
from minibroker.broker.log.paths import LOG, OFFSET_INDEX, TIME_INDEX, offset_file
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.log.segment import Segment
from minibroker.broker.log.transaction_index import AbortedTransaction


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
