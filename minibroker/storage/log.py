"""The log of one partition: append, read, search by time, delete.

Owns the order of steps: validate, assign offsets, write, then update the state in memory. It must
never know clients, sockets or event loops; it is called by one thread and is given the time.
Invariant: offsets from ``log_start_offset`` up to ``log_end_offset`` are readable, and a batch for
which ``append`` has returned survives a process crash. Kafka's ``UnifiedLog`` and ``LocalLog``.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from minibroker.storage.batch_search import TimestampOffset
from minibroker.storage.checkpoint import Checkpoint, claim_directory, write_checkpoint
from minibroker.storage.config import LogConfig
from minibroker.storage.dropped_segments import DroppedSegments
from minibroker.storage.errors import LogError
from minibroker.storage.failures import StorageFailed, ignore_failure
from minibroker.storage.paths import partition_directory
from minibroker.storage.producers import BatchMetadata
from minibroker.storage.recovery import Recovered, recover
from minibroker.storage.retention import count_expired, must_roll
from minibroker.storage.segment import ActiveSegment, Segment
from minibroker.storage.segment_files import SegmentFiles
from minibroker.storage.slices import FileSlice
from minibroker.storage.snapshots import remove_unused_snapshots, write_snapshot
from minibroker.storage.validation import Origin, PreparedBatch, prepare_batch
from protocol.errors import DecodeError, ErrorCode
from protocol.records import HEADER_BYTES, NO_TIMESTAMP, Buffer, TimestampType, stamped_header
from protocol.types import Uuid

__all__ = ["Appended", "Log", "Origin", "TimestampOffset"]


class Appended(NamedTuple):
    """Result of an append. ``log_append_time_ms`` is -1 if the topic keeps create times.

    For a duplicate, all fields are those of the earlier append, and the time is the largest
    timestamp of its batch, as in Kafka.
    """

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    duplicate: bool


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
        self._sealed = recovered.sealed
        self._bases = [segment.base_offset for segment in recovered.sealed]
        self._active = recovered.active
        self._producers = recovered.producers
        self.leader_epochs = recovered.epochs
        self._epoch_file = recovered.epoch_file
        self._recovery_point = recovered.recovery_point
        self._flushed_offset = self.log_end_offset if recovered.clean else recovered.recovery_point
        self._flushed_ms = now_ms
        self._clean = (self.log_end_offset, self._active.size) if recovered.clean else None
        """(log end offset, active segment's size) in the checkpoint. Appends do not remove it."""
        self._dropped = DroppedSegments(directory)
        self._open = True

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
        is_new = not os.path.lexists(directory)
        os.makedirs(directory, exist_ok=True)
        if topic_id is not None:
            try:
                claim_directory(directory, topic_id)
            except OSError:
                if is_new:  # Without a topic id no broker would ever remove it.
                    with suppress(OSError):
                        os.rmdir(directory)
                raise
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
        return self._active.next_offset

    @property
    def size(self) -> int:
        """Bytes of all segments that are still readable."""
        return sum(segment.size for segment in self._sealed) + self._active.size

    @property
    def segment_count(self) -> int:
        return len(self._sealed) + 1

    @property
    def producer_count(self) -> int:
        """Number of idempotent producers whose state is kept."""
        return len(self._producers.producers)

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
    ) -> Appended:
        """Append a batch that ``prepare_batch`` returned for this log's config."""
        header = prepared.header
        if header.producer_id >= 0 and origin is not Origin.COORDINATOR:
            duplicate = self._producers.check(header)
            if duplicate is not None:
                return self._appended_before(duplicate)
        is_create_time = self.config.timestamp_type is TimestampType.CREATE_TIME
        try:
            return self._write(prepared, now_ms, leader_epoch, None if is_create_time else now_ms)
        except OSError as error:
            raise self._storage_error("written", error) from error

    def _write(
        self, prepared: PreparedBatch, now_ms: int, leader_epoch: int, append_time_ms: int | None
    ) -> Appended:
        config = self.config
        records, header, max_timestamp = prepared
        base_offset = self._active.next_offset
        last_offset = base_offset + header.last_offset_delta
        if append_time_ms is not None:
            max_timestamp = append_time_ms
        if must_roll(
            self._active.growth,
            config,
            batch_size=header.size,
            last_offset=last_offset,
            max_timestamp=max_timestamp,
            now_ms=now_ms,
        ):
            self.roll(now_ms=now_ms)
        active = self._active
        head = stamped_header(
            records,
            header,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            max_timestamp=max_timestamp,
            is_log_append_time=append_time_ms is not None,
        )
        is_flush_due = last_offset + 1 - self._flushed_offset >= config.flush_messages
        if is_flush_due:
            self._sync_sealed()
        active.write(head, memoryview(records)[HEADER_BYTES : header.size], sync=is_flush_due)
        active.record_batch(
            base_offset,
            last_offset,
            header.size,
            max_timestamp,
            index_interval_bytes=config.index_interval_bytes,
        )
        active.modified_ms = now_ms
        if header.producer_id >= 0 and not header.is_control:
            self._producers.record(header, last_offset, max_timestamp)
        self._producers.end_offset = last_offset + 1
        if leader_epoch != self.leader_epochs.latest_epoch:
            self.assign_leader_epoch(leader_epoch, base_offset)
        if is_flush_due:
            with suppress(LogError):  # The batch is on the disk; the next flush writes the rest.
                self._finish_flush(now_ms)
        log_append_time_ms = NO_TIMESTAMP if append_time_ms is None else append_time_ms
        return Appended(base_offset, last_offset, log_append_time_ms, self.log_start_offset, False)

    def assign_leader_epoch(self, epoch: int, start_offset: int) -> None:
        """Let a leader epoch start at an offset, in memory and in its checkpoint file.

        An error of the file is reported; writing is retried before the next checkpoint.
        """
        self.leader_epochs.assign(epoch, start_offset)
        try:
            self._epoch_file.write(self.leader_epochs)
        except OSError as error:
            self._on_failure(self.directory, error)

    def _appended_before(self, batch: BatchMetadata) -> Appended:
        return Appended(
            batch.first_offset, batch.last_offset, batch.timestamp, self.log_start_offset, True
        )

    def read(
        self, offset: int, max_bytes: int, *, min_one: bool = True, end_offset: int | None = None
    ) -> FileSlice | None:
        """At most ``max_bytes`` from the batch with ``offset`` on; None at the end.

        The end is ``end_offset``, the start of a batch, or the log end offset if None. With
        ``min_one`` the slice contains the first batch even if it is larger; otherwise the slice is
        then empty. The slice stays within one segment, and its last batch may be incomplete.
        Raises LogError OFFSET_OUT_OF_RANGE.
        """
        log_end_offset = self._active.next_offset
        if not self.log_start_offset <= offset <= log_end_offset:
            raise LogError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {self.topic}-{self.partition} is outside"
                f" [{self.log_start_offset}, {log_end_offset}]",
            )
        if end_offset is None:
            end_offset = log_end_offset
        if offset >= end_offset:
            return None
        try:
            segment, position, first_size = self._locate(offset)
            end = segment.size
            if end_offset < log_end_offset:
                last, end_position, _ = self._locate(end_offset)
                if last is segment:
                    end = end_position
        except (OSError, DecodeError) as error:
            raise self._storage_error("read", error) from error
        length = min(end - position, max(max_bytes, first_size) if min_one else max_bytes)
        return FileSlice(segment.path, position, length if length >= first_size else 0)

    def _locate(self, offset: int) -> tuple[Segment, int, int]:
        """(segment, position, size) of the first batch that ends at or after ``offset``."""
        if offset < self._active.base_offset:
            for segment in self._sealed[bisect_right(self._bases, offset) - 1 :]:
                extent = segment.locate(offset)
                if extent is not None:
                    return segment, *extent
        extent = self._active.locate(offset)
        if extent is None:
            raise DecodeError(f"no batch at or after offset {offset}", 0)
        return self._active, *extent

    def offset_for_time(
        self, timestamp_ms: int, first_offset: int | None = None
    ) -> TimestampOffset | None:
        """The first record with a timestamp of at least ``timestamp_ms``, or None.

        The search starts at ``first_offset`` or the log start. Raises LargeBatchError if a batch
        must be searched outside the loop.
        """
        start = self.log_start_offset if first_offset is None else first_offset
        with self._storage_errors("searched"):
            for segment in (*self._sealed, self._active):
                if segment.max_timestamp >= timestamp_ms and segment.next_offset > start:
                    result = segment.find_by_timestamp(timestamp_ms, start)
                    if result is not None:
                        return result
        return None

    def max_timestamp(self) -> TimestampOffset | None:
        """The record with the largest timestamp; None if no record has one (KIP-734).

        Raises LargeBatchError if a batch must be searched outside the loop.
        """
        segments: tuple[Segment, ...] = (*self._sealed, self._active)
        with self._storage_errors("searched"):
            return max(segments, key=lambda segment: segment.max_timestamp).find_max_timestamp()

    def next_segment_offset(self, offset: int) -> int:
        """Base offset of the segment after the one with ``offset``, or the log end offset."""
        bases = [*self._bases, self._active.base_offset]
        following = bisect_right(bases, offset)
        return bases[following] if following < len(bases) else self.log_end_offset

    def roll(self, *, now_ms: int) -> None:
        """Start a new segment at the log end, unless the last one is empty.

        Raises LogError KAFKA_STORAGE_ERROR.
        """
        if self._active.size:
            with self._storage_errors("rolled"):
                self._roll(now_ms)

    def _roll(self, now_ms: int) -> None:
        # In this order, so that no empty file with this offset remains if sealing fails.
        self._active.finish_indexes()
        end_offset = self.log_end_offset
        new_active = ActiveSegment(self.directory, end_offset, self._files, now_ms=now_ms)
        self._sealed.append(self._active.seal())
        self._bases.append(self._active.base_offset)
        self._active = new_active
        write_snapshot(self.directory, self._producers)
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

        Also expires idle producers, and removes the files of segments whose delay has passed.
        """
        with self._storage_errors("shortened"):
            self._dropped.remove_due(now_ms)
            self._producers.expire(now_ms, self.config.producer_id_expiration_ms)
            extents = [segment.extent for segment in (*self._sealed, self._active)]
            start = self.log_start_offset
            count = count_expired(extents, self.config, log_start_offset=start, now_ms=now_ms)
            if count:
                self._drop_segments(count, now_ms)
        return count

    def _drop_segments(self, count: int, now_ms: int) -> None:
        if count > len(self._sealed):
            self._roll(now_ms)
        self._dropped.add(self._bases[:count], now_ms + self.config.file_delete_delay_ms)
        del self._sealed[:count], self._bases[:count]
        first = self._bases[0] if self._bases else self._active.base_offset
        self.log_start_offset = max(self.log_start_offset, first)
        self.leader_epochs.truncate_from_start(self.log_start_offset)
        self._recovery_point = max(self._recovery_point, first)
        try:
            self._checkpoint(sync=False)
        except OSError as error:
            # Recovery finds the start by the segments. On a full disk, files must be removed.
            self._on_failure(self.directory, error)
        self._dropped.remove_due(now_ms)

    def flush_due(self, *, now_ms: int) -> bool:
        """Flush if flush.ms has passed with unflushed records, or a segment was rolled.

        Returns whether it did. Called periodically.
        """
        unflushed = self.log_end_offset > self._flushed_offset
        is_due = unflushed and now_ms - self._flushed_ms >= self.config.flush_ms
        if is_due or self._recovery_point < self._active.base_offset:
            self.flush(now_ms=now_ms)
            return True
        return False

    def flush(self, *, now_ms: int) -> None:
        """Write all records to the disk (fsync). Raises LogError KAFKA_STORAGE_ERROR."""
        with self._storage_errors("flushed"):
            self._sync_sealed()
            self._active.sync()
        self._finish_flush(now_ms)

    def _sync_sealed(self) -> None:
        for segment in self._sealed[bisect_right(self._bases, self._recovery_point - 1) :]:
            segment.sync()

    def _finish_flush(self, now_ms: int) -> None:
        """Write index entries and the checkpoint, after the records."""
        with self._storage_errors("flushed"):
            self._active.write_indexes()
            if self._recovery_point < self._active.base_offset:
                self._epoch_file.write(self.leader_epochs, sync=True)
                self._recovery_point = self._active.base_offset
                self._checkpoint(sync=True)
                self._remove_unused_snapshots()
        self._flushed_offset = self.log_end_offset
        self._flushed_ms = now_ms

    def close(self, *, now_ms: int) -> None:
        """Flush, and record the clean shutdown in the checkpoint. A second call does nothing.

        Raises LogError KAFKA_STORAGE_ERROR; the log is closed nevertheless.
        """
        if not self._open:
            return
        try:
            with self._storage_errors("closed"):
                clean = (self.log_end_offset, self._active.size)
                if clean == self._clean:
                    return
                self._dropped.remove_all()
                self._active.finish_indexes()
                if self.log_end_offset > self._flushed_offset:
                    self.flush(now_ms=now_ms)
                write_snapshot(self.directory, self._producers)
                self._epoch_file.write(self.leader_epochs, sync=True)
                self._remove_unused_snapshots()
                self._checkpoint(sync=True, clean=clean)
        finally:
            self._release()

    def abandon(self) -> None:
        """Close the files without writing anything, as a process crash does."""
        self._release()

    def _release(self) -> None:
        self._open = False
        self._active.close()

    def _remove_unused_snapshots(self) -> None:
        point = self._recovery_point
        starts = (point, *self._bases, self._active.base_offset)
        remove_unused_snapshots(self.directory, {start for start in starts if start >= point})

    def _checkpoint(self, *, sync: bool, clean: tuple[int, int] | None = None) -> None:
        self._clean = None
        checkpoint = Checkpoint(self.log_start_offset, self._recovery_point, clean, self._producers)
        write_checkpoint(self.directory, checkpoint, sync=sync)

    @contextmanager
    def _storage_errors(self, operation: str) -> Iterator[None]:
        try:
            yield
        except (OSError, DecodeError) as error:
            raise self._storage_error(operation, error) from error

    def _storage_error(self, operation: str, error: Exception) -> LogError:
        if isinstance(error, OSError):
            self._on_failure(self.directory, error)
        text = f"{self.directory} can't be {operation}: {error}"
        return LogError(ErrorCode.KAFKA_STORAGE_ERROR, text)
