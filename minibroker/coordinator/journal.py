"""One partition of ``__consumer_offsets``: writes group metadata and offsets, and replays them.

Owns the records of a partition's log and its size. It must never know what a group is. Invariant:
the entries of one commit are in one batch and one system call, so after a kill either all or none
of them are there, and nothing in the log prevents a replay. When more was written than a small
multiple of the live state, the live state is written again to a new segment, and the log then
starts there; after a kill between the two steps both copies are there, with the same meaning. Kafka
leaves that work to its log cleaner.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator

from minibroker.coordinator.events import GroupImage
from minibroker.coordinator.limits import JOURNAL_BATCH_BYTES, JOURNAL_BYTES_MAX, JOURNAL_GROWTH
from minibroker.coordinator.offsets import OffsetTable
from minibroker.coordinator.records import (
    Entry,
    GroupEntry,
    OffsetEntry,
    decode_entry,
    encode_entry,
)
from minibroker.storage.errors import LogError
from minibroker.storage.log import Log, Origin
from protocol.errors import DecodeError, ErrorCode, UnsupportedVersion
from protocol.records import BatchHeader, Record, build_batch, iter_batches, iter_records

_logger = logging.getLogger(__name__)

READ_BYTES = 4 * 1024 * 1024
"""How much of a log is read at a time."""

REPLAYED_RECORDS_MAX = 100_000
"""Records of one batch that are replayed. The coordinator's own batches have far fewer."""

REPLAYED_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of one batch's records once they are decompressed."""

WARNINGS_MAX = 20
"""Log lines about skipped records for each replay of a log."""

TOO_LARGE = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class Stored:
    """What a journal says of one group; without an image, only that it has offsets."""

    __slots__ = ("image", "offsets")

    def __init__(self) -> None:
        self.image: GroupImage | None = None
        self.offsets = OffsetTable()

    def entries(self, group_id: str) -> Iterator[Entry]:
        """The same as a journal says it in as few words as possible."""
        if self.image is not None:
            yield GroupEntry(group_id, self.image)
        for topic, partition, committed in self.offsets:
            yield OffsetEntry(group_id, topic, partition, committed)

    def tombstones(self, group_id: str) -> Iterator[Entry]:
        """What makes a journal forget the group."""
        for topic, partition, _ in self.offsets:
            yield OffsetEntry(group_id, topic, partition, None)
        yield GroupEntry(group_id, None)


def fold(entries: Iterable[Entry]) -> dict[str, Stored]:
    """What holds after these entries, by group id."""
    groups: defaultdict[str, Stored] = defaultdict(Stored)
    for entry in entries:
        stored = groups[entry.group_id]
        if isinstance(entry, GroupEntry):
            stored.image = entry.image
        elif entry.committed is None:
            stored.offsets.remove(entry.topic, entry.partition)
        else:
            stored.offsets.put(entry.topic, entry.partition, entry.committed)
    return {key: held for key, held in groups.items() if held.image or len(held.offsets)}


class Journal:
    """A log of entries. One owner, one thread; times are epoch milliseconds."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._written = log.size
        self._live = 0

    @property
    def wants_rewrite(self) -> bool:
        """Whether so much was written that the live state should be written anew."""
        return self._written > max(JOURNAL_BYTES_MAX, JOURNAL_GROWTH * self._live)

    def write(self, entries: Iterable[Entry], *, now_ms: int) -> None:
        """Appends the entries, of which there must be one, as one batch.

        Raises ``LogError``, and then nothing was written.
        """
        self._append(_records(entries, now_ms), now_ms)

    def replay(self) -> Iterator[Entry]:
        """Every entry from the log's start on; later ones supersede earlier ones.

        Batches and records that cannot be read are skipped with a warning, a bounded number of
        them for each log.
        """
        self._warnings = 0
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            before = offset
            try:
                piece = self.log.read(offset, READ_BYTES)
                data = memoryview(b"" if piece is None else piece.load())
                for position, header in iter_batches(data):
                    offset = header.next_offset
                    if not header.is_control:
                        batch = data[position : position + header.size]
                        yield from self._entries(batch, header)
            except (DecodeError, LogError, OSError) as error:
                self._skipped(offset, f"the rest of a segment, which cannot be read: {error}")
                offset = self.log.next_segment_offset(before)
            if offset <= before:
                self._skipped(before, "the rest of a segment, which has no complete batch")
                offset = self.log.next_segment_offset(before)

    def _entries(self, batch: memoryview, header: BatchHeader) -> Iterator[Entry]:
        if header.record_count > REPLAYED_RECORDS_MAX:
            self._skipped(header.base_offset, f"a batch of {header.record_count} records")
            return
        try:
            for record in iter_records(batch, REPLAYED_BYTES_MAX):
                entry = self._entry(record)
                if entry is not None:
                    yield entry
        except DecodeError as error:
            self._skipped(header.base_offset, f"a batch that cannot be read: {error}")

    def _entry(self, record: Record) -> Entry | None:
        if record.key is None or record.offset < self.log.log_start_offset:
            return None
        try:
            return decode_entry(record.key, record.value)
        except (DecodeError, UnsupportedVersion) as error:
            self._skipped(record.offset, f"a record that cannot be read: {error}")
            return None

    def _skipped(self, offset: int, reason: str) -> None:
        self._warnings += 1
        if self._warnings <= WARNINGS_MAX:
            _logger.warning("%s offset %d is skipped: %s", self.log.directory, offset, reason)
        elif self._warnings == WARNINGS_MAX + 1:
            _logger.warning("%s: further records are skipped", self.log.directory)

    def rewrite(self, live: Iterable[Entry], *, now_ms: int) -> None:
        """Makes the log hold ``live`` and nothing else.

        Raises ``LogError``; the log then says what it said before.
        """
        before = self._written
        self._written = 0
        try:
            self.log.roll(now_ms=now_ms)
            start = self.log.log_end_offset
            batch: list[Record] = []
            size = 0
            for record in _records(live, now_ms):
                batch.append(record)
                size += len(record.key or b"") + len(record.value or b"")
                if size >= JOURNAL_BATCH_BYTES:
                    self._append(batch, now_ms)
                    batch, size = [], 0
            if batch:
                self._append(batch, now_ms)
        except Exception:
            # What was there still counts, and the next attempt comes only after as much again.
            self._written += before
            self._live = self._written
            raise
        self._live = self._written
        self.log.delete_records(start)
        self.log.apply_retention(now_ms=now_ms)

    def clear(self) -> None:
        """Makes the log hold nothing; the next retention frees its space."""
        self._written = self._live = 0
        self.log.delete_records(self.log.log_end_offset)

    def _append(self, records: Iterable[Record], now_ms: int) -> None:
        batch = build_batch(records)
        self.log.append(memoryview(batch), now_ms=now_ms, origin=Origin.COORDINATOR)
        self._written += len(batch)


def _records(entries: Iterable[Entry], now_ms: int) -> Iterator[Record]:
    for entry in entries:
        key, value = encode_entry(entry)
        yield Record(timestamp=now_ms, key=key, value=value)


def group_error(code: ErrorCode) -> ErrorCode:
    """What members are told when their group could not be written."""
    if code in TOO_LARGE:
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return ErrorCode.NOT_COORDINATOR if code is ErrorCode.KAFKA_STORAGE_ERROR else code


def commit_error(code: ErrorCode) -> ErrorCode:
    """What a client is told when its offsets could not be written."""
    return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if code in TOO_LARGE else group_error(code)
