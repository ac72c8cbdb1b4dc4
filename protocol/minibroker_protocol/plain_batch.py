"""Reads batches of one plain record quickly: what a producer sends that does not batch.

Owns the check of such a batch in one step. It must never know files or settings. Invariant: a batch
that is read is one that `minibroker_protocol.records` and `minibroker_protocol.record_scan` accept,
with the same header and timestamp; any other batch, damaged or merely different, is read as None
and is left to them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from minibroker_protocol.checksum import crc32c
from minibroker_protocol.records import (
    CHECKED_POSITION,
    HEADER,
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
)

_NULL: Final = 1
"""The length of a null key or value, as a zigzag varint."""


class PlainBatch(NamedTuple):
    """A batch of one uncompressed record without headers."""

    header: BatchHeader
    timestamp: int
    has_key: bool


def read_plain_batch(batch: memoryview) -> PlainBatch | None:
    """Return the batch if it is valid and all of the bytes, else None.

    It has create time, no transaction and offset 0, as producers send it.
    """
    if len(batch) <= HEADER_BYTES:
        return None
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if (
        header[3] != MAGIC
        or header[0] != 0  # base offset
        or header[5] != 0  # attributes
        or header[12] != 1  # records
        or header[6] != 0  # last offset delta
        or header[1] + LENGTH_OVERHEAD_BYTES != len(batch)
        or crc32c(batch[CHECKED_POSITION:]) != header[4]
    ):
        return None
    try:
        found = _read_record(bytes(batch[HEADER_BYTES:]))
    except IndexError:
        return None
    return None if found is None else PlainBatch(header, header[7] + found[0], found[1])


def _read_record(data: bytes) -> tuple[int, bool] | None:
    """The timestamp delta of the record, and whether it has a key."""
    length, at = data[0], 1
    if length > 127:
        if data[1] > 127:
            return None
        length, at = length & 127 | data[1] << 7, 2
    delta = data[at + 1]
    # Attributes mean nothing; the offset delta is 0.
    if length & 1 or at + (length >> 1) != len(data) or delta > 127 or data[at + 2]:
        return None
    key = data[at + 3]
    at += 4
    if key != _NULL:
        if key > 127 or key & 1:
            return None
        at += key >> 1
    value = data[at]
    at += 1
    if value != _NULL:
        if value > 127:
            if data[at] > 127:
                return None
            value, at = value & 127 | data[at] << 7, at + 1
        if value & 1:
            return None
        at += value >> 1
    if data[at] or at + 1 != len(data):
        return None  # It has headers, or something follows it.
    return (delta >> 1) ^ -(delta & 1), key != _NULL
