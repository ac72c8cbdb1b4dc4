"""Recovery of a partition's directory: finds its segments and checks them after a crash.

Owns the opening after a clean shutdown, without a scan, and after a crash, when every batch from
the recovery point on is checked and the log is truncated at the first invalid one. It must never
know appends or retention. Invariant: a recovered log ends with an active segment, has no batch with
a wrong checksum or offset after the recovery point, and has the producer states of all batches;
removed data is reported. Echoes ``LogLoader`` and ``LogSegment.recover``.

A segment's batches have gapless offsets unless the log was ever cleaned, so a damaged base offset,
which the checksum does not cover, is also found. A damaged leader epoch is not. Segments that
another broker wrote may have gaps, and are rejected instead of truncated.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest
from typing import NamedTuple

from minibroker.broker.log.checkpoint import (
    Checkpoint,
    LeaderEpochFile,
    LeaderEpochs,
    has_checkpoint,
    has_cleaner_checkpoint,
    read_checkpoint,
    write_cleaner_checkpoint,
)
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.paths import (
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    TRANSACTION_INDEX,
    complete_swaps,
    offset_file,
    offsets_of,
    opened,
    parse_directory,
    remove_files,
)
from minibroker.broker.log.producers import (
    TRANSACTION_ENTRY,
    AbortedTransaction,
    ProducerTable,
    read_snapshot,
    remove_snapshots_after,
)
from minibroker.broker.log.segment import (
    TIME_ENTRY,
    ActiveSegment,
    Segment,
    SegmentFiles,
    last_in_file,
    read_transaction_index,
)
from minibroker_protocol.control_records import EndTransactionMarker, parse_marker
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.records import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    parse_batch_header,
    verify_crc,
)


class Truncation(NamedTuple):
    """The data that recovery removed: ``file`` from ``position`` on, and all later segments.

    ``records`` are those of complete batches. An incomplete batch was never acknowledged and
    counts in ``size_bytes`` only.
    """

    file: str
    position: int
    reason: str
    records: int
    size_bytes: int
    segments: int


@dataclass(slots=True)
class Recovered:
    """The segments and the state of a log after recovery."""

    sealed: list[Segment]
    active: ActiveSegment
    log_start_offset: int
    recovery_point: int
    producers: ProducerTable
    epochs: LeaderEpochs
    epoch_file: LeaderEpochFile
    truncation: Truncation | None = None
    clean: bool = False


def recover(directory: str, config: LogConfig, files: SegmentFiles, *, now_ms: int) -> Recovered:
    """Open the segments in ``directory``, and repair them after a crash.

    Raises LogError KAFKA_STORAGE_ERROR if another broker wrote them and one is damaged.
    """
    complete_swaps(directory)
    checkpoint = read_checkpoint(directory) or Checkpoint(0, 0, None, ProducerTable())
    damaged = _first_damaged_transaction_index(directory)
    if damaged is not None:  # Scan from there on, which rebuilds it.
        point = min(damaged, checkpoint.recovery_point)
        checkpoint = replace(checkpoint, recovery_point=point, clean=None)
    epoch_file = LeaderEpochFile(directory)
    is_imported = _is_imported(directory)
    has_gaps = is_imported or has_cleaner_checkpoint(directory)
    recovery = _Recovery(directory, config, files, now_ms, epoch_file.read(), epoch_file, has_gaps)
    bases = _remove_deleted(directory, offsets_of(directory, LOG), checkpoint.log_start_offset)
    if is_imported:
        _check_imported(recovery, bases)
    recovered = None
    if not bases:
        recovered = _create_empty(recovery, checkpoint.log_start_offset)
    elif checkpoint.clean is not None:
        recovered = _open_clean(recovery, bases, checkpoint)
    if recovered is None:
        recovered = _Scan(recovery, checkpoint).run(bases)
    recovered.epochs.truncate_from_end(recovered.active.next_offset)
    recovered.epochs.truncate_from_start(recovered.log_start_offset)
    if is_imported:  # From now on the checkpoint is this broker's, and its log still has gaps.
        topic, partition = parse_directory(os.path.basename(directory)) or ("", 0)
        write_cleaner_checkpoint(directory, topic, partition, recovered.log_start_offset)
    return recovered


def _is_imported(directory: str) -> bool:
    """Whether another broker wrote the segments: this one has a checkpoint before it appends."""
    return not has_checkpoint(directory) and any(
        os.path.getsize(offset_file(directory, base, LOG)) for base in offsets_of(directory, LOG)
    )


def _check_imported(recovery: _Recovery, bases: Sequence[int]) -> None:
    """Raise LogError if a segment that another broker wrote is damaged; nothing is changed."""
    for base, following in zip_longest(bases, bases[1:]):
        batches = recovery.batches(base, following)
        position = sum(header.size for header, _ in batches)
        if batches.problem:
            path = offset_file(recovery.directory, base, LOG)
            raise LogError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{path} was written by another broker and is damaged at byte {position}:"
                f" {batches.problem}; nothing was changed. To use the records before it, truncate"
                f" the file to {position} bytes and remove later segments",
            )


def _first_damaged_transaction_index(directory: str) -> int | None:
    """Base offset of the first segment whose transaction index ends in an entry."""
    for base in offsets_of(directory, TRANSACTION_INDEX):
        if (
            os.path.getsize(offset_file(directory, base, TRANSACTION_INDEX))
            % TRANSACTION_ENTRY.size
        ):
            return base
    return None


class _Recovery(NamedTuple):
    """Arguments of one recovery."""

    directory: str
    config: LogConfig
    files: SegmentFiles
    now_ms: int
    epochs: LeaderEpochs | None
    """From the checkpoint file; None if they must be rebuilt from all batches."""
    epoch_file: LeaderEpochFile
    has_gaps: bool
    """Whether a cleaner may have removed batches."""

    def batches(self, base_offset: int, end_offset: int | None) -> ValidBatches:
        """The batches of a segment that ends before ``end_offset``, if it is known."""
        limit = end_offset if self.has_gaps else None
        return ValidBatches(self.directory, base_offset, has_gaps=self.has_gaps, end_offset=limit)

    def epochs_of(self, segments: Sequence[Segment]) -> LeaderEpochs:
        """The epochs of the checkpoint file or, without one, of the batches of these segments."""
        if self.epochs is not None:
            return self.epochs
        epochs = LeaderEpochs()
        for segment in segments:
            for header in segment.headers():
                epochs.assign(header.partition_leader_epoch, header.base_offset)
        return epochs

    def active(self, base_offset: int) -> ActiveSegment:
        return ActiveSegment(self.directory, base_offset, self.files, now_ms=self.now_ms)


class ValidBatches:
    """The batches of a segment file, up to the first that is damaged or incomplete.

    After an iteration, ``problem`` describes that batch; it is empty if all are valid.
    """

    def __init__(
        self,
        directory: str,
        base_offset: int,
        *,
        has_gaps: bool = False,
        end_offset: int | None = None,
    ) -> None:
        self._path = offset_file(directory, base_offset, LOG)
        self._has_gaps = has_gaps
        self._end_offset = end_offset
        self.base_offset = base_offset
        self.problem = ""

    def __iter__(self) -> Iterator[tuple[BatchHeader, EndTransactionMarker | None]]:
        """The header of each batch, and the marker of a control batch."""
        with _mapped(self._path) as view:
            position, expected = 0, self.base_offset
            while position < len(view):
                header, self.problem = _valid_header(view, position)
                if header is not None and not self._may_follow(header, expected):
                    found = header.base_offset
                    self.problem = f"the batch has offset {found} instead of {expected}"
                    return
                if header is None:
                    return
                end = position + header.size
                marker = parse_marker(bytes(view[position:end])) if header.is_control else None
                yield header, marker
                position += header.size
                expected = header.next_offset

    def _may_follow(self, header: BatchHeader, expected: int) -> bool:
        if not self._has_gaps:
            return header.base_offset == expected
        is_inside = self._end_offset is None or header.next_offset <= self._end_offset
        return header.base_offset >= expected and is_inside


@contextmanager
def _mapped(path: str) -> Iterator[memoryview]:
    with opened(path) as fd:
        size = os.fstat(fd).st_size
        if not size:
            yield memoryview(b"")
            return
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as pages, memoryview(pages) as view:
            yield view


def _valid_header(view: memoryview, position: int) -> tuple[BatchHeader | None, str]:
    """The header of the batch at ``position`` if the batch is valid, else None and its problem."""
    try:
        header = parse_batch_header(view, position)
    except DecodeError as error:
        return None, str(error)
    if header.size > len(view) - position:
        return None, f"the batch has {header.size} bytes, and the file ends earlier"
    if not verify_crc(view, position):
        return None, "the batch's checksum is wrong"
    return header, ""


def _complete_records(path: str, position: int) -> int:
    """Records of the batches from ``position`` on, as far as their headers can be read."""
    records = 0
    with _mapped(path) as view:
        while len(view) - position >= HEADER_BYTES:
            try:
                header = parse_batch_header(view, position)
            except DecodeError:
                break
            if header.size > len(view) - position:
                break
            records += max(0, header.record_count)
            position += header.size
    return records


def _remove_deleted(directory: str, bases: list[int], log_start_offset: int) -> list[int]:
    """Remove the files of segments that end below the log start."""
    deleted_count = sum(1 for _, following in pairwise(bases) if following <= log_start_offset)
    for base in bases[:deleted_count]:
        remove_files(directory, base, SEGMENT_SUFFIXES)
    return bases[deleted_count:]


def _create_empty(recovery: _Recovery, offset: int) -> Recovered:
    active = recovery.active(offset)
    epochs = recovery.epochs_of(())
    producers = ProducerTable(end_offset=offset)
    return Recovered([], active, offset, offset, producers, epochs, recovery.epoch_file)


def _open_clean(recovery: _Recovery, bases: list[int], checkpoint: Checkpoint) -> Recovered | None:
    """Open a cleanly closed log; None if the files do not match the checkpoint."""
    assert checkpoint.clean is not None
    end_offset, size = checkpoint.clean
    producers = checkpoint.producers
    if os.path.getsize(offset_file(recovery.directory, bases[-1], LOG)) != size:
        return None
    if producers.end_offset != end_offset or bases[-1] > end_offset:
        return None
    active = recovery.active(bases[-1])
    try:
        active.restore(size, end_offset)
    except (DecodeError, OSError):
        active.close()
        return None
    sealed = _open_sealed(recovery, bases)
    start = max(checkpoint.log_start_offset, bases[0])
    epochs = recovery.epochs_of((*sealed, active))
    recovery_point = active.base_offset
    return Recovered(
        sealed, active, start, recovery_point, producers, epochs, recovery.epoch_file, clean=True
    )


def _open_sealed(recovery: _Recovery, bases: list[int]) -> list[Segment]:
    return [_open_sealed_segment(recovery, base, following) for base, following in pairwise(bases)]


def _open_sealed_segment(recovery: _Recovery, base_offset: int, next_offset: int) -> Segment:
    """Open a complete segment; missing index files are rebuilt."""
    directory = recovery.directory
    index, times = (offset_file(directory, base_offset, s) for s in (OFFSET_INDEX, TIME_INDEX))
    if not (os.path.exists(index) and os.path.exists(times)):
        segment = _rebuild_segment(recovery, recovery.batches(base_offset, next_offset))
        for entry in read_transaction_index(directory, base_offset):
            segment.record_aborted(entry)
        segment.finish_indexes()
        return segment.seal()
    last = last_in_file(times, TIME_ENTRY)
    status = os.stat(offset_file(directory, base_offset, LOG))
    return Segment(
        directory,
        base_offset,
        size=status.st_size,
        next_offset=next_offset,
        max_timestamp=NO_TIMESTAMP if last is None else last[0],
        modified_ms=status.st_mtime_ns // 1_000_000,
        aborted_count=_aborted_count(directory, base_offset),
        inode=status.st_ino,
    )


def _aborted_count(directory: str, base_offset: int) -> int:
    try:
        size = os.path.getsize(offset_file(directory, base_offset, TRANSACTION_INDEX))
    except FileNotFoundError:
        return 0
    return size // TRANSACTION_ENTRY.size


def _rebuild_segment(
    recovery: _Recovery,
    batches: ValidBatches,
    tables: Sequence[ProducerTable] = (),
    epochs: LeaderEpochs | None = None,
) -> ActiveSegment:
    """Check and index the batches of a segment, and update producers and epochs.

    Aborted transactions are those of the last table.
    """
    segment = recovery.active(batches.base_offset)
    for header, marker in batches:
        segment.record_batch(
            header.base_offset,
            header.last_offset,
            header.size,
            header.max_timestamp,
            index_interval_bytes=recovery.config.index_interval_bytes,
        )
        aborted = replay(tables, header, marker)
        if aborted is not None:
            segment.record_aborted(aborted)
        if epochs is not None:
            epochs.assign(header.partition_leader_epoch, header.base_offset)
    return segment


def replay(
    tables: Sequence[ProducerTable], header: BatchHeader, marker: EndTransactionMarker | None
) -> AbortedTransaction | None:
    """Record a batch of the log in the producer states that end before it.

    Returns the transaction that it aborts by the last table.
    """
    aborted = None
    for table in tables:
        aborted = None
        if header.last_offset >= table.end_offset:
            is_record = marker is not None or not header.is_control
            if header.has_producer_id and is_record:
                timestamp = header.max_timestamp
                aborted = table.record(header, header.last_offset, timestamp, marker)
            table.end_offset = header.next_offset
    return aborted


class _Scan:
    """The recovery of a log that was not closed in order."""

    def __init__(self, recovery: _Recovery, checkpoint: Checkpoint) -> None:
        self._recovery = recovery
        self._directory = recovery.directory
        self._checkpoint = checkpoint
        self._truncation: Truncation | None = None

    def run(self, bases: list[int]) -> Recovered:
        first_unflushed = max(
            (i for i, base in enumerate(bases) if base <= self._checkpoint.recovery_point),
            default=0,
        )
        sealed = _open_sealed(self._recovery, bases[: first_unflushed + 1])
        tables = [
            self._checkpoint.producers,
            read_snapshot(self._directory, bases[first_unflushed]),
        ]
        end_offsets = [table.end_offset for table in tables]
        for segment in sealed:
            if segment.next_offset > end_offsets[1]:
                for header, marker in segment.batches():
                    replay(tables, header, marker)
        epochs = self._recovery.epochs_of(sealed)
        epochs.truncate_from_end(bases[first_unflushed])
        active = self._scan(bases[first_unflushed:], sealed, tables, epochs)
        # The checkpoint's states have five batches a producer. The snapshot's are used if the log
        # was truncated below the checkpoint, or has none and lacks the batches before its start.
        is_usable = bases[0] <= end_offsets[0] <= active.next_offset
        producers = tables[0] if is_usable else tables[1]
        producers.end_offset = active.next_offset
        start = max(self._checkpoint.log_start_offset, bases[0])
        if active.next_offset < start:
            return self._restart_empty(active, sealed, start, epochs)
        remove_snapshots_after(self._directory, active.next_offset)
        recovery_point = min(self._checkpoint.recovery_point, active.base_offset)
        epoch_file = self._recovery.epoch_file
        return Recovered(
            sealed, active, start, recovery_point, producers, epochs, epoch_file, self._truncation
        )

    def _scan(
        self,
        bases: list[int],
        sealed: list[Segment],
        tables: list[ProducerTable],
        epochs: LeaderEpochs,
    ) -> ActiveSegment:
        """Check the segments; truncate the first invalid one and remove the later ones."""
        for slot, base in enumerate(bases, start=1):
            following = bases[slot] if slot < len(bases) else None
            batches = self._recovery.batches(base, following)
            remove_files(self._directory, base, (TRANSACTION_INDEX,))
            active = _rebuild_segment(self._recovery, batches, tables, epochs)
            active.finish_indexes()
            invalid_bytes = os.path.getsize(active.path) - active.size
            if invalid_bytes or slot == len(bases):
                if invalid_bytes:
                    self._truncate(active, invalid_bytes, batches.problem, bases[slot:])
                return active
            sealed.append(active.seal())
        raise AssertionError("a log has at least one segment")

    def _truncate(
        self, active: ActiveSegment, invalid_bytes: int, problem: str, later: list[int]
    ) -> None:
        size, records = invalid_bytes, _complete_records(active.path, active.size)
        for base in later:
            path = offset_file(self._directory, base, LOG)
            size += os.path.getsize(path)
            records += _complete_records(path, 0)
        self._truncation = Truncation(active.path, active.size, problem, records, size, len(later))
        active.truncate()
        for base in later:
            remove_files(self._directory, base, SEGMENT_SUFFIXES)

    def _restart_empty(
        self, active: ActiveSegment, sealed: list[Segment], start: int, epochs: LeaderEpochs
    ) -> Recovered:
        """Start an empty log: it was truncated below its start, so no record is readable."""
        active.close()
        for segment in (*sealed, active):
            remove_files(self._directory, segment.base_offset, SEGMENT_SUFFIXES)
        recovered = _create_empty(self._recovery, start)
        recovered.epochs = epochs
        recovered.truncation = self._truncation
        return recovered
