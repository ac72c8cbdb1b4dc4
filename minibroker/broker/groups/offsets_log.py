"""One partition of ``__consumer_offsets``: writes and replays group metadata and offsets.

Owns the records of the partition's log. It must never know the rules of groups.
Invariant: the entries of one commit are written in one batch, so a crash keeps all or none of them,
and offsets that were committed in a transaction are in force only after its marker. Kafka's
counterparts are ``GroupCoordinatorRecordHelpers`` and ``CoordinatorLoader``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from minibroker.broker.groups.events import GroupRecord
from minibroker.broker.groups.offsets import OffsetTable, PendingOffsets
from minibroker.broker.groups.records import (
    CLASSIC,
    Entry,
    OffsetEntry,
    decode_entry,
    encode_entry,
)
from minibroker.broker.groups.state_log import StateLog, StoredBatch
from minibroker.broker.log.transactions import Guard
from minibroker_protocol.control_records import EndTransactionMarker, parse_marker
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.records import Record, build_batch


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
        if record.encode_value() is not None:
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
