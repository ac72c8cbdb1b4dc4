"""The log of one partition: append, read, search by time, delete.

Owns the segments of the log and the order of steps: validate, assign offsets, write, then update
the state in memory; and the arithmetic of ``segment.*`` and ``retention.*``. It must never know
clients, sockets or event loops; it is called by one thread and is given the time. Invariant:
offsets from ``log_start_offset`` up to ``log_end_offset`` are readable, and a batch for which
``append`` has returned survives a process crash; segments are adjacent, only the last one grows,
and they are deleted from the oldest on. Kafka's ``UnifiedLog``, ``LocalLog`` and ``LogSegments``.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from minibroker.broker.log.checkpoint import Checkpoint, create_directory, write_checkpoint
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError, StorageFailed, ignore_failure
from minibroker.broker.log.paths import (
    ANY_INODE,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    open_segment,
    partition_directory,
    remove_files,
)
from minibroker.broker.log.producers import (
    NO_GUARD,
    AbortedTransaction,
    Guard,
    ProducerTable,
    remove_unused_snapshots,
    write_snapshot,
)
from minibroker.broker.log.recovery import Recovered, recover
from minibroker.broker.log.segment import (
    ActiveSegment,
    Segment,
    SegmentEnd,
    SegmentExtent,
    SegmentFiles,
    TimestampOffset,
)
from minibroker.broker.log.validation import Origin, PreparedBatch, prepare_batch, prepare_marker
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.records import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    Buffer,
    TimestampType,
    stamped_header,
)
from minibroker_protocol.types import Uuid


class FileSlice:
    """``length`` bytes of the file ``path`` from ``position``, both in bytes, which are not copied.

    Immutable and cheap to pickle. ``len()`` is the length, so that an encoder can use it in place
    of the bytes. It never refers to the cleaned copy of its file. A slice of ``FileRecords``.
    """

    __slots__ = ("inode", "length", "path", "position")

    path: str
    position: int
    length: int
    inode: int

    def __init__(self, path: str, position: int, length: int, inode: int = ANY_INODE) -> None:
        self.path = path
        self.position = position
        self.length = length
        self.inode = inode

    def __len__(self) -> int:
        return self.length

    def load(self) -> bytes:
        """Read the bytes; shorter than ``length`` only if the file has shrunk. Raises OSError."""
        fd = open_segment(self.path, self.inode)
        try:
            return os.pread(fd, self.length, self.position)
        finally:
            os.close(fd)

    def __reduce__(self) -> tuple[type[FileSlice], tuple[str, int, int, int]]:
        return FileSlice, (self.path, self.position, self.length, self.inode)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileSlice) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash((self.path, self.position, self.length, self.inode))

    def __repr__(self) -> str:
        return f"FileSlice({self.path!r}, {self.position}, {self.length})"


class Appended(NamedTuple):
    """Result of an append. ``log_append_time_ms`` is -1 if the topic keeps create times."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


class LogSegments:
    """The segments of one log. Methods that read files raise OSError and DecodeError."""

    def __init__(self, sealed: list[Segment], active: ActiveSegment) -> None:
        self.active = active
        self._sealed = sealed
        self._bases = [segment.base_offset for segment in sealed]

    def __len__(self) -> int:
        return len(self._sealed) + 1

    def __iter__(self) -> Iterator[Segment]:
        yield from self._sealed
        yield self.active

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._sealed) + self.active.size

    @property
    def base_offsets(self) -> tuple[int, ...]:
        return (*self._bases, self.active.base_offset)

    @property
    def sealed(self) -> tuple[Segment, ...]:
        return tuple(self._sealed)

    def roll_to(self, active: ActiveSegment) -> None:
        """Seal the active segment, whose indexes must be finished, and continue with a new one."""
        self._sealed.append(self.active.seal())
        self._bases.append(self.active.base_offset)
        self.active = active

    def remove_first(self, count: int) -> list[int]:
        """Remove the first sealed segments; return their base offsets."""
        removed = self._bases[:count]
        del self._sealed[:count], self._bases[:count]
        return removed

    def replace(self, replaced: Sequence[Segment], cleaned: Segment) -> None:
        """Put a cleaned segment in the place of adjacent sealed ones."""
        first = self._sealed.index(replaced[0])
        end = first + len(replaced)
        self._sealed[first:end] = [cleaned]
        self._bases[first:end] = [cleaned.base_offset]

    def sync_sealed(self, recovery_point: int) -> None:
        """Write the sealed segments from the recovery point on to the disk (fsync)."""
        for segment in self._sealed_from(recovery_point):
            segment.sync()

    def sealed_files(self, recovery_point: int) -> list[str]:
        """The records' files of the segments that ``sync_sealed`` writes to the disk."""
        return [segment.path for segment in self._sealed_from(recovery_point)]

    def _sealed_from(self, offset: int) -> list[Segment]:
        return self._sealed[bisect_right(self._bases, offset - 1) :]

    def next_base_offset(self, offset: int) -> int | None:
        """Base offset of the segment after the one with ``offset``, None after the last one."""
        bases = self.base_offsets
        following = bisect_right(bases, offset)
        return bases[following] if following < len(bases) else None

    def read(
        self, offset: int, max_bytes: int, end_offset: int | None, *, min_one: bool
    ) -> tuple[Segment, FileSlice]:
        """The slice that ``Log.read`` describes, and its segment."""
        segment, position, first_size = self._locate(offset)
        end = segment.size
        if end_offset is not None:
            last, end_position, _ = self._locate(end_offset)
            if last is segment:
                end = end_position
        length = min(end - position, max(max_bytes, first_size) if min_one else max_bytes)
        return segment, FileSlice(
            segment.path, position, length if length >= first_size else 0, segment.inode
        )

    def _locate(self, offset: int) -> tuple[Segment, int, int]:
        """(segment, position, size) of the first batch that ends at or after ``offset``."""
        active = self.active
        if offset < active.base_offset:
            for segment in self._sealed[bisect_right(self._bases, offset) - 1 :]:
                extent = segment.locate(offset)
                if extent is not None:
                    return segment, *extent
        extent = active.locate(offset)
        if extent is None:
            raise DecodeError(f"no batch at or after offset {offset}", 0)
        return active, *extent

    def aborted_transactions(
        self, segment: Segment, piece: FileSlice, offset: int, end_offset: int
    ) -> list[AbortedTransaction]:
        """Aborted transactions with records in a slice of ``segment`` that starts at ``offset``.

        ``end_offset`` is the last stable offset. The list may contain further transactions that
        start soon after the slice.
        """
        end = min(end_offset, segment.offset_bound(piece.position + piece.length))
        result: list[AbortedTransaction] = []
        first = bisect_right(self._bases, segment.base_offset - 1)
        for each in (*self._sealed[first:], self.active):
            if each.aborted_count:
                overlapping, is_complete = each.aborted_transactions(offset, end)
                result += overlapping
                if is_complete:
                    break
        return result

    def find_by_timestamp(self, timestamp_ms: int, start: int) -> TimestampOffset | None:
        """The first record from offset ``start`` on with at least this timestamp."""
        for segment in self:
            if segment.max_timestamp >= timestamp_ms and segment.next_offset > start:
                result = segment.find_by_timestamp(timestamp_ms, start)
                if result is not None:
                    return result
        return None

    def find_max_timestamp(self) -> TimestampOffset | None:
        """The record with the largest timestamp."""
        return max(self, key=lambda segment: segment.max_timestamp).find_max_timestamp()


class DroppedSegments:
    """The dropped segments of one directory. Times are epoch milliseconds."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pending: list[tuple[int, int]] = []
        self._replaced: list[tuple[int, str]] = []

    def add(self, base_offsets: Iterable[int], due_ms: int) -> None:
        """Remove the files of these segments at ``due_ms``."""
        self._pending += ((due_ms, base_offset) for base_offset in base_offsets)

    def add_replaced(self, paths: Iterable[str], due_ms: int) -> None:
        """Remove the renamed files of segments that were replaced by cleaned ones."""
        self._replaced += ((due_ms, path) for path in paths)

    def remove_due(self, now_ms: int) -> None:
        """Remove the files that are due. Raises OSError."""
        remaining = []
        for due_ms, base_offset in self._pending:
            if due_ms <= now_ms:
                self._remove(base_offset)
            else:
                remaining.append((due_ms, base_offset))
        self._pending = remaining
        due = [path for due_ms, path in self._replaced if due_ms <= now_ms]
        self._replaced = [each for each in self._replaced if each[0] > now_ms]
        _unlink(due)

    def remove_all(self) -> None:
        """Remove all files now. Raises OSError."""
        for _, base_offset in self._pending:
            self._remove(base_offset)
        _unlink(path for _, path in self._replaced)
        self._pending, self._replaced = [], []

    def _remove(self, base_offset: int) -> None:
        remove_files(self._directory, base_offset, (*SEGMENT_SUFFIXES, SNAPSHOT))


def _unlink(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)


__all__ = ["Log", "Origin", "TimestampOffset"]


def count_expired(
    segments: Sequence[SegmentExtent], config: LogConfig, *, log_start_offset: int, now_ms: int
) -> int:
    """The number of segments to delete, from the oldest on."""
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= log_start_offset:
        count += 1
    if not config.delete:
        return count
    count += _count_over_size(segments[count:], config.retention_bytes)
    if config.retention_ms >= 0:
        while count < len(segments) and now_ms - segments[count].latest_ms > config.retention_ms:
            count += 1
    if count == len(segments) and segments[-1].size == 0:
        count -= 1
    return count


def _count_over_size(segments: Sequence[SegmentExtent], retention_bytes: int) -> int:
    """The number of oldest segments without which ``retention_bytes`` still remain."""
    if retention_bytes < 0:
        return 0
    surplus = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    while count < len(segments) and surplus >= segments[count].size:
        surplus -= segments[count].size
        count += 1
    return count


class Log:
    """A partition's log, created by ``Log.open``. Used by a single thread."""

    def __init__(
        self,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        recovered: Recovered,
        *,
        files: SegmentFiles,
        now_ms: int,
        on_failure: StorageFailed = ignore_failure,
    ) -> None:
        self.directory = directory
        self._files = files
        self.topic = topic
        self.partition = partition
        self.config = config
        self.log_start_offset = recovered.log_start_offset
        self.truncation = recovered.truncation
        """The data that recovery removed when the log was opened, if any."""
        self._on_failure = on_failure
        self.opened_clean = recovered.clean
        """Whether the log had been closed in order, so that it needed no recovery."""
        self.segments = LogSegments(recovered.sealed, recovered.active)
        self.producers = recovered.producers
        """States of idempotent and transactional producers."""
        self.leader_epochs = recovered.epochs
        self.epoch_file = recovered.epoch_file
        self.recovery_point = recovered.recovery_point
        self._flushed_offset = self.log_end_offset if recovered.clean else recovered.recovery_point
        self._flushed_ms = now_ms
        self._clean = (self.log_end_offset, recovered.active.size) if recovered.clean else None
        """(log end offset, active segment's size) in the checkpoint. Appends do not remove it."""
        self.dropped = DroppedSegments(directory)
        self.is_open = True

    @classmethod
    def open(
        cls,
        data_dir: str | os.PathLike[str],
        topic: str,
        partition: int,
        config: LogConfig,
        *,
        now_ms: int,
        topic_id: Uuid | None = None,
        files: SegmentFiles | None = None,
        on_failure: StorageFailed = ignore_failure,
    ) -> Log:
        """Open or create ``<data_dir>/<topic>-<partition>``, recovering it if needed.

        ``now_ms`` is wall time; ``files`` may be shared by logs; ``on_failure`` is called when a
        file cannot be read or written. Raises LogError INCONSISTENT_TOPIC_ID if the directory
        belongs to another topic of this name, KAFKA_STORAGE_ERROR if it is a symbolic link or was
        not created by a broker, and OSError.
        """
        directory = partition_directory(data_dir, topic, partition)
        create_directory(directory, topic_id)
        files = SegmentFiles() if files is None else files
        try:
            recovered = recover(directory, config, files, now_ms=now_ms)
        except BaseException:
            files.close_directory(directory)
            raise
        log = cls(
            *(directory, topic, partition, config, recovered),
            files=files,
            now_ms=now_ms,
            on_failure=on_failure,
        )
        if not recovered.clean:
            try:
                log._checkpoint(sync=False)
            except OSError as error:
                on_failure(directory, error)
        return log

    @property
    def log_end_offset(self) -> int:
        """The offset of the next record."""
        return self.segments.active.next_offset

    @property
    def size(self) -> int:
        """Bytes of all segments that are still readable."""
        return self.segments.size

    def append(
        self,
        records: Buffer,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        leader_epoch: int = 0,
    ) -> Appended:
        """Append the one batch in ``records``, which is neither changed nor kept.

        Raises LogError with Kafka's error code; the log is then unchanged.
        """
        prepared = prepare_batch(records, self.config, now_ms=now_ms, origin=origin)
        return self.append_prepared(
            prepared, now_ms=now_ms, origin=origin, leader_epoch=leader_epoch
        )

    def append_prepared(
        self,
        prepared: PreparedBatch,
        *,
        now_ms: int,
        origin: Origin = Origin.CLIENT,
        leader_epoch: int = 0,
        guard: Guard = NO_GUARD,
    ) -> Appended:
        """Append a batch that ``prepare_batch`` returned for this log's config.

        ``guard`` is that of the verification of a transactional batch.
        """
        header = prepared.header
        if header.producer_id >= 0:
            if self.config.unknown_producer_error and origin is Origin.CLIENT:
                self.producers.check_known(header, self.config.unknown_producer_error)
            duplicate = self.producers.check(header, origin, guard)
            if duplicate is not None:
                # The largest timestamp of the earlier batch, as in Kafka.
                return Appended(
                    duplicate.first_offset,
                    duplicate.last_offset,
                    duplicate.timestamp,
                    self.log_start_offset,
                    duplicate=True,
                )
        try:
            return self._write(prepared, now_ms, leader_epoch)
        except OSError as error:
            raise self.storage_error("written", error) from error

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: EndTransactionMarker,
        *,
        transaction_version: int,
        now_ms: int,
        leader_epoch: int = 0,
    ) -> Appended:
        """End a producer's transaction. Raises LogError as ``ProducerTable.check_marker``."""
        self.producers.check_marker(producer_id, producer_epoch, marker, transaction_version)
        prepared = prepare_marker(producer_id, producer_epoch, marker, now_ms)
        with self._storage_errors("written"):
            return self._write(prepared, now_ms, leader_epoch, marker)

    def _write(
        self,
        prepared: PreparedBatch,
        now_ms: int,
        leader_epoch: int,
        marker: EndTransactionMarker | None = None,
    ) -> Appended:
        config = self.config
        records, header, max_timestamp = prepared
        active = self.segments.active
        base_offset = active.next_offset
        last_offset = base_offset + header.last_offset_delta
        is_append_time = config.timestamp_type is not TimestampType.CREATE_TIME
        if is_append_time:
            max_timestamp = now_ms
        if active.must_roll(
            config,
            batch_size=header.size,
            last_offset=last_offset,
            max_timestamp=max_timestamp,
            now_ms=now_ms,
        ):
            self.roll(now_ms=now_ms)
            active = self.segments.active
        head = stamped_header(
            records,
            header,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            max_timestamp=max_timestamp,
            is_log_append_time=is_append_time,
        )
        is_flush_due = last_offset + 1 - self._flushed_offset >= config.flush_messages
        if is_flush_due:
            self.segments.sync_sealed(self.recovery_point)
        active.write(head, memoryview(records)[HEADER_BYTES : header.size], sync=is_flush_due)
        active.record_batch(
            base_offset,
            last_offset,
            header.size,
            max_timestamp,
            index_interval_bytes=config.index_interval_bytes,
        )
        active.modified_ms = now_ms
        if header.producer_id >= 0:
            aborted = self.producers.record(header, last_offset, max_timestamp, marker)
            if aborted is not None:
                active.record_aborted(aborted)
        self.producers.end_offset = last_offset + 1
        if leader_epoch != self.leader_epochs.latest_epoch:
            self.assign_leader_epoch(leader_epoch, base_offset)
        if is_flush_due:
            with suppress(LogError):  # The batch is on the disk; the next flush writes the rest.
                self._finish_flush(now_ms)
        log_append_time_ms = now_ms if is_append_time else NO_TIMESTAMP
        return Appended(base_offset, last_offset, log_append_time_ms, self.log_start_offset, False)

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Let a leader epoch start at an offset, in memory and in its checkpoint file.

        An error of the file is reported; writing is retried before the next checkpoint.
        """
        self.leader_epochs.assign(epoch, start_offset)
        try:
            self.epoch_file.write(self.leader_epochs)
        except OSError as error:
            self._on_failure(self.directory, error)

    def read(
        self, offset: int, max_bytes: int, *, min_one: bool = True, end_offset: int | None = None
    ) -> FileSlice | None:
        """At most ``max_bytes`` from the batch with ``offset`` on; None at the end.

        The end is ``end_offset``, the start of a batch, or the log end offset if None. With
        ``min_one`` the slice contains the first batch even if it is larger; otherwise the slice is
        then empty. The slice stays within one segment, and its last batch may be incomplete.
        Raises LogError OFFSET_OUT_OF_RANGE.
        """
        found = self._read(offset, max_bytes, end_offset, min_one)
        return None if found is None else found[1]

    def read_committed(
        self, offset: int, max_bytes: int, last_stable_offset: int, *, min_one: bool = True
    ) -> tuple[FileSlice | None, list[AbortedTransaction]]:
        """As ``read`` up to the last stable offset, and the aborted transactions in the slice."""
        found = self._read(offset, max_bytes, last_stable_offset, min_one)
        if found is None:
            return None, []
        with self._storage_errors("searched"):
            segment, piece = found
            return piece, self.segments.aborted_transactions(
                segment, piece, offset, last_stable_offset
            )

    def _read(
        self, offset: int, max_bytes: int, end_offset: int | None, min_one: bool
    ) -> tuple[Segment, FileSlice] | None:
        log_end_offset = self.segments.active.next_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic}-{self.partition} is outside"
                f" [{self.log_start_offset}, {log_end_offset}]",
            )
        if offset >= (log_end_offset if end_offset is None else end_offset):
            return None
        if end_offset == log_end_offset:
            end_offset = None
        try:
            return self.segments.read(offset, max_bytes, end_offset, min_one=min_one)
        except (OSError, DecodeError) as error:
            raise self.storage_error("read", error) from error

    def offset_for_time(
        self, timestamp_ms: int, first_offset: int | None = None
    ) -> TimestampOffset | None:
        """The first record with a timestamp of at least ``timestamp_ms``, or None.

        The search starts at ``first_offset`` or the log start. Raises LargeBatchError if a batch
        must be searched outside the loop.
        """
        start = self.log_start_offset if first_offset is None else first_offset
        with self._storage_errors("searched"):
            return self.segments.find_by_timestamp(timestamp_ms, start)

    def max_timestamp(self) -> TimestampOffset | None:
        """The record with the largest timestamp; None if no record has one (KIP-734).

        Raises LargeBatchError if a batch must be searched outside the loop.
        """
        with self._storage_errors("searched"):
            return self.segments.find_max_timestamp()

    def next_segment_offset(self, offset: int) -> int:
        """Base offset of the segment after the one with ``offset``, or the log end offset."""
        following = self.segments.next_base_offset(offset)
        return self.log_end_offset if following is None else following

    def roll(self, *, now_ms: int) -> None:
        """Start a new segment at the log end, unless the last one is empty.

        Raises LogError KAFKA_STORAGE_ERROR.
        """
        if self.segments.active.size:
            with self._storage_errors("rolled"):
                self._roll(now_ms)

    def _roll(self, now_ms: int) -> None:
        # In this order, so that no empty file with this offset remains if sealing fails.
        self.segments.active.finish_indexes()
        end_offset = self.log_end_offset
        new_active = ActiveSegment(self.directory, end_offset, self._files, now_ms=now_ms)
        self.segments.roll_to(new_active)
        write_snapshot(self.directory, self.producers)
        self._checkpoint(sync=False)

    def delete_records(self, before_offset: int) -> int:
        """Move the log start up to ``before_offset``, never back; returns the log start.

        The next ``apply_retention`` removes segments that end below it. Raises LogError
        OFFSET_OUT_OF_RANGE past the log end.
        """
        if not 0 <= before_offset <= self.log_end_offset:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"records of {self.topic}-{self.partition} can't be deleted before offset"
                f" {before_offset}; the log ends at {self.log_end_offset}",
            )
        if before_offset > self.log_start_offset:
            self.log_start_offset = before_offset
            self.leader_epochs.truncate_from_start(before_offset)
            with self._storage_errors("shortened"):
                self._checkpoint(sync=False)
        return self.log_start_offset

    def apply_retention(self, *, now_ms: int) -> int:
        """Drop the expired segments and return their number. Called periodically.

        Also removes the files of segments whose delay has passed.
        """
        with self._storage_errors("shortened"):
            self.dropped.remove_due(now_ms)
            extents = [segment.extent for segment in self.segments]
            start = self.log_start_offset
            count = count_expired(extents, self.config, log_start_offset=start, now_ms=now_ms)
            if count:
                self._drop_segments(count, now_ms)
        return count

    def expire_producers(self, *, now_ms: int) -> int:
        """Expire idle producers and return their number. Called periodically."""
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    def _drop_segments(self, count: int, now_ms: int) -> None:
        if count == len(self.segments):
            self._roll(now_ms)
        removed = self.segments.remove_first(count)
        self.dropped.add(removed, now_ms + self.config.file_delete_delay_ms)
        first = self.segments.base_offsets[0]
        self.log_start_offset = max(self.log_start_offset, first)
        self.leader_epochs.truncate_from_start(self.log_start_offset)
        self.recovery_point = max(self.recovery_point, first)
        try:
            self._checkpoint(sync=False)
        except OSError as error:
            # Recovery finds the start by the segments. On a full disk, files must be removed.
            self._on_failure(self.directory, error)
        self.dropped.remove_due(now_ms)

    def truncate_to(self, end: SegmentEnd, producers: ProducerTable) -> None:
        """Return to an end that the active segment had, with the producers of then. Raises OSError.

        For the return to a snapshot: consumers may have read what is removed.
        """
        self._clean = None
        self.segments.active.truncate_to(end)
        self.producers = producers
        self._flushed_offset = min(self._flushed_offset, end.next_offset)

    def is_flush_due(self, *, now_ms: int) -> bool:
        """Whether flush.ms has passed with unflushed records, or a segment was rolled."""
        if self.recovery_point < self.segments.active.base_offset:
            return True
        unflushed = self.log_end_offset > self._flushed_offset
        return unflushed and now_ms - self._flushed_ms >= self.config.flush_ms

    def unflushed_files(self) -> list[str]:
        """The records' files that ``flush`` writes to the disk, which a thread can do before."""
        return [*self.segments.sealed_files(self.recovery_point), self.segments.active.path]

    def flush(self, *, now_ms: int) -> None:
        """Write all records to the disk (fsync). Raises LogError KAFKA_STORAGE_ERROR."""
        with self._storage_errors("flushed"):
            self.segments.sync_sealed(self.recovery_point)
            self.segments.active.sync()
        self._finish_flush(now_ms)

    def _finish_flush(self, now_ms: int) -> None:
        """Write index entries and the checkpoint, after the records."""
        active = self.segments.active
        with self._storage_errors("flushed"):
            active.write_indexes()
            if self.recovery_point < active.base_offset:
                self.epoch_file.write(self.leader_epochs, sync=True)
                self.recovery_point = active.base_offset
                self._checkpoint(sync=True)
                self._remove_unused_snapshots()
        self._flushed_offset = self.log_end_offset
        self._flushed_ms = now_ms

    def close(self, *, now_ms: int) -> None:
        """Flush, and record the clean shutdown in the checkpoint. A second call does nothing.

        Raises LogError KAFKA_STORAGE_ERROR; the log is closed nevertheless.
        """
        if not self.is_open:
            return
        try:
            with self._storage_errors("closed"):
                active = self.segments.active
                clean = (self.log_end_offset, active.size)
                if clean == self._clean:
                    return
                self.dropped.remove_all()
                active.finish_indexes()
                if self.log_end_offset > self._flushed_offset:
                    self.flush(now_ms=now_ms)
                write_snapshot(self.directory, self.producers)
                self.epoch_file.write(self.leader_epochs, sync=True)
                self._remove_unused_snapshots()
                self._checkpoint(sync=True, clean=clean)
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the files without writing anything, as a process crash does."""
        self.is_open = False
        self.segments.active.close()

    def _remove_unused_snapshots(self) -> None:
        point = self.recovery_point
        starts = (point, *self.segments.base_offsets)
        remove_unused_snapshots(self.directory, {start for start in starts if start >= point})

    def _checkpoint(self, *, sync: bool, clean: tuple[int, int] | None = None) -> None:
        self._clean = None
        checkpoint = Checkpoint(self.log_start_offset, self.recovery_point, clean, self.producers)
        write_checkpoint(self.directory, checkpoint, sync=sync)

    @contextmanager
    def _storage_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except (OSError, DecodeError) as error:
            raise self.storage_error(operation, error) from error

    def storage_error(self, operation: str, error: Exception) -> LogError:
        """Report an error of a file; returns the error of the operation that failed by it."""
        if isinstance(error, OSError):
            self._on_failure(self.directory, error)
        text = f"{self.directory} can't be {operation}: {error}"
        return LogError(ErrorCode.KAFKA_STORAGE_ERROR, text)
