"""Opening a partition's directory: finds its segments and checks them after a crash.

Owns the reading of a directory after a clean shutdown (nothing is scanned) and after a crash (every
batch from the recovery point on is checked, and the first bad one ends the log). It must never know
appends or retention. Invariant: what it returns ends in a growing segment, has no batch with a
wrong checksum or offset after the recovery point, and knows the producers of all batches; what it
cut off is reported. Echoes ``LogLoader`` and ``LogSegment.recover``.

A segment's batches have gapless offsets, so a damaged base offset, which no checksum covers, is
found too. No check covers the leader epoch.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from minibroker.storage.checkpoint import Checkpoint, read_checkpoint
from minibroker.storage.config import LogConfig
from minibroker.storage.index import TIME_ENTRY, last_in_file
from minibroker.storage.leader_epochs import LeaderEpochFile, LeaderEpochs
from minibroker.storage.paths import (
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    offset_file,
    offsets_of,
    remove_files,
)
from minibroker.storage.producers import ProducerTable
from minibroker.storage.segment import ActiveSegment, Segment
from minibroker.storage.segment_files import SegmentFiles
from minibroker.storage.snapshots import read_snapshot, remove_snapshots_after
from protocol.errors import DecodeError
from protocol.records import HEADER_BYTES, NO_TIMESTAMP, BatchHeader, parse_batch_header, verify_crc

_FRESH: Final = Checkpoint(0, 0, None, ProducerTable())


class Truncation(NamedTuple):
    """What recovery cut off: from ``position`` of ``file`` on, and all later segments.

    ``records`` counts those of complete batches; a batch that was cut short while it was written
    was never acknowledged and counts in ``size_bytes`` only.
    """

    file: str
    position: int
    reason: str
    records: int
    size_bytes: int
    segments: int


@dataclass(slots=True)
class Recovered:
    """What was found, and what was cut off."""

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
    """Open the segments in ``directory``, repairing what a killed process left behind."""
    checkpoint = read_checkpoint(directory) or _FRESH
    epoch_file = LeaderEpochFile(directory)
    place = _Place(directory, config, files, now_ms, epoch_file.read(), epoch_file)
    bases = _drop_deleted(directory, offsets_of(directory, LOG), checkpoint.log_start_offset)
    recovered = None
    if not bases:
        recovered = _empty(place, checkpoint.log_start_offset)
    elif checkpoint.clean is not None:
        recovered = _open_clean(place, bases, checkpoint)
    if recovered is None:
        recovered = _Scan(place, checkpoint).run(bases)
    recovered.epochs.truncate_from_end(recovered.active.next_offset)
    recovered.epochs.truncate_from_start(recovered.log_start_offset)
    return recovered


class _Place(NamedTuple):
    """Where segments are opened, and how."""

    directory: str
    config: LogConfig
    files: SegmentFiles
    now_ms: int
    epochs: LeaderEpochs | None
    """Those of the checkpoint file; None if they must be rebuilt from all batches."""
    epoch_file: LeaderEpochFile

    def epochs_of(self, segments: Sequence[Segment]) -> LeaderEpochs:
        """Those of the checkpoint file, or else those of the batches of these segments."""
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
    """The batches of a segment file, up to the first that is damaged or not complete.

    After an iteration ``problem`` is what is wrong with that one, empty if there is none.
    """

    def __init__(self, directory: str, base_offset: int) -> None:
        self._path = offset_file(directory, base_offset, LOG)
        self.base_offset = base_offset
        self.problem = ""

    def __iter__(self) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of each batch."""
        with _mapped(self._path) as view:
            position, expected = 0, self.base_offset
            while position < len(view):
                header, self.problem = _valid_header(view, position, expected)
                if header is None:
                    return
                yield position, header
                position += header.size
                expected = header.next_offset


@contextmanager
def _mapped(path: str) -> Iterator[memoryview]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if not size:
            yield memoryview(b"")
            return
        with mmap.mmap(fd, size, prot=mmap.PROT_READ) as pages, memoryview(pages) as view:
            yield view
    finally:
        os.close(fd)


def _valid_header(view: memoryview, position: int, expected: int) -> tuple[BatchHeader | None, str]:
    """The header of the batch at ``position`` if the batch is valid, else what is wrong with it."""
    try:
        header = parse_batch_header(view, position)
    except DecodeError as error:
        return None, str(error)
    if header.size > len(view) - position:
        return None, f"the batch has {header.size} bytes, and the file ends earlier"
    if header.base_offset != expected:
        return None, f"the batch has offset {header.base_offset} instead of {expected}"
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


def _drop_deleted(directory: str, bases: list[int], log_start_offset: int) -> list[int]:
    """Remove segments that end below the log's start: deleted, but not yet off the disk."""
    gone = sum(1 for _, following in pairwise(bases) if following <= log_start_offset)
    for base in bases[:gone]:
        remove_files(directory, base, SEGMENT_SUFFIXES)
    return bases[gone:]


def _empty(place: _Place, offset: int) -> Recovered:
    active = place.active(offset)
    epochs = place.epochs_of(())
    producers = ProducerTable(end_offset=offset)
    return Recovered([], active, offset, offset, producers, epochs, place.epoch_file)


def _open_clean(place: _Place, bases: list[int], checkpoint: Checkpoint) -> Recovered | None:
    """Believe the files of an orderly close; None when they are not as it left them."""
    assert checkpoint.clean is not None
    end_offset, size = checkpoint.clean
    producers = checkpoint.producers
    if os.path.getsize(offset_file(place.directory, bases[-1], LOG)) != size:
        return None
    if producers.end_offset != end_offset or bases[-1] > end_offset:
        return None
    active = place.active(bases[-1])
    try:
        active.restore(size, end_offset)
    except (DecodeError, OSError):
        active.close()
        return None
    sealed = _open_sealed(place, bases)
    start = max(checkpoint.log_start_offset, bases[0])
    epochs = place.epochs_of((*sealed, active))
    point = active.base_offset
    return Recovered(sealed, active, start, point, producers, epochs, place.epoch_file, clean=True)


def _open_sealed(place: _Place, bases: list[int]) -> list[Segment]:
    return [_sealed(place, base, following) for base, following in pairwise(bases)]


def _sealed(place: _Place, base_offset: int, next_offset: int) -> Segment:
    """Open a segment that is whole; lost index files are rebuilt."""
    directory = place.directory
    index, times = (offset_file(directory, base_offset, s) for s in (OFFSET_INDEX, TIME_INDEX))
    if not (os.path.exists(index) and os.path.exists(times)):
        segment = _rebuilt(place, ValidBatches(directory, base_offset))
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
    )


def _rebuilt(
    place: _Place,
    batches: ValidBatches,
    tables: Sequence[ProducerTable] = (),
    epochs: LeaderEpochs | None = None,
) -> ActiveSegment:
    """Check a segment batch by batch, index it, and update producers and epochs to its end."""
    segment = place.active(batches.base_offset)
    for _, header in batches:
        segment.note(
            header.base_offset,
            header.last_offset,
            header.size,
            header.max_timestamp,
            index_interval_bytes=place.config.index_interval_bytes,
        )
        replay(tables, header)
        if epochs is not None:
            epochs.assign(header.partition_leader_epoch, header.base_offset)
    return segment


def replay(tables: Sequence[ProducerTable], header: BatchHeader) -> None:
    """Update the producer states by a batch of the log, if it is newer than they are."""
    for table in tables:
        if header.last_offset >= table.end_offset:
            if header.has_producer_id and not header.is_control:
                table.record(header, header.last_offset, header.max_timestamp)
            table.end_offset = header.next_offset


class _Scan:
    """One recovery of a directory that wasn't closed in order."""

    def __init__(self, place: _Place, checkpoint: Checkpoint) -> None:
        self._place = place
        self._directory = place.directory
        self._checkpoint = checkpoint
        self._truncation: Truncation | None = None

    def run(self, bases: list[int]) -> Recovered:
        doubtful = max(
            (i for i, base in enumerate(bases) if base <= self._checkpoint.recovery_point),
            default=0,
        )
        sealed = _open_sealed(self._place, bases[: doubtful + 1])
        tables = [self._checkpoint.producers, read_snapshot(self._directory, bases[doubtful])]
        known_to = [table.end_offset for table in tables]
        for segment in sealed:
            if segment.next_offset > known_to[1]:
                for header in segment.headers():
                    replay(tables, header)
        epochs = self._place.epochs_of(sealed)
        epochs.truncate_from_end(bases[doubtful])
        active = self._scan(bases[doubtful:], sealed, tables, epochs)
        # The checkpoint's producers are the better ones, unless the log was cut off below them.
        producers = tables[0] if known_to[0] <= active.next_offset else tables[1]
        producers.end_offset = active.next_offset
        start = max(self._checkpoint.log_start_offset, bases[0])
        if active.next_offset < start:
            return self._start_over(active, sealed, start, epochs)
        remove_snapshots_after(self._directory, active.next_offset)
        point = min(self._checkpoint.recovery_point, active.base_offset)
        epoch_file = self._place.epoch_file
        return Recovered(
            sealed, active, start, point, producers, epochs, epoch_file, self._truncation
        )

    def _scan(
        self,
        bases: list[int],
        sealed: list[Segment],
        tables: list[ProducerTable],
        epochs: LeaderEpochs,
    ) -> ActiveSegment:
        """Check the segments; all after the first torn one are removed."""
        for slot, base in enumerate(bases, start=1):
            batches = ValidBatches(self._directory, base)
            active = _rebuilt(self._place, batches, tables, epochs)
            active.finish_indexes()
            torn = os.path.getsize(active.path) - active.size
            if torn or slot == len(bases):
                if torn:
                    self._cut_off(active, torn, batches.problem, bases[slot:])
                return active
            sealed.append(active.seal())
        raise AssertionError("a log has at least one segment")

    def _cut_off(self, active: ActiveSegment, torn: int, problem: str, later: list[int]) -> None:
        size, records = torn, _complete_records(active.path, active.size)
        for base in later:
            path = offset_file(self._directory, base, LOG)
            size += os.path.getsize(path)
            records += _complete_records(path, 0)
        self._truncation = Truncation(active.path, active.size, problem, records, size, len(later))
        active.cut_off()
        for base in later:
            remove_files(self._directory, base, SEGMENT_SUFFIXES)

    def _start_over(
        self, active: ActiveSegment, sealed: list[Segment], start: int, epochs: LeaderEpochs
    ) -> Recovered:
        """Start an empty log: it was cut off below its start, so no record is readable."""
        active.close()
        for segment in (*sealed, active):
            remove_files(self._directory, segment.base_offset, SEGMENT_SUFFIXES)
        recovered = _empty(self._place, start)
        recovered.epochs = epochs
        recovered.truncation = self._truncation
        return recovered
