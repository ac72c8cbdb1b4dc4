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
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import BinaryIO, NamedTuple

from minibroker.broker.log.cleaner.batch_filter import (
    BatchFilter,
    CleanedTransactions,
    LastRecord,
    OffsetMap,
    SourceBatch,
    map_keys,
)
from minibroker.broker.log.errors import NO_SPACE_ERRNOS
from minibroker.broker.log.paths import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_file,
)
from minibroker.broker.log.producers import AbortedTransaction, TransactionIndex
from minibroker.broker.log.segment import OFFSET_ENTRY, OffsetIndex, TimeIndex, search_file
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
