"""A sealed segment of a log: a file of record batches, and its indexes.

Owns the search for batches in the file. It must never know producers or retention, nor append.
Invariant: ``size`` covers complete batches only, ``max_timestamp`` is the largest in any of them,
and no file stays open. Echoes ``LogSegment`` and ``FileRecords``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from minibroker.broker.log.batch_search import TimeQuery, TimestampOffset, search_in_step
from minibroker.broker.log.index import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    search_by_value,
    search_file,
)
from minibroker.broker.log.paths import (
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_file,
)
from minibroker.broker.log.retention import SegmentExtent
from minibroker.broker.log.slices import ANY_INODE
from minibroker.broker.log.transaction_index import (
    AbortedTransaction,
    TransactionIndex,
    search_transaction_index,
)
from minibroker_protocol.control_records import EndTransactionMarker, parse_marker
from minibroker_protocol.records import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    parse_batch_header,
)

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


def read_transaction_index(directory: str, base_offset: int) -> TransactionIndex:
    """The transaction index of a segment, empty without a file. Raises DecodeError and OSError."""
    try:
        with open(offset_file(directory, base_offset, TRANSACTION_INDEX), "rb") as file:
            return TransactionIndex(file.read())
    except FileNotFoundError:
        return TransactionIndex()
