"""Record batches with any header and any bytes for records, under a right checksum.

Owns the layout of a batch's header where a builder would refuse or correct it; it knows no sockets
and sends nothing. The invariant: length and checksum are right unless a field overrides them.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from minibroker_protocol.compression import Compression, compress
from minibroker_protocol.records import HEADER_BYTES, MAGIC

FIRST_MS: Final = 1_700_000_000_000

_PREFIX: Final = struct.Struct(">qiibI")
_CHECKED: Final = struct.Struct(">hiqqqhii")
_LENGTH_OVERHEAD_BYTES: Final = 12


def with_section(
    section: bytes, count: int, codec: Compression = Compression.NONE, **fields: int
) -> bytes:
    """A batch that claims ``count`` records and has these bytes, compressed, for them."""
    return sealed(compress(codec, section), count=count, attributes=int(codec), **fields)


def sealed(
    body: bytes,
    *,
    count: int,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_offset: int = 0,
    base_timestamp: int = FIRST_MS,
    max_timestamp: int = FIRST_MS,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = -1,
    magic: int = MAGIC,
    length_error: int = 0,
    checksum_error: int = 0,
) -> bytes:
    """A batch of these bytes; the two errors are added to the right length and checksum."""
    delta = count - 1 if last_offset_delta is None else last_offset_delta
    delta = (delta + 2**31) % 2**32 - 2**31
    checked = _CHECKED.pack(
        attributes,
        delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    length = HEADER_BYTES - _LENGTH_OVERHEAD_BYTES + len(body) + length_error
    checksum = (crc32c(body, crc32c(checked)) + checksum_error) % 2**32
    return _PREFIX.pack(base_offset, length, leader_epoch, magic, checksum) + checked + body
