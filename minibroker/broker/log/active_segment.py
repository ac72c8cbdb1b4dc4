"""The active segment of a log: the file that grows, with its indexes in memory.

Owns the positions of the newest batches, and when index entries are made. It must never know
producers or retention. Invariant: ``size`` covers complete batches only; what is behind them in the
file is overwritten by the next batch. Its descriptor is kept by ``SegmentFiles``. Echoes
``LogSegment``.
"""

from __future__ import annotations

import errno
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from minibroker.broker.log.index import OFFSET_ENTRY, TIME_ENTRY, OffsetIndex, TimeIndex
from minibroker.broker.log.paths import (
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_file,
    write_file,
)
from minibroker.broker.log.retention import SegmentGrowth
from minibroker.broker.log.segment import Segment, read_transaction_index
from minibroker.broker.log.segment_files import SegmentFiles
from minibroker.broker.log.transaction_index import ENTRY, AbortedTransaction, TransactionIndex
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import HEADER_BYTES, NO_TIMESTAMP, parse_batch_header

RECENT_BATCHES: Final = 512
"""Newest batches whose positions are in memory, as most consumers read them."""


class SegmentEnd(NamedTuple):
    """Where a segment ended at some time, and how many index entries it had."""

    size: int
    next_offset: int
    max_timestamp: int
    max_timestamp_offset: int
    modified_ms: int
    indexed_position: int
    offset_entries: int
    time_entries: int
    transaction_entries: int


class ActiveSegment(Segment):
    """The segment for appends: its indexes are in memory, its file in ``SegmentFiles``."""

    __slots__ = (
        "_closed",
        "_files",
        "_indexed_position",
        "_max_timestamp_offset",
        "_offsets_written",
        "_recent_offsets",
        "_recent_positions",
        "_times_written",
        "_transactions_written",
        "created_ms",
        "first_timestamp",
        "offset_index",
        "time_index",
        "transaction_index",
    )

    def __init__(
        self, directory: str, base_offset: int, files: SegmentFiles, *, now_ms: int
    ) -> None:
        """Open or create the segment's file. Its batches count after ``record_batch``."""
        super().__init__(directory, base_offset, modified_ms=now_ms)
        self._files = files
        self._closed = False
        self.inode = os.fstat(files.create(self.path)).st_ino
        self.created_ms = now_ms
        self.first_timestamp = NO_TIMESTAMP
        self.offset_index = OffsetIndex(base_offset)
        self.time_index = TimeIndex(base_offset)
        self._max_timestamp_offset = base_offset
        self._indexed_position = 0
        self._offsets_written = 0
        self._times_written = 0
        self.transaction_index = TransactionIndex()
        self._transactions_written = 0
        self._recent_offsets = array("q")
        self._recent_positions = array("q")

    @property
    def growth(self) -> SegmentGrowth:
        return SegmentGrowth(
            self.base_offset,
            self.size,
            len(self.offset_index),
            len(self.time_index),
            self.first_timestamp,
            self.created_ms,
        )

    def write(self, head: bytes, body: memoryview, *, sync: bool = False) -> None:
        """Write a batch's bytes at the end. It counts after ``record_batch``. Raises OSError.

        With ``sync`` all records are on the disk afterwards. If a write fails, the file is
        truncated or, if that also fails, the next batch overwrites the incomplete one.
        """
        fd = self._descriptor()
        if self._files.write_fault is not None:
            self._files.write_fault(fd, self.directory, (head, body), self.size)
        try:
            _write_all(fd, head, body, self.size)
            if sync:
                os.fsync(fd)
        except OSError:
            os.ftruncate(fd, self.size)
            raise

    def record_batch(
        self,
        base_offset: int,
        last_offset: int,
        size: int,
        max_timestamp: int,
        *,
        index_interval_bytes: int,
    ) -> None:
        """Record that a batch of ``size`` bytes was written at the end of the file."""
        position = self.size
        if position == 0:
            self.first_timestamp = max_timestamp
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if position - self._indexed_position > index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self.time_index.append(self.max_timestamp, self._max_timestamp_offset)
            self._indexed_position = position
        offsets, positions = self._recent_offsets, self._recent_positions
        if base_offset != self.next_offset:  # A gap: a search must look at the last offsets.
            del offsets[:], positions[:]
        offsets.append(base_offset)
        positions.append(position)
        if len(offsets) > 2 * RECENT_BATCHES:
            del offsets[:RECENT_BATCHES], positions[:RECENT_BATCHES]
        self.size = position + size
        self.next_offset = last_offset + 1

    def record_aborted(self, entry: AbortedTransaction) -> None:
        """Record a transaction that a batch of this segment has aborted."""
        self.transaction_index.append(entry)
        self.aborted_count += 1

    def restore(self, size: int, next_offset: int) -> None:
        """Load the index files of a cleanly closed segment, instead of recording each batch.

        Raises DecodeError or OSError if they do not match the segment, which then stays empty.
        """
        offset_index = OffsetIndex.decode(self._index_bytes(OFFSET_INDEX), self.base_offset)
        time_index = TimeIndex.decode(self._index_bytes(TIME_INDEX), self.base_offset)
        transaction_index = read_transaction_index(self.directory, self.base_offset)
        if offset_index.last_position >= max(size, 1):
            raise DecodeError("the index files do not match the segment", 0)
        first_timestamp = NO_TIMESTAMP
        if size:
            fd = self._descriptor()
            first_timestamp = parse_batch_header(os.pread(fd, HEADER_BYTES, 0)).max_timestamp
        self.offset_index, self.time_index = offset_index, time_index
        self.transaction_index = transaction_index
        self.aborted_count = self._transactions_written = len(transaction_index)
        self._offsets_written, self._times_written = len(offset_index), len(time_index)
        self._indexed_position = offset_index.last_position
        self.max_timestamp, self._max_timestamp_offset = time_index.last
        self.first_timestamp = first_timestamp
        self.size, self.next_offset = size, next_offset

    def _index_bytes(self, suffix: str) -> bytes:
        with open(self._path_of(suffix), "rb") as file:
            return file.read()

    def locate(self, offset: int) -> tuple[int, int] | None:
        slot = bisect_right(self._recent_offsets, offset) - 1
        if slot < 0:
            return super().locate(offset)
        position = self._recent_positions[slot]
        is_last = slot + 1 == len(self._recent_positions)
        end = self.size if is_last else self._recent_positions[slot + 1]
        return position, end - position

    def sync(self) -> None:
        os.fsync(self._descriptor())

    def aborted_transactions(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        return self.transaction_index.overlapping(start, end)

    def offset_bound(self, position: int) -> int:
        slot = bisect_left(self._recent_positions, position)
        if 0 < slot < len(self._recent_offsets):
            return self._recent_offsets[slot]
        bound = self.offset_index.offset_at(position)
        return self.next_offset if bound is None else bound

    def write_indexes(self) -> None:
        """Append the new entries to the index files, or replace the files of an earlier opening."""
        written = self._offsets_written
        self._write_index(
            OFFSET_INDEX, self.offset_index.encode(written), written * OFFSET_ENTRY.size
        )
        self._offsets_written = len(self.offset_index)
        written = self._times_written
        self._write_index(TIME_INDEX, self.time_index.encode(written), written * TIME_ENTRY.size)
        self._times_written = len(self.time_index)
        done = self._transactions_written
        if self.aborted_count > done:
            entries = self.transaction_index.encode(done)
            self._write_index(TRANSACTION_INDEX, entries, done * ENTRY.size)
            self._transactions_written = self.aborted_count

    def save_indexes(self, directory: str) -> None:
        """Write complete index files to another directory, which has none. Raises OSError."""
        times = self.time_index.encode()
        if self.max_timestamp > self.time_index.last[0]:
            relative = self._max_timestamp_offset - self.base_offset
            times += TIME_ENTRY.pack(self.max_timestamp, relative)
        files = {OFFSET_INDEX: self.offset_index.encode(), TIME_INDEX: times}
        if self.aborted_count:
            files[TRANSACTION_INDEX] = self.transaction_index.encode()
        for suffix, entries in files.items():
            write_file(offset_file(directory, self.base_offset, suffix), entries)

    def _write_index(self, suffix: str, entries: bytes, position: int) -> None:
        fd = os.open(self._path_of(suffix), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _write_all(fd, b"", memoryview(entries), position)
            os.ftruncate(fd, position + len(entries))
        finally:
            os.close(fd)

    def seal(self) -> Segment:
        """Close the file; ``finish_indexes`` was called before."""
        self.close()
        return Segment(
            self.directory,
            self.base_offset,
            size=self.size,
            next_offset=self.next_offset,
            max_timestamp=self.max_timestamp,
            modified_ms=self.modified_ms,
            aborted_count=self.aborted_count,
            inode=self.inode,
        )

    def finish_indexes(self) -> None:
        """Write the index files, with the largest timestamp as last entry."""
        self.time_index.append(self.max_timestamp, self._max_timestamp_offset)
        self.write_indexes()

    def truncate(self) -> None:
        """Truncate the file to the recorded batches."""
        os.ftruncate(self._descriptor(), self.size)

    @property
    def end(self) -> SegmentEnd:
        """Where the segment ends now."""
        return SegmentEnd(
            self.size,
            self.next_offset,
            self.max_timestamp,
            self._max_timestamp_offset,
            self.modified_ms,
            self._indexed_position,
            len(self.offset_index),
            len(self.time_index),
            self.aborted_count,
        )

    @property
    def link_count(self) -> int:
        """Number of directories that share the file of records. Raises OSError."""
        return os.fstat(self._descriptor()).st_nlink

    def truncate_to(self, end: SegmentEnd) -> None:
        """Remove the batches that were appended since the segment had this end. Raises OSError."""
        os.ftruncate(self._descriptor(), end.size)
        if self._transactions_written > end.transaction_entries:
            self._write_index(TRANSACTION_INDEX, b"", end.transaction_entries * ENTRY.size)
        count = bisect_left(self._recent_positions, end.size)
        del self._recent_offsets[count:], self._recent_positions[count:]
        self.offset_index.truncate(end.offset_entries)
        self.time_index.truncate(end.time_entries)
        self.transaction_index.truncate(end.transaction_entries)
        self._offsets_written = min(self._offsets_written, end.offset_entries)
        self._times_written = min(self._times_written, end.time_entries)
        self._transactions_written = min(self._transactions_written, end.transaction_entries)
        self.size, self.next_offset = end.size, end.next_offset
        self.max_timestamp = end.max_timestamp
        self._max_timestamp_offset = end.max_timestamp_offset
        self.modified_ms = end.modified_ms
        self._indexed_position = end.indexed_position
        self.aborted_count = end.transaction_entries

    def close(self) -> None:
        """Close the file and reject later use, as another log may use its path."""
        self._closed = True
        self._files.close(self.path)

    def _descriptor(self) -> int:
        if self._closed:
            raise OSError(errno.EBADF, "the log is closed")
        return self._files.descriptor(self.path)

    @contextmanager
    def _reader(self) -> Iterator[int]:
        yield self._descriptor()

    def _index_position(self, offset: int) -> int:
        return self.offset_index.position(offset)

    def _time_offset(self, timestamp: int) -> int:
        return self.time_index.offset(timestamp)


def _write_all(fd: int, head: bytes, body: memoryview, position: int) -> None:
    """Write head and body in one call, or in several if the kernel writes less."""
    written = os.pwritev(fd, (head, body), position)
    while written < len(head) + len(body):
        remaining = (head[written:], body[max(0, written - len(head)) :])
        count = os.pwritev(fd, remaining, position + written)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += count
