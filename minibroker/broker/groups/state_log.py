"""Partitions of internal topics that store the state of a coordinator by key.

Owns the records of the partition's log: ``StateLog`` for any coordinator, and ``OffsetsLog`` for
group metadata and offsets in ``__consumer_offsets``. It must never know the rules of groups or
transactions. Invariant: the records of one write are in one batch, written by one system call, so a
crash keeps all or none of them, and no content of the log makes a replay fail; offsets that were
committed in a transaction are in force only after its marker. The log cleaner removes records that
later ones of the same key replace, as in every compacted topic. Kafka's counterparts are
``CoordinatorPartitionWriter``, ``CoordinatorLoaderImpl`` and ``GroupCoordinatorRecordHelpers``.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from minibroker.broker.groups.events import GroupRecord
from minibroker.broker.groups.group import STATE_LOG_SEGMENT_BYTES
from minibroker.broker.groups.offsets import OffsetTable, PendingOffsets
from minibroker.broker.groups.records import (
    CLASSIC,
    Entry,
    OffsetEntry,
    decode_entry,
    encode_entry,
)
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Origin
from minibroker.broker.log.producers import NO_GUARD, Guard
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import offsets_partition
from minibroker_protocol.control_records import EndTransactionMarker, parse_marker
from minibroker_protocol.errors import DecodeError, ErrorCode, UnsupportedVersion
from minibroker_protocol.records import (
    BatchHeader,
    Record,
    build_batch,
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
        self.delete_before(self.log.log_end_offset)

    def delete_before(self, offset: int) -> None:
        """Delete the records before an offset. Retention frees the space later."""
        self._partition.delete_records(offset)


LogT = TypeVar("LogT", bound=StateLog)


class StateLogs(Generic[LogT]):
    """The logs of a coordinator: partitions of its internal topic, each opened on first use."""

    def __init__(self, topic: str, partitions: int, open_log: Callable[[int], LogT]) -> None:
        """``partitions`` is the number of partitions of the topic."""
        self._topic = topic
        self._partitions = partitions
        self._open_log = open_log
        self.logs: dict[int, LogT] = {}
        self.unloaded: dict[int, str] = {}
        """Partitions whose log was not opened, each with the error; what they store is unknown."""

    def partition_of(self, key: str) -> int:
        """The partition that stores a group or transactional id."""
        return offsets_partition(key, self._partitions)

    def is_loaded(self, key: str) -> bool:
        """Whether the partition of this id is loaded."""
        return not self.unloaded or self.partition_of(key) not in self.unloaded

    def log_of(self, key: str) -> LogT:
        """The log that stores a group or transactional id. Raises ``LogError``."""
        return self._log(self.partition_of(key))

    def _log(self, partition: int) -> LogT:
        log = self.logs.get(partition)
        if log is None:
            log = self.logs[partition] = self._open_log(partition)
        return log

    def open_logs(self, partitions: Iterable[int]) -> Iterator[tuple[int, LogT]]:
        """The logs of partitions, to be read; one that cannot be opened remains in ``unloaded``."""
        for partition in partitions:
            try:
                log = self._log(partition)
            except LogError as error:
                self.unloaded[partition] = error.text
                continue
            yield partition, log
            self.unloaded.pop(partition, None)

    def release_logs(self, *, clear: bool) -> None:
        """Forget the logs, which are cleared or kept."""
        self.unloaded.clear()
        logs, self.logs = self.logs, {}
        for partition, log in logs.items() if clear else ():
            try:
                log.clear()
            except OSError as error:
                _logger.warning("%s-%d cannot be cleared: %s", self._topic, partition, error)


class OffsetsTransaction(NamedTuple):
    """The transaction in which offsets are committed."""

    producer_id: int
    producer_epoch: int
    guard: Guard
    """Guard of the verification that the transaction is ongoing."""


TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class StoredGroup:
    """The stored state of one group: its records by key, and its offsets."""

    __slots__ = ("offsets", "records")

    def __init__(self) -> None:
        self.records: dict[bytes, GroupRecord] = {}
        self.offsets = OffsetTable()

    @property
    def group_type(self) -> str:
        """The type of the latest record. A group that has only offsets is a classic group."""
        latest = next(reversed(self.records.values()), None)
        return CLASSIC if latest is None else latest.group_type

    def apply(self, record: GroupRecord) -> None:
        """Replace the record that has this key, or delete it if the record is a tombstone."""
        key = record.encode_key()
        self.records.pop(key, None)
        if not record.is_tombstone:
            self.records[key] = record

    def tombstones(self, group_id: str) -> Iterator[Entry]:
        """Entries that delete the group and its offsets."""
        for topic, partition, _ in self.offsets:
            yield OffsetEntry(group_id, topic, partition, None)
        for record in self.records.values():
            yield record.tombstone()


class PendingEntry(NamedTuple):
    """An offset that a producer commits in a transaction."""

    producer_id: int
    entry: OffsetEntry


class TransactionEnd(NamedTuple):
    """The marker of a transaction."""

    producer_id: int
    committed: bool


ReplayedEntry = Entry | PendingEntry | TransactionEnd


class OffsetsLog(StateLog):
    """A log of entries. Times are epoch milliseconds."""

    def write(self, entries: Iterable[Entry], *, now_ms: int) -> None:
        """Append one or more entries as one batch.

        Raises ``LogError`` if nothing was written.
        """
        self.append(map(encode_entry, entries), now_ms=now_ms)

    def write_pending(
        self, entries: Iterable[Entry], transaction: OffsetsTransaction, *, now_ms: int
    ) -> None:
        """Append offsets that a producer commits in a transaction. Raises ``LogError``."""
        records = [
            Record(timestamp=now_ms, key=key, value=value)
            for key, value in map(encode_entry, entries)
        ]
        batch = build_batch(
            records,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transactional=True,
        )
        self.append_batch(batch, now_ms=now_ms, guard=transaction.guard)

    def replay(self) -> Iterator[ReplayedEntry]:
        """Read all entries from the start of the log. Later entries replace earlier ones."""
        for batch in self.batches():
            header = batch.header
            if header.is_control:
                marker = self._marker(batch)
                if marker is not None:
                    yield TransactionEnd(header.producer_id, marker.committed)
                continue
            entries: Iterator[Entry] = self.entries(batch, decode_entry)
            for entry in entries:
                if not header.is_transactional:
                    yield entry
                elif isinstance(entry, OffsetEntry):
                    yield PendingEntry(header.producer_id, entry)

    def _marker(self, batch: StoredBatch) -> EndTransactionMarker | None:
        try:
            return parse_marker(batch.data)
        except DecodeError as error:
            self.log_skipped(batch.header.base_offset, f"a marker that cannot be read: {error}")
            return None


def apply_entries(
    entries: Iterable[ReplayedEntry], pending: PendingOffsets
) -> dict[str, StoredGroup]:
    """Apply the entries in order; return the resulting state by group id.

    Offsets of transactions that have not ended are added to ``pending``.
    """
    groups: defaultdict[str, StoredGroup] = defaultdict(StoredGroup)
    for entry in entries:
        if isinstance(entry, PendingEntry):
            _apply_pending(entry, groups, pending)
        elif isinstance(entry, TransactionEnd):
            if not entry.committed:
                pending.abort(entry.producer_id)
                continue
            for (group_id, topic, partition), committed in pending.commit(entry.producer_id):
                groups[group_id].offsets.put(topic, partition, committed)
        elif isinstance(entry, OffsetEntry):
            _apply_offset(entry, groups, pending)
        else:
            groups[entry.group_id].apply(entry)
    open_groups = frozenset(pending.groups())
    return {
        key: stored
        for key, stored in groups.items()
        if stored.records or len(stored.offsets) or key in open_groups
    }


def _apply_pending(
    pending_entry: PendingEntry, groups: defaultdict[str, StoredGroup], pending: PendingOffsets
) -> None:
    producer_id, entry = pending_entry
    if entry.committed is None:
        _apply_offset(entry, groups, pending)
        return
    groups[entry.group_id]  # A group exists from its first pending offset on.
    pending.add(producer_id, entry.key, entry.committed)


def _apply_offset(
    entry: OffsetEntry, groups: defaultdict[str, StoredGroup], pending: PendingOffsets
) -> None:
    offsets = groups[entry.group_id].offsets
    if entry.committed is None:
        offsets.remove(entry.topic, entry.partition)
        pending.discard(entry.key)
    else:
        offsets.put(entry.topic, entry.partition, entry.committed)
        pending.committed(entry.key)


def group_error(code: ErrorCode) -> ErrorCode:
    """The error for members whose group could not be written."""
    if code in TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NOT_COORDINATOR if code is ErrorCode.KAFKA_STORAGE_ERROR else code


def commit_error(code: ErrorCode) -> ErrorCode:
    """The error for a client whose offsets could not be written."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if code in TOO_LARGE else group_error(code)
