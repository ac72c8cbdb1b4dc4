"""One partition of an internal topic that stores the state of a coordinator by key.

Owns the records of the partition's log. It must never know what keys and values mean.
Invariant: the records of one write are in one batch, written by one system call, so a crash keeps
all or none of them, and no content of the log makes a replay fail. The log cleaner removes records
that later ones of the same key replace, as in every compacted topic. Kafka's counterparts are
``CoordinatorPartitionWriter`` and ``CoordinatorLoaderImpl``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, TypeVar

from minibroker.broker.groups.limits import STATE_LOG_SEGMENT_BYTES
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Origin
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.log.transactions import NO_GUARD, Guard
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.records import (
    BatchHeader,
    Record,
    build_keyed_batch,
    iter_batches,
    iter_records,
)

_logger = logging.getLogger(__name__)

READ_BYTES = 4 * 1024 * 1024
"""Bytes of a log that are read at a time."""

REPLAYED_RECORDS_MAX = 100_000
"""Larger batches are skipped. The coordinator's own batches have far fewer records."""

REPLAYED_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of one batch after decompression."""

WARNINGS_MAX = 20
"""Log lines about skipped records per replay of a log."""

EntryT = TypeVar("EntryT")

KeyValue = tuple[bytes, bytes | None]


class StoredBatch(NamedTuple):
    """A batch of a log."""

    header: BatchHeader
    data: memoryview


class StateLog:
    """A log of keyed records, used by a single thread. Times are epoch milliseconds."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.log = partition.log
        self._warnings = 0

    @property
    def leader_epoch(self) -> int:
        return self._partition.leader_epoch

    def append(self, records: Iterable[KeyValue], *, now_ms: int) -> None:
        """Append one or more records as one batch.

        Raises ``LogError`` if nothing was written.
        """
        self.append_batch(build_keyed_batch(records, now_ms), now_ms=now_ms)

    def append_batch(self, batch: bytes, *, now_ms: int, guard: Guard = NO_GUARD) -> None:
        """Append a batch. Raises ``LogError`` if it was not written."""
        if self.log.segments.active.size >= STATE_LOG_SEGMENT_BYTES:
            with suppress(LogError):  # The segment grows on, and the next write tries again.
                self.log.roll(now_ms=now_ms)
        self._partition.append_as_leader(
            memoryview(batch), now_ms=now_ms, origin=Origin.COORDINATOR, guard=guard
        )

    def batches(self) -> Iterator[StoredBatch]:
        """Read all batches from the start of the log.

        Batches that cannot be read are skipped. Each is logged, up to a limit per log.
        """
        self._warnings = 0
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            previous_offset = offset
            try:
                file_slice = self.log.read(offset, READ_BYTES)
                data = memoryview(b"" if file_slice is None else file_slice.load())
                for position, header in iter_batches(data):
                    offset = header.next_offset
                    yield StoredBatch(header, data[position : position + header.size])
            except (DecodeError, LogError, OSError) as error:
                self.log_skipped(offset, f"the rest of a segment, which cannot be read: {error}")
                offset = self.log.next_segment_offset(previous_offset)
            if offset <= previous_offset:
                self.log_skipped(
                    previous_offset, "the rest of a segment, which has no complete batch"
                )
                offset = self.log.next_segment_offset(previous_offset)

    def entries(
        self, batch: StoredBatch, decode: Callable[[bytes, bytes | None], EntryT | None]
    ) -> Iterator[EntryT]:
        """Decode the records of a batch; those that cannot be read are skipped."""
        header = batch.header
        if header.record_count > REPLAYED_RECORDS_MAX:
            self.log_skipped(header.base_offset, f"a batch of {header.record_count} records")
            return
        try:
            for record in iter_records(batch.data, REPLAYED_BYTES_MAX):
                entry = self._entry(record, decode)
                if entry is not None:
                    yield entry
        except DecodeError as error:
            self.log_skipped(header.base_offset, f"a batch that cannot be read: {error}")

    def _entry(
        self, record: Record, decode: Callable[[bytes, bytes | None], EntryT | None]
    ) -> EntryT | None:
        if record.key is None or record.offset < self.log.log_start_offset:
            return None
        try:
            return decode(record.key, record.value)
        except (DecodeError, UnsupportedVersion) as error:
            self.log_skipped(record.offset, f"a record that cannot be read: {error}")
            return None

    def log_skipped(self, offset: int, reason: str) -> None:
        """Log that a replay skips something."""
        self._warnings += 1
        if self._warnings <= WARNINGS_MAX:
            _logger.warning("%s offset %d is skipped: %s", self.log.directory, offset, reason)
        elif self._warnings == WARNINGS_MAX + 1:
            _logger.warning("%s: further records are skipped", self.log.directory)

    def clear(self) -> None:
        """Delete all records. Retention frees the space later."""
        self._partition.delete_records(self.log.log_end_offset)
