"""The batch that remains of a batch after a cleaning.

Owns which records are kept, by the last offsets of keys and by what was read of transactions so
far, and the bytes of the remaining batch. It must never know files or clocks: it is given bytes and
the time of the cleaning. Invariant: base offset, last offset, producer, sequence and order of the
kept records are unchanged, and a batch of which everything is kept is not written anew; a key in
the map has its largest offset up to ``latest_offset``; a marker is dispensable only if no batch of
its transaction was read before it. Echoes ``Cleaner.cleanInto``, ``MemoryRecords.filterTo``
(KIP-534), ``CleanedTransactionMetadata``, and ``SkimpyOffsetMap``, which stores an MD5 hash of each
key; here, only long keys are hashed.

The bytes of a kept record are copied, because they are relative to a base offset and a base
timestamp that remain. They change only if the batch gets a delete horizon, which takes the place
of the base timestamp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from heapq import heapify, heappop
from itertools import repeat
from operator import ge
from typing import Final, NamedTuple

from minibroker.broker.log.producers import AbortedTransaction
from minibroker_protocol.compression import Compression, decompress
from minibroker_protocol.control_records import parse_marker
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import (
    HEADER_BYTES,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    TimestampType,
    emptied,
    read_varint,
    replaced_records,
    varint,
)

ENTRY_BYTES: Final = 256
"""Memory of one entry at most: the key, the offset, and the slot while the table grows."""

BYTES_MIN: Final = 1024 * 1024
"""The smallest size of a map, so that a cleaning always makes progress. Kafka's minimum."""

KEY_BYTES_MAX: Final = 48
"""Longer keys are replaced by a hash, which is one byte longer than any key that is not."""

NO_OFFSET: Final = -1


def short_key(key: bytes) -> bytes:
    """What the map stores for a key: equal for equal keys only."""
    if len(key) <= KEY_BYTES_MAX:
        return key
    return blake2b(key, digest_size=KEY_BYTES_MAX + 1).digest()


def entries_max(size_bytes: int) -> int:
    """The number of entries of a map of this size."""
    return max(size_bytes, BYTES_MIN) // ENTRY_BYTES


class OffsetMap:
    """Offsets by key, as ``short_key`` returns it."""

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self.offsets: dict[bytes | None, int] = {}
        self.latest_offset: int = NO_OFFSET
        """The last offset up to which all keys are in the map."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def utilization(self) -> float:
        """Share of the entries that are used."""
        return len(self.offsets) / self.entries_max

    def put_all(self, keys: Iterable[tuple[bytes | None, int]], count: int) -> bool:
        """Record the offsets of at most ``count`` keys, ascending; returns False if it is full.

        The keys are as ``short_key`` returns them. What was put before the map was full counts up
        to ``latest_offset``.
        """
        if len(self.offsets) + count <= self.entries_max:
            self.offsets.update(keys)
            return True
        for key, offset in keys:
            if len(self.offsets) >= self.entries_max:  # Kafka's map rejects a known key, too.
                return False
            self.offsets[key] = self.latest_offset = offset
        return True


NULL = 1
"""The length -1 as a varint, of a key or value that is null."""


class RecordFields(NamedTuple):
    """Columns of the records of a batch.

    ``positions`` has one entry more: the end of the last record. ``keys`` are as in an offset map.
    ``tombstones`` are the indexes of records without a value.
    """

    positions: list[int]
    offsets: list[int]
    keys: list[bytes | None]
    tombstones: list[int]


def read_fields(data: bytes, at: int, count: int, base_offset: int) -> RecordFields:
    """Read the ``count`` records from position ``at`` on. Raises DecodeError.

    Varints of one and two bytes, which are the most frequent, are read in place.
    """
    fields = RecordFields([at], [], [], [])
    positions, offsets, keys, tombstones = fields
    add_position, add_offset, add_key = positions.append, offsets.append, keys.append
    size = len(data)
    try:
        for index in range(count):
            byte, following = data[at], data[at + 1]
            if byte < 0x80:
                end = at + 1 + (byte >> 1)
                at += 2  # The attributes, too.
            elif following < 0x80:
                end = at + 2 + ((byte & 0x7F | following << 7) >> 1)
                at += 3
            else:
                length, body = read_varint(data, at)
                end, at = body + length, body + 1
            while data[at] >= 0x80:  # The timestamp.
                at += 1
            byte, following = data[at + 1], data[at + 2]
            if byte < 0x80:
                add_offset(base_offset + (byte >> 1))
                at += 2
            elif following < 0x80:
                add_offset(base_offset + ((byte & 0x7F | following << 7) >> 1))
                at += 3
            else:
                delta, at = read_varint(data, at + 1)
                add_offset(base_offset + delta)
            byte = data[at]
            at += 1
            if byte == NULL:
                add_key(None)
            elif byte <= 2 * KEY_BYTES_MAX:
                key_end = at + (byte >> 1)
                add_key(data[at:key_end])
                at = key_end
            else:
                length, at = read_varint(data, at - 1)
                add_key(short_key(data[at : at + length]))
                at += length
            if data[at] == NULL:
                tombstones.append(index)
            if not at < end <= size:
                raise DecodeError(f"a record ends at {end} of {size} bytes", at)
            add_position(end)
            at = end
    except IndexError:
        raise DecodeError("a record is cut off", at) from None
    return fields


class _Aborted:
    def __init__(self, entry: AbortedTransaction) -> None:
        self.entry = entry
        self.has_data = False


class CleanedTransactions:
    """The state of one pass over a log; ``kept`` are aborted transactions that still have data."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._pending = [(entry.first_offset, entry) for entry in aborted]
        heapify(self._pending)
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions whose markers were read and are needed. The caller empties it."""

    def is_aborted(self, producer_id: int, last_offset: int) -> bool:
        """Read a transactional data batch; returns whether its transaction was aborted."""
        if self._pending:
            self._start_until(last_offset)
        aborted = self._aborted.get(producer_id)
        if aborted is None:
            self._committed.add(producer_id)
            return False
        aborted.has_data = True
        return True

    def is_dispensable(self, producer_id: int, last_offset: int, *, committed: bool | None) -> bool:
        """Read a control batch; returns whether no data of its transaction was read.

        ``committed`` is None for a control batch that ends no transaction, which stays.
        """
        if self._pending:
            self._start_until(last_offset)
        if committed is None:
            return False
        if committed:
            had_data = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_data
        aborted = self._aborted.pop(producer_id, None)
        if aborted is None or not aborted.has_data:
            return True
        self.kept.append(aborted.entry)
        return False

    def _start_until(self, offset: int) -> None:
        """Start the aborted transactions up to an offset."""
        pending = self._pending
        while pending and pending[0][0] <= offset:
            _, entry = heappop(pending)
            self._aborted.setdefault(entry.producer_id, _Aborted(entry))


_CODECS: Final = frozenset(Compression)


class LastRecord(NamedTuple):
    """The last batch of an active producer; ``data_offset`` is -1 if it has markers only."""

    data_offset: int
    epoch: int


class Filtered(NamedTuple):
    """What is written instead of a batch: ``data`` is None if nothing is."""

    data: Buffer | None
    max_timestamp: int = NO_TIMESTAMP
    records: int = 0


_REMOVED: Final = Filtered(None)


class SourceBatch(NamedTuple):
    """A batch in a buffer, from ``position`` on; the buffer is in a file at ``buffer_position``."""

    buffer: bytes
    position: int
    header: BatchHeader
    buffer_position: int = 0

    @property
    def end(self) -> int:
        """The position in the file where the batch ends."""
        return self.buffer_position + self.position + self.header.size

    @property
    def view(self) -> memoryview:
        return memoryview(self.buffer)[self.position : self.position + self.header.size]

    def is_commit(self) -> bool | None:
        """Whether this control batch commits or aborts a transaction; None if neither."""
        marker = parse_marker(self.view)
        return None if marker is None else marker.committed

    def section(self) -> tuple[bytes, int]:
        """The uncompressed records, and where they start. Raises DecodeError."""
        codec = self.header.codec
        if codec == Compression.NONE:
            return self.buffer, self.position + HEADER_BYTES
        if codec not in _CODECS:
            raise DecodeError(f"unknown compression codec {codec}", self.position)
        return bytes(decompress(Compression(codec), self.view[HEADER_BYTES:])), 0


class BatchFilter:
    """The rules of one cleaning. Batches must be given in the order of their offsets."""

    def __init__(
        self,
        offset_map: OffsetMap,
        transactions: CleanedTransactions,
        last_records: Mapping[int, LastRecord],
        *,
        now_ms: int,
        delete_retention_ms: int,
    ) -> None:
        self._last_offsets: Mapping[bytes | None, int] = offset_map.offsets
        self._latest_offset = offset_map.latest_offset
        self._transactions = transactions
        self._last_records = last_records
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms

    def apply(self, batch: SourceBatch, *, is_last: bool) -> Filtered:
        """The remaining batch. ``is_last`` keeps it, even empty: it marks the segment's end.

        Raises DecodeError if the records are damaged.
        """
        header = batch.header
        is_aborted = (  # Also asked for an empty batch, which needs its transaction's marker.
            header.is_transactional
            and not header.is_control
            and self._transactions.is_aborted(header.producer_id, header.last_offset)
        )
        if is_aborted or not header.record_count:
            kept = _REMOVED
        elif header.is_control:
            kept = self._filter_control(batch)
        else:
            kept = self._filter_records(batch)
        if kept.data is None and (is_last or self._is_last_of_producer(header)):
            return Filtered(emptied(header), header.max_timestamp)
        return kept

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._last_records.get(header.producer_id) if header.has_producer_id else None
        if last is None:
            return False
        if last.data_offset >= 0:
            return header.last_offset == last.data_offset
        return header.is_control and header.producer_epoch == last.epoch

    def _filter_control(self, batch: SourceBatch) -> Filtered:
        header = batch.header
        is_dispensable = self._transactions.is_dispensable(
            header.producer_id, header.last_offset, committed=batch.is_commit()
        )
        if is_dispensable and header.has_delete_horizon:
            if header.base_timestamp <= self._now_ms:
                return _REMOVED
        elif is_dispensable:
            data, start = batch.section()
            ranges = [(start, len(data) if header.codec else batch.position + header.size)]
            return self._with_horizon(batch, data, ranges, header.record_count)
        return Filtered(batch.view, header.max_timestamp, header.record_count)

    def _filter_records(self, batch: SourceBatch) -> Filtered:
        header = batch.header
        data, start = batch.section()
        fields = read_fields(data, start, header.record_count, header.base_offset)
        keeps = self._choose(header, fields)
        count = keeps.count(True)
        if not count:
            return _REMOVED
        has_tombstones = any(keeps[index] for index in fields.tombstones)
        if has_tombstones and not header.has_delete_horizon:
            return self._with_horizon(batch, data, _ranges(fields.positions, keeps), count)
        if count == header.record_count:
            return Filtered(batch.view, header.max_timestamp, count)
        positions = fields.positions
        ranges = _ranges(positions, keeps)
        section = b"".join([data[first:end] for first, end in ranges])
        last = len(keeps) - 1 - keeps[::-1].index(True)
        last_bytes = positions[last + 1] - positions[last]
        max_timestamp = _max_timestamp(section, len(section) - last_bytes, header)
        rewritten = replaced_records(header, section, count, max_timestamp=max_timestamp)
        return Filtered(rewritten, max_timestamp, count)

    def _choose(self, header: BatchHeader, fields: RecordFields) -> list[bool]:
        """Whether to keep each record."""
        offsets, keys, latest = fields.offsets, fields.keys, self._latest_offset
        keeps = list(map(ge, offsets, map(self._last_offsets.get, keys, repeat(NO_OFFSET))))
        if None in keys:
            keeps = [keep and key is not None for keep, key in zip(keeps, keys, strict=True)]
        if header.has_delete_horizon and header.base_timestamp <= self._now_ms:
            for index in fields.tombstones:
                keeps[index] = False
        if header.last_offset > latest:  # Not in the map, because it was full.
            keeps = [keep or at > latest for keep, at in zip(keeps, offsets, strict=True)]
        return keeps

    def _with_horizon(
        self, batch: SourceBatch, data: bytes, ranges: list[tuple[int, int]], count: int
    ) -> Filtered:
        """Rewrite the batch with a delete horizon."""
        header, horizon_ms = batch.header, self._horizon_ms
        is_append_time = header.timestamp_type is TimestampType.LOG_APPEND_TIME
        pieces: list[bytes] = []
        max_timestamp = NO_TIMESTAMP
        for position, end in ranges:
            at = position
            while at < end:
                length, body = read_varint(data, at)
                delta, rest = read_varint(data, body + 1)
                timestamp = (
                    header.max_timestamp if is_append_time else header.base_timestamp + delta
                )
                max_timestamp = max(max_timestamp, timestamp)
                record_end = body + length
                start = data[body : body + 1] + varint(timestamp - horizon_ms)
                pieces += (
                    varint(len(start) + record_end - rest),
                    start,
                    data[rest:record_end],
                )
                at = record_end
        rewritten = replaced_records(
            header,
            b"".join(pieces),
            count,
            max_timestamp=max_timestamp,
            delete_horizon=horizon_ms,
        )
        return Filtered(rewritten, max_timestamp, count)


def _ranges(positions: list[int], keeps: list[bool]) -> list[tuple[int, int]]:
    """The positions between which all records are kept."""
    ranges: list[tuple[int, int]] = []
    keeps = [*keeps, True, False]  # So that each search finds something.
    index, count = keeps.index(True), len(keeps) - 2
    while index < count:
        following = min(keeps.index(False, index), count)
        ranges.append((positions[index], positions[following]))
        index = keeps.index(True, following)
    return ranges


def _max_timestamp(section: bytes, last: int, header: BatchHeader) -> int:
    """The largest timestamp of the kept records, of which the last one starts at ``last``."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return header.max_timestamp
    delta, _ = read_varint(section, read_varint(section, last)[1] + 1)
    if header.base_timestamp + delta == header.max_timestamp:
        return header.max_timestamp  # As usual: times ascend.
    at, end, largest = 0, len(section), -(2**63)
    while at < end:
        length, body = read_varint(section, at)
        delta, _ = read_varint(section, body + 1)
        largest = max(largest, delta)
        at = body + length
    return header.base_timestamp + largest


def map_keys(batch: SourceBatch, offset_map: OffsetMap, start_offset: int) -> bool:
    """Put the keys of the batch's records from ``start_offset`` on into the map.

    Returns False if the map became full before the end. Raises DecodeError.
    """
    header = batch.header
    fields = read_fields(*batch.section(), header.record_count, header.base_offset)
    found: Iterable[tuple[bytes | None, int]] = zip(fields.keys, fields.offsets, strict=True)
    if None in fields.keys or header.base_offset < start_offset:
        found = ((key, at) for key, at in found if key is not None and at >= start_offset)
    return offset_map.put_all(found, header.record_count)
