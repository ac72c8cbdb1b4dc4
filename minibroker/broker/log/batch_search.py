"""A search for one record by its timestamp inside a batch.

Owns the iteration over the records of one batch, which is given as bytes. It must never know files
or logs, so that a large batch can be searched outside the worker's loop. Invariant: a search takes
time in proportion to one batch, and memory up to ``DECOMPRESSED_MAX_BYTES``.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker.broker.log.validation import DECOMPRESSED_MAX_BYTES, STEP_BYTES_MAX
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import BatchHeader, TimestampType, read_varint, records_section

SEARCH_STEP_RECORDS_MAX: Final = 1000
"""Records that are searched in one step of a worker's loop: about half a millisecond."""


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
    epoch = header.partition_leader_epoch
    try:
        found = _first_record(
            bytes(records_section(data, header, limit)),
            header.record_count,
            query.timestamp - header.base_timestamp,
            query.first_offset - header.base_offset,
        )
    except DecodeError:
        if limit != DECOMPRESSED_MAX_BYTES:
            raise
        # An earlier version stored it without checking its records. Later batches must be found.
        return TimestampOffset(header.max_timestamp, header.last_offset, epoch)
    if found is None:
        return None
    time_delta, offset_delta = found
    return TimestampOffset(
        header.base_timestamp + time_delta, header.base_offset + offset_delta, epoch
    )


def _first_record(
    data: bytes, count: int, time_from: int, offset_from: int
) -> tuple[int, int] | None:
    """The deltas of the first of ``count`` records with at least these; only they are read.

    Varints of one byte are read in place: a call would take longer than the rest of a record.
    """
    at = 0
    try:
        for _ in range(count):
            byte = data[at]
            if byte < 0x80:
                end = at + 1 + (byte >> 1)
                at += 2  # The attributes, too.
            else:
                length, at = read_varint(data, at)
                end = at + length
                at += 1
            time_delta = data[at]
            if time_delta < 0x80:
                time_delta = (time_delta >> 1) ^ -(time_delta & 1)
                at += 1
            else:
                time_delta, at = read_varint(data, at)
            if end <= at:
                raise DecodeError(f"a record ends at {end}, before its fields", at)
            if time_delta >= time_from:
                offset_delta, at = read_varint(data, at)
                if offset_delta >= offset_from:
                    return time_delta, offset_delta
            at = end
    except IndexError:
        raise DecodeError("a record is cut off", at) from None
    return None
