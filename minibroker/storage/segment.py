"""One segment of a log: a file of record batches, and its two indexes.

Owns the positions of batches in the file of a sealed segment (``Segment``) or of the active one
(``ActiveSegment``). It must never know producers or retention. Invariant: ``size`` covers complete
batches only, ``max_timestamp`` is the largest in any of them, and
only the active segment uses a file that stays open. Echoes ``LogSegment`` and ``FileRecords``.
"""

from __future__ import annotations

import errno
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from minibroker.storage.batch_search import TimeQuery, TimestampOffset, search_in_step
from minibroker.storage.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    OffsetIndex,
    TimeIndex,
    search_by_value,
    search_file,
)
from minibroker.storage.paths import LOG, OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, offset_file
from minibroker.storage.retention import SegmentExtent, SegmentGrowth
from minibroker.storage.segment_files import SegmentFiles
from minibroker.storage.slices import ANY_INODE
from minibroker.storage.transaction_index import (
    ENTRY,
    AbortedTransaction,
    TransactionIndex,
    search_transaction_index,
)
from protocol.control_records import EndTransactionMarker, parse_marker
from protocol.errors import DecodeError
from protocol.records import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    parse_batch_header,
)

RECENT_BATCHES: Final = 512
"""Newest batches whose positions are in memory, as most consumers read them."""

_SEARCH_READ_BYTES: Final = 8192
"""Bytes that a search reads at once: more than an index interval of Kafka's default."""


class Segment:
    """A sealed segment, and the base class of the active one."""

    __slots__ = (
        "aborted_count",
        "base_offset",
        "directory",
        "inode",
        "max_timestamp",
        "modified_ms",
        "next_offset",
        "path",
        "size",
    )

    def __init__(
        self,
        directory: str,
        base_offset: int,
        *,
        size: int = 0,
        next_offset: int | None = None,
        max_timestamp: int = NO_TIMESTAMP,
        modified_ms: int = 0,
        aborted_count: int = 0,
        inode: int = ANY_INODE,
    ) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.path = offset_file(directory, base_offset, LOG)
        self.size = size
        self.next_offset = base_offset if next_offset is None else next_offset
        self.max_timestamp = max_timestamp
        self.modified_ms = modified_ms
        self.aborted_count = aborted_count
        """Entries of the transaction index."""
        self.inode = inode
        """The file's number: after a cleaning, another file has the same name."""

    @property
    def extent(self) -> SegmentExtent:
        latest = self.max_timestamp if self.max_timestamp >= 0 else self.modified_ms
        return SegmentExtent(self.base_offset, self.size, latest)

    def locate(self, offset: int) -> tuple[int, int] | None:
        """(position, size) of the batch that holds ``offset``, or of the first one after it."""
        with self._reader() as fd:
            for position, header in self._iter_batches(fd, self._index_position(offset)):
                if header.last_offset >= offset:
                    return position, header.size
        return None

    def find_by_timestamp(self, timestamp: int, first_offset: int) -> TimestampOffset | None:
        """The first record at or after ``first_offset`` with at least this timestamp."""
        start = max(self._time_offset(timestamp), first_offset)
        with self._reader() as fd:
            for position, header in self._iter_batches(fd, self._index_position(start)):
                if header.max_timestamp < timestamp or header.last_offset < first_offset:
                    continue
                data = os.pread(fd, header.size, position)
                result = search_in_step(data, header, TimeQuery(timestamp, first_offset))
                if result is not None:
                    return result
        return None

    def find_max_timestamp(self) -> TimestampOffset | None:
        """The record with the largest timestamp: the first, or for append times the last."""
        latest = self.max_timestamp
        if latest < 0:
            return None
        with self._reader() as fd:
            for position, header in self._iter_batches(
                fd, self._index_position(self._time_offset(latest))
            ):
                if header.max_timestamp != latest:
                    continue
                epoch = header.partition_leader_epoch
                if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
                    return TimestampOffset(latest, header.last_offset, epoch)
                data = os.pread(fd, header.size, position)
                return search_in_step(data, header, TimeQuery(latest))
        return None

    def headers(self) -> Iterator[BatchHeader]:
        """All batch headers, oldest first, without checking checksums."""
        with self._reader() as fd:
            for _, header in self._iter_batches(fd, 0):
                yield header

    def batches(self) -> Iterator[tuple[BatchHeader, EndTransactionMarker | None]]:
        """All batch headers, with the markers of control batches. Raises DecodeError."""
        with self._reader() as fd:
            for position, header in self._iter_batches(fd, 0):
                is_control = header.is_control
                data = os.pread(fd, header.size, position) if is_control else b""
                yield header, parse_marker(data) if is_control else None

    def aborted_transactions(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """As ``TransactionIndex.overlapping``."""
        return search_transaction_index(self._path_of(TRANSACTION_INDEX), start, end)

    def offset_bound(self, position: int) -> int:
        """An offset that is larger than those of all batches before ``position``."""
        if position >= self.size:
            return self.next_offset
        bound = search_by_value(self._path_of(OFFSET_INDEX), OFFSET_ENTRY, position)
        return self.next_offset if bound is None else self.base_offset + bound

    def sync(self) -> None:
        """Write the records and the transaction index to the disk (fsync)."""
        with self._reader() as fd:
            os.fsync(fd)
        if self.aborted_count:
            fd = os.open(self._path_of(TRANSACTION_INDEX), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def _path_of(self, suffix: str) -> str:
        return offset_file(self.directory, self.base_offset, suffix)

    def _iter_batches(self, fd: int, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from ``position``, the beginning of one, on."""
        chunk, start = b"", position
        while position < self.size:
            if position + HEADER_BYTES > start + len(chunk):
                chunk, start = os.pread(fd, _SEARCH_READ_BYTES, position), position
            header = parse_batch_header(chunk, position - start)
            yield position, header
            position += header.size

    @contextmanager
    def _reader(self) -> Iterator[int]:
        fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def _index_position(self, offset: int) -> int:
        path = self._path_of(OFFSET_INDEX)
        return search_file(path, OFFSET_ENTRY, offset - self.base_offset) or 0

    def _time_offset(self, timestamp: int) -> int:
        path = self._path_of(TIME_INDEX)
        return self.base_offset + (search_file(path, TIME_ENTRY, timestamp) or 0)


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
            with open(offset_file(directory, self.base_offset, suffix), "wb") as file:
                file.write(entries)

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


def read_transaction_index(directory: str, base_offset: int) -> TransactionIndex:
    """The transaction index of a segment, empty without a file. Raises DecodeError and OSError."""
    try:
        with open(offset_file(directory, base_offset, TRANSACTION_INDEX), "rb") as file:
            return TransactionIndex(file.read())
    except FileNotFoundError:
        return TransactionIndex()


def _write_all(fd: int, head: bytes, body: memoryview, position: int) -> None:
    """Write head and body in one call, or in several if the kernel writes less."""
    written = os.pwritev(fd, (head, body), position)
    while written < len(head) + len(body):
        remaining = (head[written:], body[max(0, written - len(head)) :])
        count = os.pwritev(fd, remaining, position + written)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written += count
