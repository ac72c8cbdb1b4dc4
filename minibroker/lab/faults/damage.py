"""Damaged responses: bytes, frames and record batches, as the action ``corrupt`` sends them.

Owns what each part of a response looks like when it is damaged. It must never know rules or
requests. Invariant: what is not named stays as it is, and a batch whose values are changed has the
right checksum, so that only its reader can notice.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import iter_batches, with_values
from minibroker_protocol.schema import Struct

CorruptPart: TypeAlias = Literal[
    "crc",
    "payload",
    "schema_id",
    "repeat",
    "bit",
    "length",
    "correlation_id",
    "tagged_field",
    "truncate",
]

RECORD_PARTS: Final = frozenset({"crc", "payload", "schema_id", "repeat"})
"""Parts of record batches."""

LENGTH_BYTES: Final = 4
CORRELATION_ID_BYTES: Final = 4

UNKNOWN_TAG: Final = 9_999
UNKNOWN_VALUE: Final = b"unknown"

_CRC_AT: Final = 17
_CRC_END: Final = 21
_INT: Final = struct.Struct(">i")
UNKNOWN_SCHEMA_ID: Final = 2**31 - 1
_SCHEMA_MAGIC: Final = 0
_SCHEMA_HEADER_BYTES: Final = 5
"""Confluent's wire format: a zero, and the id of the schema in four bytes."""

_Value: TypeAlias = bytes | None


def damage_records(records: bytes, part: CorruptPart) -> bytes:
    """Damage the first batch; records without one stay as they are.

    Record batches are laid out as in Kafka's ``DefaultRecordBatch``.
    """
    if part == "crc":
        return _damage_crc(records)
    try:
        header = next((header for _, header in iter_batches(records)), None)
        if header is None:
            return records
        batch, rest = records[: header.size], records[header.size :]
        return _damage_batch(batch, part) + rest
    except DecodeError:
        return records  # Of an older format, or damaged already.


def _damage_crc(records: bytes) -> bytes:
    if len(records) < _CRC_END:
        return records
    return records[:_CRC_AT] + bytes([records[_CRC_AT] ^ 0xFF]) + records[_CRC_AT + 1 :]


def _damage_batch(batch: bytes, part: CorruptPart) -> bytes:
    if part == "repeat":
        return batch + batch
    return with_values(batch, _first_damaged() if part == "payload" else _unknown_schema)


def _first_damaged() -> Callable[[_Value], _Value]:
    """Returns a function that changes a bit in the middle of the first value that is not empty."""
    is_done = False

    def damage(value: _Value) -> _Value:
        nonlocal is_done
        if is_done or not value:
            return value
        is_done = True
        at = len(value) // 2
        return value[:at] + bytes([value[at] ^ 0x01]) + value[at + 1 :]

    return damage


def _unknown_schema(value: _Value) -> _Value:
    if value is None or len(value) < _SCHEMA_HEADER_BYTES or value[0] != _SCHEMA_MAGIC:
        return value
    return value[:1] + _INT.pack(UNKNOWN_SCHEMA_ID) + value[_SCHEMA_HEADER_BYTES:]


def add_tagged_field(response: Struct) -> None:
    """Add a tagged field that no version of Kafka has; only flexible versions encode it."""
    response.unknown_tagged_fields = {
        **(response.unknown_tagged_fields or {}),
        UNKNOWN_TAG: UNKNOWN_VALUE,
    }


def damage_frame(frame: bytes, part: CorruptPart, position: int | None) -> bytes:
    """Damage a response with its length.

    ``part`` is other than the checksum and the tagged field.

    ``position`` is the byte of the changed bit after the length, by default in the middle; for
    ``truncate`` the number of bytes that are cut, by default half of the response.
    """
    body = frame[LENGTH_BYTES:]
    if part == "bit":
        at = min(len(body) // 2 if position is None else position, len(body) - 1)
        body = body[:at] + bytes([body[at] ^ 0x01]) + body[at + 1 :]
        return frame[:LENGTH_BYTES] + body
    if part == "length":
        return _INT.pack(len(body) + 1) + body
    if part == "correlation_id":
        (correlation_id,) = _INT.unpack_from(body)
        return frame[:LENGTH_BYTES] + _INT.pack(correlation_id ^ 1) + body[CORRELATION_ID_BYTES:]
    cut = len(body) // 2 if position is None else min(position, len(body))
    body = body[: len(body) - cut]
    return _INT.pack(len(body)) + body
