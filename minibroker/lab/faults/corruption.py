"""Damaged responses: checksums of batches, single bits, lengths, correlation ids, unknown fields.

Owns the positions of what is damaged. It must never know a rule or a connection. Invariant: only
the bytes that are named change, so a test knows what its client met. Record batches are laid out as
in Kafka's ``DefaultRecordBatch``.
"""

from __future__ import annotations

import struct
from typing import Final

from minibroker_protocol.schema import Struct

LENGTH_BYTES: Final = 4
CORRELATION_ID_BYTES: Final = 4

UNKNOWN_TAG: Final = 9_999
UNKNOWN_VALUE: Final = b"unknown"

_CRC_AT: Final = 17
_CRC_END: Final = 21
_INT: Final = struct.Struct(">i")


def damage_crc(records: bytes) -> bytes:
    """Change the checksum of the first batch; records without a complete one stay as they are."""
    if len(records) < _CRC_END:
        return records
    return records[:_CRC_AT] + bytes([records[_CRC_AT] ^ 0xFF]) + records[_CRC_AT + 1 :]


def add_tagged_field(response: Struct) -> None:
    """Add a tagged field that no version of Kafka has; only flexible versions encode it."""
    response.unknown_tagged_fields = {
        **(response.unknown_tagged_fields or {}),
        UNKNOWN_TAG: UNKNOWN_VALUE,
    }


def damage_frame(frame: bytes, part: str, position: int | None) -> bytes:
    """Damage a response with its length.

    ``part`` is a ``CorruptPart`` other than the checksum and the tagged field.

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
