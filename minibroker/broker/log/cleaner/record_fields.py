"""The fields of records that a cleaning needs: position, offset, key, and whether there is a value.

It must never know which records are kept. Invariant: damaged records are a DecodeError, never a
wrong key. The same bytes as ``minibroker_protocol.records.iter_records``, without values and
headers.
"""

from __future__ import annotations

from typing import NamedTuple

from minibroker.broker.log.cleaner.offset_map import KEY_BYTES_MAX, short_key
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import read_varint

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
