"""The segments of a log: files of record batches with two sparse indexes, sealed or growing.

Owns the search for batches in a file and for a record by its timestamp in a batch, the positions of
the newest batches, when index entries are made, and which files are open. It must never know
producers or retention. A search inside a batch takes time in proportion to it, and memory up to
``DECOMPRESSED_MAX_BYTES``; one that would take the loop too long is left to a thread.

``OffsetIndex`` and ``TimeIndex`` are Kafka's ``.index`` (offset to file position, 8 bytes an entry)
and ``.timeindex`` (timestamp to offset, 12 bytes an entry). A growing index is two arrays. Its
owner decides when to write them, because an index that is lost or outdated is rebuilt from the
segment. A sealed index is searched in its file, entry by entry: about 17 reads of 12 bytes for a
full one, and nothing is kept in memory or open.

``SegmentFiles`` keeps the most recently used active segments of a worker open, of which there may
be far more than descriptors; a closed file is opened again by its path. Kafka keeps all files open;
PostgreSQL has the same cache as its virtual file descriptors.

Invariant: entries of an index only grow, in both columns; a lookup gives the last entry at or below
the requested key. ``size`` covers complete batches only, ``max_timestamp`` is the largest in any of
them; what is behind them in an active file is overwritten by the next batch. Of a sealed segment no
file stays open, and each path has at most one descriptor. Echoes ``LogSegment``, ``FileRecords``,
``OffsetIndex`` and ``TimeIndex``.
"""

from __future__ import annotations

import errno
import os
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from struct import Struct
from typing import Final, NamedTuple

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.paths import (
    ANY_INODE,
    LOG,
    OFFSET_INDEX,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_file,
    opened,
    write_file,
)
from minibroker.broker.log.producers import (
    TRANSACTION_ENTRY,
    AbortedTransaction,
    TransactionIndex,
    search_transaction_index,
)
from minibroker.broker.log.validation import DECOMPRESSED_MAX_BYTES, STEP_BYTES_MAX
from minibroker.runtime.system import OUT_OF_DESCRIPTORS
from minibroker_protocol.compression import Compression
from minibroker_protocol.control_records import EndTransactionMarker, parse_marker
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    TimestampType,
    parse_batch_header,
    read_varint,
    records_section,
)

SEARCH_STEP_RECORDS_MAX: Final = 1000
"""Records that are searched in one step of a worker's loop: about half a millisecond."""


class TimestampOffset(NamedTuple):
    """The result of a search by time; ``leader_epoch`` is the batch's, or -1 if it has none."""

    timestamp: int
    offset: int
    leader_epoch: int


class TimeQuery(NamedTuple):
    """A search for the first record from ``first_offset`` on with at least this timestamp (ms)."""

    timestamp: int
    first_offset: int = 0


class LargeBatchError(Exception):
    """The batch is too large for the loop: call ``search`` in a thread."""

    def __init__(self, data: bytes, header: BatchHeader, query: TimeQuery) -> None:
        super().__init__(header.record_count)
        self._data = data
        self._header = header
        self._query = query
        self.next_offset = header.next_offset

    def search(self) -> TimestampOffset | None:
        """The record, or None if the batch has none."""
        return _search_records(self._data, self._header, self._query, DECOMPRESSED_MAX_BYTES)


def search_in_step(data: bytes, header: BatchHeader, query: TimeQuery) -> TimestampOffset | None:
    """Search a batch; raises LargeBatchError if that would take the loop too long."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return _search_log_append_time(header, query)
    if header.record_count > SEARCH_STEP_RECORDS_MAX:
        raise LargeBatchError(data, header, query)
    if header.codec == Compression.NONE:
        return _search_records(data, header, query, DECOMPRESSED_MAX_BYTES)
    try:
        return _search_records(data, header, query, STEP_BYTES_MAX)
    except DecodeError:
        raise LargeBatchError(data, header, query) from None


def _search_log_append_time(header: BatchHeader, query: TimeQuery) -> TimestampOffset | None:
    offset = max(header.base_offset, query.first_offset)
    if header.max_timestamp < query.timestamp or offset > header.last_offset:
        return None
    return TimestampOffset(header.max_timestamp, offset, header.partition_leader_epoch)


def _search_records(
    data: bytes, header: BatchHeader, query: TimeQuery, limit: int
) -> TimestampOffset | None:
    epoch = header.partition_leader_epoch
    try:
        found = _first_record(
            bytes(records_section(data, header, limit)),
            header.record_count,
            query.timestamp - header.base_timestamp,
            query.first_offset - header.base_offset,
        )
    except DecodeError:
        if limit != DECOMPRESSED_MAX_BYTES:
            raise
        # An earlier version stored it without checking its records. Later batches must be found.
        return TimestampOffset(header.max_timestamp, header.last_offset, epoch)
    if found is None:
        return None
    time_delta, offset_delta = found
    return TimestampOffset(
        header.base_timestamp + time_delta, header.base_offset + offset_delta, epoch
    )


def _first_record(
    data: bytes, count: int, time_from: int, offset_from: int
) -> tuple[int, int] | None:
    """The deltas of the first of ``count`` records with at least these; only they are read.

    Varints of one byte are read in place: a call would take longer than the rest of a record.
    """
    at = 0
    try:
        for _ in range(count):
            byte = data[at]
            if byte < 0x80:
                end = at + 1 + (byte >> 1)
                at += 2  # The attributes, too.
            else:
                length, at = read_varint(data, at)
                end = at + length
                at += 1
            time_delta = data[at]
            if time_delta < 0x80:
                time_delta = (time_delta >> 1) ^ -(time_delta & 1)
                at += 1
            else:
                time_delta, at = read_varint(data, at)
            if end <= at:
                raise DecodeError(f"a record ends at {end}, before its fields", at)
            if time_delta >= time_from:
                offset_delta, at = read_varint(data, at)
                if offset_delta >= offset_from:
                    return time_delta, offset_delta
            at = end
    except IndexError:
        raise DecodeError("a record is cut off", at) from None
    return None


RELATIVE_OFFSET_MAX: Final = 2**31 - 1


class SegmentExtent(NamedTuple):
    """Extent of a segment; ``latest_ms`` is the timestamp of its newest record, in epoch ms."""

    base_offset: int
    size: int
    latest_ms: int


OPEN_MAX: Final = 128
"""Descriptors of a log that is opened outside of a worker."""

WriteFault = Callable[[int, str, tuple[bytes, memoryview], int], None]
"""Called with the descriptor, the log's directory, head and body of the batch, and the position;
may raise ``OSError``.
"""

_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC
_MODE: Final = 0o644


def sync_files(paths: Iterable[str]) -> None:
    """Write files to the disk (fsync), except those that are gone. Raises OSError."""
    for path in paths:
        with suppress(FileNotFoundError), opened(path) as fd:
            os.fsync(fd)


class SegmentFiles:
    """Descriptors by path, the least recently used first. For one thread."""

    def __init__(self, limit: int = OPEN_MAX) -> None:
        if limit < 1:
            raise ValueError(f"at least one file must be open, not {limit}")
        self.limit = limit
        self._descriptors: OrderedDict[str, int] = OrderedDict()
        self.write_fault: WriteFault | None = None
        """Called before each batch is written, for a test that lets writes fail."""

    def __len__(self) -> int:
        return len(self._descriptors)

    def create(self, path: str) -> int:
        """The descriptor of a file that is created if it does not exist. Raises OSError."""
        fd = self._descriptors.get(path)
        return self._open(path, _FLAGS | os.O_CREAT) if fd is None else fd

    def descriptor(self, path: str) -> int:
        """The descriptor of an existing file, valid until the next call. Raises OSError."""
        fd = self._descriptors.get(path)
        if fd is None:
            return self._open(path, _FLAGS)
        self._descriptors.move_to_end(path)
        return fd

    def _open(self, path: str, flags: int) -> int:
        self._shrink(self.limit - 1)
        try:
            fd = os.open(path, flags, _MODE)
        except OSError as error:
            if error.errno not in OUT_OF_DESCRIPTORS or not self._descriptors:
                raise
            # Other files of this process use more descriptors than expected.
            self._shrink(len(self._descriptors) // 2)
            fd = os.open(path, flags, _MODE)
        self._descriptors[path] = fd
        return fd

    def _shrink(self, count: int) -> None:
        while len(self._descriptors) > count:
            _, descriptor = self._descriptors.popitem(last=False)
            os.close(descriptor)

    def close(self, path: str) -> None:
        """Close a file if it is open. Call it before the file is renamed or removed."""
        descriptor = self._descriptors.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def close_all(self) -> None:
        """Close all files; those that are used later are opened again."""
        self._shrink(0)

    def close_directory(self, directory: str) -> None:
        """Close all files of one directory, for example of a log that could not be opened."""
        for path in [path for path in self._descriptors if os.path.dirname(path) == directory]:
            self.close(path)


OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")


class OffsetIndex:
    """Last offsets of some batches of a growing segment, and the positions of those batches."""

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def append(self, last_offset: int, position: int) -> None:
        self._offsets.append(last_offset - self._base)
        self._positions.append(position)

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` entries."""
        del self._offsets[count:], self._positions[count:]

    def position(self, offset: int) -> int:
        """The file position from which to search for the batch with ``offset``."""
        slot = bisect_right(self._offsets, offset - self._base) - 1
        return self._positions[slot] if slot >= 0 else 0

    def offset_at(self, position: int) -> int | None:
        """The offset of the first entry at or after a file position, or None."""
        slot = bisect_left(self._positions, position)
        return self._base + self._offsets[slot] if slot < len(self._offsets) else None

    def encode(self, first: int = 0) -> bytes:
        """The file's bytes from entry ``first`` on."""
        return b"".join(map(OFFSET_ENTRY.pack, self._offsets[first:], self._positions[first:]))

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> OffsetIndex:
        """Read a whole file. Raises DecodeError when the entries don't grow."""
        index = cls(base_offset)
        index._offsets, index._positions = _columns(OFFSET_ENTRY, data, "i")
        return index


class TimeIndex:
    """A growing segment's largest timestamps so far, and the last offset of the batch with each."""

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; NO_TIMESTAMP when there is none."""
        if not self._timestamps:
            return NO_TIMESTAMP, self._base
        return self._timestamps[-1], self._base + self._offsets[-1]

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry unless the timestamp is no later than the last one's."""
        if timestamp > (self._timestamps[-1] if self._timestamps else NO_TIMESTAMP):
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self._base)

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` entries."""
        del self._timestamps[count:], self._offsets[count:]

    def offset(self, timestamp: int) -> int:
        """The offset from which to search for the first batch with at least this timestamp."""
        slot = bisect_right(self._timestamps, timestamp) - 1
        return self._base + (self._offsets[slot] if slot >= 0 else 0)

    def encode(self, first: int = 0) -> bytes:
        """The file's bytes from entry ``first`` on."""
        return b"".join(map(TIME_ENTRY.pack, self._timestamps[first:], self._offsets[first:]))

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> TimeIndex:
        """Read a whole file. Raises DecodeError when the entries don't grow."""
        index = cls(base_offset)
        index._timestamps, index._offsets = _columns(TIME_ENTRY, data, "q")
        return index


def _columns(entry: Struct, data: bytes, key_type: str) -> tuple[array[int], array[int]]:
    if len(data) % entry.size:
        raise DecodeError(f"an index of {len(data)} bytes ends inside an entry", len(data))
    keys, values = array(key_type), array("i")
    for key, value in entry.iter_unpack(data):
        keys.append(key)
        values.append(value)
    for slot, (previous_key, key) in enumerate(pairwise(keys)):
        if previous_key >= key:
            raise DecodeError(f"index entry {slot + 1} is not above the previous entry", slot)
    return keys, values


def _read_entry(fd: int, entry: Struct, slot: int) -> tuple[int, int]:
    key, value = entry.unpack(os.pread(fd, entry.size, slot * entry.size))
    return key, value


def _count_entries(fd: int, entry: Struct) -> int:
    size = os.fstat(fd).st_size
    return size // entry.size


def search_file(path: str, entry: Struct, key: int) -> int | None:
    """The value of the last entry in an index file whose key is at most ``key``, or None."""
    with opened(path) as fd:
        slots = range(_count_entries(fd, entry))
        after = bisect_right(slots, key, key=lambda slot: _read_entry(fd, entry, slot)[0])
        return _read_entry(fd, entry, after - 1)[1] if after else None


def search_by_value(path: str, entry: Struct, value: int) -> int | None:
    """The key of the first entry in an index file whose value is at least ``value``, or None."""
    with opened(path) as fd:
        slots = range(_count_entries(fd, entry))
        first = bisect_left(slots, value, key=lambda slot: _read_entry(fd, entry, slot)[1])
        return _read_entry(fd, entry, first)[0] if first < len(slots) else None


def last_in_file(path: str, entry: Struct) -> tuple[int, int] | None:
    """The last entry of an index file, or None if it is empty."""
    with opened(path) as fd:
        count = _count_entries(fd, entry)
        return _read_entry(fd, entry, count - 1) if count else None


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
            with opened(self._path_of(TRANSACTION_INDEX)) as fd:
                os.fsync(fd)

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
        with opened(self.path) as fd:
            yield fd

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

    def must_roll(
        self,
        config: LogConfig,
        *,
        batch_size: int,
        last_offset: int,
        max_timestamp: int,
        now_ms: int,
    ) -> bool:
        """Whether the segment must be rolled before the batch is appended."""
        if self.size + batch_size > config.segment_bytes:
            return True
        if last_offset - self.base_offset > RELATIVE_OFFSET_MAX:
            return True
        if len(self.offset_index) >= config.segment_index_bytes // OFFSET_ENTRY.size:
            return True
        # One entry is reserved for the largest timestamp, which is added at the end.
        if len(self.time_index) >= config.segment_index_bytes // TIME_ENTRY.size - 1:
            return True
        if self.size == 0:
            return False
        if self.first_timestamp >= 0:
            age_ms = max_timestamp - self.first_timestamp
        else:
            age_ms = now_ms - self.created_ms
        max_age_ms = config.segment_ms
        if config.compact:  # Sealed in time, so that its records can be compacted.
            max_age_ms = min(max_age_ms, config.max_compaction_lag_ms)
        return age_ms > max_age_ms

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
            self._write_index(TRANSACTION_INDEX, entries, done * TRANSACTION_ENTRY.size)
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
        with opened(self._path_of(suffix), os.O_WRONLY | os.O_CREAT) as fd:
            _write_all(fd, b"", memoryview(entries), position)
            os.ftruncate(fd, position + len(entries))

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
            self._write_index(
                TRANSACTION_INDEX, b"", end.transaction_entries * TRANSACTION_ENTRY.size
            )
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
