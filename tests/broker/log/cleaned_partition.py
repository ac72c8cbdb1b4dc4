"""A partition with small segments, its producers, a consumer, and a cleaner that runs at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from minibroker.broker.log.cleaning import (
    Buffers,
    CleaningResult,
    CleaningTask,
    LogCleaning,
    clean,
)
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.replica_manager import Partition
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records

NOW_MS = 1_700_000_000_000
BUFFERS = Buffers(4096, 200)

Found = tuple[int, int, bytes, bytes | None]
"""Offset, timestamp, key and value of a record."""


def run(task: CleaningTask) -> CleaningResult:
    """Run all steps of a cleaning."""
    steps = clean(task)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: CleaningResult = end.value
            return result


def compact(partition: Partition, now_ms: int, buffers: Buffers = BUFFERS) -> CleaningResult:
    """Seal the active segment, and clean all that can be cleaned."""
    partition.log.roll(now_ms=now_ms)
    partition.log.flush(now_ms=now_ms)
    return clean_once(LogCleaning(partition), now_ms, buffers)


def clean_once(cleaning: LogCleaning, now_ms: int, buffers: Buffers) -> CleaningResult:
    """Clean what can be cleaned, once."""
    task = cleaning.task(cleaning.range(now_ms), buffers, now_ms)
    sources = cleaning.sources(task)
    result = run(task)
    cleaning.apply(result, sources, now_ms)
    return result


class CleanedPartition:
    """The partition ``t-0``. ``now_ms`` is the time of everything that happens."""

    def __init__(self, directory: Path, **config: Any) -> None:
        self.data_dir = directory
        settings = {"delete": False, "compact": True, "file_delete_delay_ms": 0, **config}
        self.config = LogConfig(**settings)
        self.now_ms = NOW_MS
        self.sequences: dict[int, int] = {}
        self.epochs: dict[int, int] = {}
        self.open()

    def open(self) -> None:
        self.log = Log.open(self.data_dir, "t", 0, self.config, now_ms=self.now_ms)
        self.partition = Partition(self.log, bytes(16), broker_id=1, leader_id=1, leader_epoch=0)
        self.cleaning = LogCleaning(self.partition)

    def kill(self) -> None:
        self.log.abandon()
        self.open()

    def restart(self) -> None:
        self.log.close(now_ms=self.now_ms)
        self.open()

    def write(
        self,
        *records: tuple[bytes, bytes | None],
        producer: int | None = None,
        transactional: bool = False,
        **options: Any,
    ) -> int:
        """Append a batch of (key, value) pairs, and return its first offset."""
        epoch = sequence = -1
        if producer is not None:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + len(records)
            epoch = self.epochs.setdefault(producer, 0)
            options |= {
                "producer_id": producer,
                "producer_epoch": epoch,
                "base_sequence": sequence,
                "transactional": transactional,
            }
        batch = build_batch(
            [Record(timestamp=self.now_ms, key=key, value=value) for key, value in records],
            **options,
        )
        if not transactional:
            return self.partition.append_as_leader(batch, now_ms=self.now_ms).base_offset
        assert producer is not None
        guard = self.partition.begin_verification(
            producer, epoch, sequence, adds=True, now_ms=self.now_ms
        )
        appended = self.partition.append_as_leader(batch, now_ms=self.now_ms, guard=guard)
        return appended.base_offset

    def end(self, producer: int, *, committed: bool) -> int:
        """Append a marker of transaction version 2, which ends the producer's epoch."""
        self.epochs[producer] = self.epochs.get(producer, 0) + 1
        self.sequences[producer] = 0
        appended = self.partition.append_marker(
            producer,
            self.epochs[producer],
            EndTransactionMarker(committed, 0),
            transaction_version=2,
            now_ms=self.now_ms,
        )
        return appended.base_offset

    def roll(self) -> None:
        """Seal the active segment and write everything to the disk."""
        self.log.roll(now_ms=self.now_ms)
        self.log.flush(now_ms=self.now_ms)

    def clean(self, buffers: Buffers = BUFFERS) -> CleaningResult:
        """Clean what can be cleaned, once."""
        return clean_once(self.cleaning, self.now_ms, buffers)

    def compact(self) -> None:
        """Roll, and clean the whole log."""
        self.roll()
        self.clean()

    def consume(self, offset: int = 0) -> Iterator[Found]:
        """The committed records from an offset on, as a consumer finds them."""
        offset = max(offset, self.log.log_start_offset)
        while True:
            piece, aborted = self.partition.read_committed(offset, 150)
            if piece is None or not len(piece):
                return
            pending = sorted(aborted, key=lambda each: each.first_offset)
            discarded: set[int] = set()
            data = piece.load()
            for position, header in iter_batches(data):
                while pending and pending[0].first_offset <= header.last_offset:
                    discarded.add(pending.pop(0).producer_id)
                if header.is_control:
                    discarded.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in discarded):
                    for each in iter_records(data[position : position + header.size]):
                        if each.offset >= offset:
                            yield each.offset, each.timestamp, each.key or b"", each.value
                offset = header.next_offset

    def records(self) -> list[tuple[int, bytes, bytes | None]]:
        """(offset, key, value) of all committed records."""
        return [(offset, key, value) for offset, _, key, value in self.consume()]
