"""One cleaning of a log: collects the keys of its dirty part and writes cleaned segments.

Owns the task and the result, plain data for a channel between processes, the two passes over the
segments' files, and the ``.cleaned`` files that they write. It must never know which process it
runs in, or replace a segment. Invariant: a task contains everything that a cleaning needs except
the segments' bytes; a batch with a wrong checksum ends the cleaning before anything is replaced.
Echoes Kafka's ``Cleaner``.

The passes are an iterator that stops after each buffer, so that the caller can pause, run other
work, or end the cleaning.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, Final, NamedTuple

from minibroker.broker.log.batch_filter import (
    BatchFilter,
    CleanedTransactions,
    LastRecord,
    OffsetMap,
    SourceBatch,
    map_keys,
)
from minibroker.broker.log.checkpoint import (
    has_cleaner_checkpoint,
    read_cleaner_checkpoint,
    write_cleaner_checkpoint,
)
from minibroker.broker.log.config import UNBOUNDED, LogConfig
from minibroker.broker.log.errors import NO_SPACE_ERRNOS
from minibroker.broker.log.log import Log
from minibroker.broker.log.paths import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    commit,
    discard,
    install,
    offset_file,
)
from minibroker.broker.log.producers import AbortedTransaction, TransactionIndex
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.log.segment import OFFSET_ENTRY, OffsetIndex, Segment, TimeIndex, search_file
from minibroker_protocol.checksum import crc32c
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    CHECKED_POSITION,
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    parse_batch_header,
)


class SourceSegment(NamedTuple):
    """A segment to be cleaned."""

    base_offset: int
    size: int
    modified_ms: int


class CleaningTask(NamedTuple):
    """One cleaning of a log.

    Keys are collected from ``first_dirty_offset`` up to ``first_uncleanable_offset``; the groups
    of segments up to there are cleaned. Each group becomes one segment.
    """

    directory: str
    groups: tuple[tuple[SourceSegment, ...], ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    now_ms: int
    delete_retention_ms: int
    index_interval_bytes: int
    entries_max: int
    buffer_bytes: int
    last_records: dict[int, LastRecord]
    aborted: tuple[AbortedTransaction, ...]


class CleanedGroup(NamedTuple):
    """The ``.cleaned`` files that replace a group of segments."""

    base_offset: int
    size: int
    next_offset: int
    max_timestamp: int
    modified_ms: int
    inode: int
    aborted_count: int


class CleaningResult(NamedTuple):
    """What was cleaned: a prefix of the task's groups, up to ``end_offset``."""

    groups: tuple[CleanedGroup, ...]
    end_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    map_utilization: float


class CleaningFailedError(Exception):
    """A segment could not be cleaned; the text says why."""


class CleanedSegment:
    """A cleaned copy that is being written. Methods raise OSError."""

    def __init__(
        self, directory: str, base_offset: int, *, index_interval_bytes: int, buffer_bytes: int
    ) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self._interval_bytes = index_interval_bytes
        self._offsets = OffsetIndex(base_offset)
        self._times = TimeIndex(base_offset)
        self._max_timestamp, self._max_timestamp_offset = NO_TIMESTAMP, base_offset
        self._indexed_position = 0
        self._size = 0
        self._next_offset = base_offset
        self._file = self._create(LOG, buffer_bytes)

    def _create(self, suffix: str, buffer_bytes: int) -> BinaryIO:
        path = offset_file(self._directory, self._base_offset, suffix + CLEANED)
        with suppress(FileNotFoundError):
            os.unlink(path)  # A process that was killed may still have it open.
        return open(path, "xb", buffering=buffer_bytes)

    def write(self, header: BatchHeader, data: Buffer, max_timestamp: int) -> None:
        """Append a batch, whose offsets are those of ``header``."""
        position, last_offset = self._size, header.last_offset
        if max_timestamp > self._max_timestamp:
            self._max_timestamp, self._max_timestamp_offset = max_timestamp, last_offset
        if position - self._indexed_position > self._interval_bytes:
            self._offsets.append(last_offset, position)
            self._times.append(self._max_timestamp, self._max_timestamp_offset)
            self._indexed_position = position
        self._file.write(data)
        self._size += len(data)
        self._next_offset = last_offset + 1

    def finish(
        self,
        aborted: Sequence[AbortedTransaction],
        *,
        has_index: bool,
        modified_ms: int,
    ) -> CleanedGroup:
        """Write the indexes, and everything to the disk (fsync).

        With ``has_index`` a transaction index is written even if it is empty, to replace one.
        """
        self._times.append(self._max_timestamp, self._max_timestamp_offset)
        contents = {OFFSET_INDEX: self._offsets.encode(), TIME_INDEX: self._times.encode()}
        if aborted or has_index:
            index = TransactionIndex()
            for transaction in aborted:
                index.append(transaction)
            contents[TRANSACTION_INDEX] = index.encode()
        for suffix, content in contents.items():
            with self._create(suffix, -1 if content else 0) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        self._file.flush()
        os.utime(self._file.fileno(), ns=(modified_ms * 1_000_000,) * 2)
        os.fsync(self._file.fileno())
        inode = os.fstat(self._file.fileno()).st_ino
        self._file.close()
        return CleanedGroup(
            self._base_offset,
            self._size,
            self._next_offset,
            self._max_timestamp,
            modified_ms,
            inode,
            len(aborted),
        )

    def close(self) -> None:
        """Close the file without finishing it."""
        with suppress(OSError):
            self._file.close()


Steps = Generator[int, None, CleaningResult]
"""Yields the bytes that were read and written in a step."""


def clean(task: CleaningTask) -> Steps:
    """Clean the groups of a task.

    Raises CleaningFailedError, or OSError if there is no space: then it can be tried again.
    """
    cleaning = _Cleaning(task)
    try:
        yield from cleaning.collect_keys()
        groups = []
        for group in task.groups:
            if group[0].base_offset >= cleaning.end_offset:
                break
            groups.append((yield from cleaning.clean_group(group)))
    except (OSError, DecodeError) as error:
        if isinstance(error, OSError) and error.errno in NO_SPACE_ERRNOS:
            raise
        raise CleaningFailedError(f"{task.directory}: {error}") from error
    return cleaning.result(groups)


class _Cleaning:
    """The state of one cleaning."""

    def __init__(self, task: CleaningTask) -> None:
        self._task = task
        self._map = OffsetMap(task.entries_max)
        self._map.latest_offset = task.first_dirty_offset - 1
        self._filter: BatchFilter | None = None
        self._transactions = CleanedTransactions(task.aborted)
        self._bytes_read = self._bytes_written = 0
        self._records_read = self._records_kept = 0

    @property
    def end_offset(self) -> int:
        """The end of the part of the log that is clean afterwards."""
        return self._map.latest_offset + 1

    def result(self, groups: list[CleanedGroup]) -> CleaningResult:
        return CleaningResult(
            tuple(groups),
            self.end_offset,
            self._bytes_read,
            self._bytes_written,
            self._records_read,
            self._records_kept,
            self._map.utilization,
        )

    def collect_keys(self) -> Generator[int, None, None]:
        """Put the last offsets of the dirty part's keys into the map, until it is full."""
        task, offset_map = self._task, self._map
        transactions = CleanedTransactions(
            entry for entry in task.aborted if entry.last_offset >= task.first_dirty_offset
        )
        segments = [segment for group in task.groups for segment in group]
        ends = [*(segment.base_offset for segment in segments), task.first_uncleanable_offset]
        for segment, end in zip(segments, ends[1:], strict=True):
            if end <= task.first_dirty_offset:
                continue
            for batches, size in self._buffers(segment, task.first_dirty_offset):
                for batch in batches:
                    if not self._collect(batch, transactions):
                        return
                    if batch.header.last_offset >= task.first_dirty_offset:
                        offset_map.latest_offset = batch.header.last_offset
                yield size
            offset_map.latest_offset = end - 1  # Also behind a gap.

    def _collect(self, batch: SourceBatch, transactions: CleanedTransactions) -> bool:
        """Add the keys of a batch; returns False if the map is full."""
        header = batch.header
        producer_id, last_offset = header.producer_id, header.last_offset
        if header.is_control:
            transactions.is_dispensable(producer_id, last_offset, committed=batch.is_commit())
            return True
        if header.is_transactional and transactions.is_aborted(producer_id, last_offset):
            return True
        return map_keys(batch, self._map, self._task.first_dirty_offset)

    def clean_group(self, group: tuple[SourceSegment, ...]) -> Generator[int, None, CleanedGroup]:
        """Write the cleaned copy of a group."""
        task = self._task
        if self._filter is None:
            self._filter = BatchFilter(
                self._map,
                self._transactions,
                task.last_records,
                now_ms=task.now_ms,
                delete_retention_ms=task.delete_retention_ms,
            )
        cleaned = CleanedSegment(
            task.directory,
            group[0].base_offset,
            index_interval_bytes=task.index_interval_bytes,
            buffer_bytes=task.buffer_bytes,
        )
        try:
            for segment in group:
                for batches, size in self._buffers(segment):
                    is_end = segment is group[-1] and batches[-1].end == segment.size
                    yield size + self._write(batches, cleaned, self._filter, is_end)
            finished = cleaned.finish(
                self._transactions.kept,
                has_index=any(map(self._has_transaction_index, group)),
                modified_ms=group[-1].modified_ms,
            )
            self._transactions.kept = []
        finally:
            cleaned.close()
        return finished

    def _write(
        self, batches: list[SourceBatch], cleaned: CleanedSegment, kept: BatchFilter, is_end: bool
    ) -> int:
        """Write what remains of the batches; returns its size."""
        size, last = 0, len(batches) - 1
        for slot, batch in enumerate(batches):
            data, max_timestamp, records = kept.apply(batch, is_last=is_end and slot == last)
            self._records_read += batch.header.record_count
            if data is not None:
                cleaned.write(batch.header, data, max_timestamp)
                self._records_kept += records
                size += len(data)
        self._bytes_written += size
        return size

    def _has_transaction_index(self, segment: SourceSegment) -> bool:
        return os.path.exists(
            offset_file(self._task.directory, segment.base_offset, TRANSACTION_INDEX)
        )

    def _buffers(
        self, segment: SourceSegment, from_offset: int = 0
    ) -> Iterator[tuple[list[SourceBatch], int]]:
        """The batches of a segment, as many at a time as fit into a buffer, and their size."""
        directory, base_offset = self._task.directory, segment.base_offset
        position = 0
        if from_offset > base_offset:
            index = offset_file(directory, base_offset, OFFSET_INDEX)
            position = search_file(index, OFFSET_ENTRY, from_offset - base_offset) or 0
        with open(offset_file(directory, base_offset, LOG), "rb", buffering=0) as file:
            while position < segment.size:
                batches = self._read(file.fileno(), position, segment.size)
                size = batches[-1].end - position
                self._bytes_read += size
                position += size
                yield batches, size

    def _read(self, fd: int, position: int, file_size: int) -> list[SourceBatch]:
        """Read at least one batch. Raises DecodeError if one is damaged."""
        size = min(self._task.buffer_bytes, file_size - position)
        first = parse_batch_header(os.pread(fd, HEADER_BYTES, position))
        if first.size > file_size - position:
            raise DecodeError(f"a batch of {first.size} bytes exceeds the segment", position)
        buffer = os.pread(fd, max(size, first.size), position)
        batches: list[SourceBatch] = []
        at, last, view = 0, len(buffer) - HEADER_BYTES, memoryview(buffer)
        while at <= last:
            header = parse_batch_header(buffer, at)
            end = at + header.size
            if end > len(buffer):
                break
            if crc32c(view[at + CHECKED_POSITION : end]) != header.crc:
                raise DecodeError("the checksum of a batch is wrong", position + at)
            batches.append(SourceBatch(buffer, at, header, position))
            at = end
        if not batches:
            raise DecodeError("a segment is shorter than expected", position)
        return batches


# ----- The cleaning of an open log: what can be cleaned, the task for it, and the use of its result
# Owns the arithmetic of ``min.cleanable.dirty.ratio`` and of the compaction lags, and the way from
# a log to a task and back. It must never know which process runs the task. Invariant: nothing from
# the last stable offset, the recovery point or the active segment on is cleaned; groups contain
# adjacent segments; a result replaces segments only while they are still those of the task, and the
# checkpoint never exceeds what was replaced. Echoes ``LogCleanerManager``, ``LogToClean``,
# ``Cleaner.groupSegmentsBySize`` and ``UnifiedLog.replaceSegments``.


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
