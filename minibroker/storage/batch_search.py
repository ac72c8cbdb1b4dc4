"""A search for one record by its timestamp inside a batch.

Owns the iteration over the records of one batch, which is given as bytes. It must never know files
or logs, so that a large batch can be searched outside the worker's loop. Invariant: a search takes
time in proportion to one batch, and memory up to ``DECOMPRESSED_MAX_BYTES``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.storage.validation import DECOMPRESSED_MAX_BYTES, STEP_BYTES_MAX
from protocol.compression import Compression
from protocol.errors import DecodeError
from protocol.records import BatchHeader, Record, TimestampType, iter_records

SEARCH_STEP_RECORDS_MAX: Final = 1000
"""Records that are searched in one step of a worker's loop: a few milliseconds."""


class TimestampOffset(NamedTuple):
    """The result of a search by time; ``leader_epoch`` is the batch's, or -1 if it has none."""

    timestamp: int
    offset: int
    leader_epoch: int


class TimeQuery(NamedTuple):
    """A search for the first record from ``first_offset`` on with at least this timestamp (ms)."""

    timestamp: int
    first_offset: int = 0


class LargeBatchError(Exception):
    """The batch is too large for the loop: call ``search`` in a thread."""

    def __init__(self, data: bytes, header: BatchHeader, query: TimeQuery) -> None:
        super().__init__(header.record_count)
        self._data = data
        self._header = header
        self._query = query
        self.next_offset = header.next_offset

    def search(self) -> TimestampOffset | None:
        """The record, or None if the batch has none."""
        return _search_records(self._data, self._header, self._query, DECOMPRESSED_MAX_BYTES)


def search_in_step(data: bytes, header: BatchHeader, query: TimeQuery) -> TimestampOffset | None:
    """Search a batch; raises LargeBatchError if that would take the loop too long."""
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return _search_log_append_time(header, query)
    if header.record_count > SEARCH_STEP_RECORDS_MAX:
        raise LargeBatchError(data, header, query)
    if header.codec == Compression.NONE:
        return _search_records(data, header, query, DECOMPRESSED_MAX_BYTES)
    try:
        return _search_records(data, header, query, STEP_BYTES_MAX)
    except DecodeError:
        raise LargeBatchError(data, header, query) from None


def _search_log_append_time(header: BatchHeader, query: TimeQuery) -> TimestampOffset | None:
    offset = max(header.base_offset, query.first_offset)
    if header.max_timestamp < query.timestamp or offset > header.last_offset:
        return None
    return TimestampOffset(header.max_timestamp, offset, header.partition_leader_epoch)


def _search_records(
    data: bytes, header: BatchHeader, query: TimeQuery, limit: int
) -> TimestampOffset | None:
    try:
        for record in iter_records(data, limit):
            if record.timestamp >= query.timestamp and record.offset >= query.first_offset:
                return _timestamp_offset(record, header)
    except DecodeError:
        if limit != DECOMPRESSED_MAX_BYTES:
            raise
        # An earlier version stored it without checking its records. Later batches must be found.
        return _timestamp_offset(Record(header.last_offset, header.max_timestamp), header)
    return None


def _timestamp_offset(record: Record, header: BatchHeader) -> TimestampOffset:
    return TimestampOffset(record.timestamp, record.offset, header.partition_leader_epoch)
