"""One partition of ``__consumer_offsets``: writes and replays group metadata and offsets.

Owns the records and the size of the partition's log. It must never know the rules of groups.
Invariant: the entries of one commit are written in one batch by one system call, so a crash keeps
all or none of them, and no content of the log makes a replay fail. When the log has grown to a
small multiple of its live entries, these are written to a new segment, which becomes the start of
the log. After a crash between the two steps, the log contains both copies, with the same result. In
Kafka, this is the work of the log cleaner.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator

from minibroker.coordinator.events import GroupRecord
from minibroker.coordinator.limits import (
    OFFSETS_LOG_BATCH_BYTES,
    OFFSETS_LOG_BYTES_MAX,
    OFFSETS_LOG_GROWTH,
)
from minibroker.coordinator.offsets import OffsetTable
from minibroker.coordinator.records import (
    CLASSIC,
    Entry,
    OffsetEntry,
    decode_entry,
    encode_entry,
)
from minibroker.storage.errors import LogError
from minibroker.storage.log import Origin
from minibroker.storage.partition import Partition
from protocol.errors import DecodeError, ErrorCode, UnsupportedVersion
from protocol.records import BatchHeader, Record, build_batch, iter_batches, iter_records

_logger = logging.getLogger(__name__)

READ_BYTES = 4 * 1024 * 1024
"""Bytes of a log that are read at a time."""

REPLAYED_RECORDS_MAX = 100_000
"""Larger batches are skipped. The coordinator's own batches have far fewer records."""

REPLAYED_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of one batch after decompression."""

WARNINGS_MAX = 20
"""Log lines about skipped records per replay of a log."""

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
        if record.encode_value() is not None:
            self.records[key] = record

    def entries(self, group_id: str) -> Iterator[Entry]:
        """The smallest list of entries that restores this state."""
        yield from self.records.values()
        for topic, partition, committed in self.offsets:
            yield OffsetEntry(group_id, topic, partition, committed)

    def tombstones(self, group_id: str) -> Iterator[Entry]:
        """Entries that delete the group and its offsets."""
        for topic, partition, _ in self.offsets:
            yield OffsetEntry(group_id, topic, partition, None)
        for record in self.records.values():
            yield record.tombstone()


def apply_entries(entries: Iterable[Entry]) -> dict[str, StoredGroup]:
    """Apply the entries in order; return the resulting state by group id."""
    groups: defaultdict[str, StoredGroup] = defaultdict(StoredGroup)
    for entry in entries:
        stored = groups[entry.group_id]
        if not isinstance(entry, OffsetEntry):
            stored.apply(entry)
        elif entry.committed is None:
            stored.offsets.remove(entry.topic, entry.partition)
        else:
            stored.offsets.put(entry.topic, entry.partition, entry.committed)
    return {key: stored for key, stored in groups.items() if stored.records or len(stored.offsets)}


class OffsetsLog:
    """A log of entries, used by a single thread. Times are epoch milliseconds."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.log = partition.log
        self._written_bytes = self.log.size
        self._live_bytes = 0

    @property
    def needs_compaction(self) -> bool:
        """Whether the log has grown enough to be compacted."""
        return self._written_bytes > max(
            OFFSETS_LOG_BYTES_MAX, OFFSETS_LOG_GROWTH * self._live_bytes
        )

    def write(self, entries: Iterable[Entry], *, now_ms: int) -> None:
        """Append one or more entries as one batch.

        Raises ``LogError`` if nothing was written.
        """
        self._append(_records(entries, now_ms), now_ms)

    def replay(self) -> Iterator[Entry]:
        """Read all entries from the start of the log. Later entries replace earlier ones.

        Batches and records that cannot be read are skipped. Each is logged, up to a limit per log.
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
                    if not header.is_control:
                        batch = data[position : position + header.size]
                        yield from self._entries(batch, header)
            except (DecodeError, LogError, OSError) as error:
                self._log_skipped(offset, f"the rest of a segment, which cannot be read: {error}")
                offset = self.log.next_segment_offset(previous_offset)
            if offset <= previous_offset:
                self._log_skipped(
                    previous_offset, "the rest of a segment, which has no complete batch"
                )
                offset = self.log.next_segment_offset(previous_offset)

    def _entries(self, batch: memoryview, header: BatchHeader) -> Iterator[Entry]:
        if header.record_count > REPLAYED_RECORDS_MAX:
            self._log_skipped(header.base_offset, f"a batch of {header.record_count} records")
            return
        try:
            for record in iter_records(batch, REPLAYED_BYTES_MAX):
                entry = self._entry(record)
                if entry is not None:
                    yield entry
        except DecodeError as error:
            self._log_skipped(header.base_offset, f"a batch that cannot be read: {error}")

    def _entry(self, record: Record) -> Entry | None:
        if record.key is None or record.offset < self.log.log_start_offset:
            return None
        try:
            return decode_entry(record.key, record.value)
        except (DecodeError, UnsupportedVersion) as error:
            self._log_skipped(record.offset, f"a record that cannot be read: {error}")
            return None

    def _log_skipped(self, offset: int, reason: str) -> None:
        self._warnings += 1
        if self._warnings <= WARNINGS_MAX:
            _logger.warning("%s offset %d is skipped: %s", self.log.directory, offset, reason)
        elif self._warnings == WARNINGS_MAX + 1:
            _logger.warning("%s: further records are skipped", self.log.directory)

    def compact(self, live: Iterable[Entry], *, now_ms: int) -> None:
        """Replace the content of the log by the ``live`` entries.

        Raises ``LogError``; the content of the log is then unchanged.
        """
        previous_bytes = self._written_bytes
        self._written_bytes = 0
        try:
            self.log.roll(now_ms=now_ms)
            start = self.log.log_end_offset
            batch: list[Record] = []
            size = 0
            for record in _records(live, now_ms):
                batch.append(record)
                size += len(record.key or b"") + len(record.value or b"")
                if size >= OFFSETS_LOG_BATCH_BYTES:
                    self._append(batch, now_ms)
                    batch, size = [], 0
            if batch:
                self._append(batch, now_ms)
        except Exception:
            # The old entries remain. The next attempt waits until the log has grown again.
            self._written_bytes += previous_bytes
            self._live_bytes = self._written_bytes
            raise
        self._live_bytes = self._written_bytes
        self._partition.delete_records(start)
        self.log.apply_retention(now_ms=now_ms)

    def clear(self) -> None:
        """Delete all records. Retention frees the space later."""
        self._written_bytes = self._live_bytes = 0
        self._partition.delete_records(self.log.log_end_offset)

    def _append(self, records: Iterable[Record], now_ms: int) -> None:
        batch = build_batch(records)
        self._partition.append_as_leader(
            memoryview(batch), now_ms=now_ms, origin=Origin.COORDINATOR
        )
        self._written_bytes += len(batch)


def _records(entries: Iterable[Entry], now_ms: int) -> Iterator[Record]:
    for entry in entries:
        key, value = encode_entry(entry)
        yield Record(timestamp=now_ms, key=key, value=value)


def group_error(code: ErrorCode) -> ErrorCode:
    """The error for members whose group could not be written."""
    if code in TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NOT_COORDINATOR if code is ErrorCode.KAFKA_STORAGE_ERROR else code


def commit_error(code: ErrorCode) -> ErrorCode:
    """The error for a client whose offsets could not be written."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if code in TOO_LARGE else group_error(code)
