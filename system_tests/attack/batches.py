"""Record batches that no honest client sends, most of them with a right checksum.

Owns their kinds and bytes; it knows no sockets and no broker. The invariant: the same dice give the
same batch, and a batch is small however much it claims or expands to.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Final

from minibroker_protocol.compression import Compression, compress
from minibroker_protocol.records import HEADER_BYTES, Record, build_batch, varint
from system_tests.harness.batches import FIRST_MS, sealed, with_section

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
MIB: Final = 1024 * 1024
BOMB_BYTES: Final = {
    Compression.GZIP: 256 * MIB,
    Compression.SNAPPY: 16 * MIB,
    Compression.LZ4: 200 * MIB,
    Compression.ZSTD: 256 * MIB,
}
"""What a bomb expands to: four times what a batch may, unless it would be too large to be sent."""

_COMPRESSED: Final = tuple(codec for codec in Compression if codec is not Compression.NONE)
_COUNTS: Final = (-1, 0, 1, 2, 1_000_000, 4_000_000, INT32_MAX)


def hostile_batch(dice: random.Random) -> bytes:
    """A batch of any kind but the bombs, which take long to make."""
    return dice.choice(KINDS)(dice)


def bomb(dice: random.Random) -> bytes:
    """A batch that expands to a multiple of its size, with a plausible or an impossible count."""
    codec = dice.choice(_COMPRESSED)
    data = _compressed_zeros(codec, BOMB_BYTES[codec] // dice.choice((1, 16)))
    return sealed(data, count=dice.choice(_COUNTS), attributes=int(codec))


def full_batch(dice: random.Random) -> bytes:
    """A correct batch of half a million or a million records, which a broker must bound."""
    return _tiny_records(dice.choice((500_000, 1_000_000)), dice.choice(_COMPRESSED))


@functools.cache
def _compressed_zeros(codec: Compression, size: int) -> bytes:
    return compress(codec, bytes(size))


@functools.cache
def _tiny_records(count: int, codec: Compression) -> bytes:
    section = b"".join(_tiny_record(delta) for delta in range(count))
    return with_section(section, count, codec)


def _tiny_record(offset_delta: int) -> bytes:
    fields = b"\0\0" + varint(offset_delta) + b"\1\1\0"
    return varint(len(fields)) + fields


def _section(dice: random.Random, count: int) -> bytes:
    records = [
        Record(key=dice.randbytes(dice.randrange(9)), value=dice.randbytes(dice.randrange(40)))
        for _ in range(count)
    ]
    return build_batch(records)[HEADER_BYTES:]


def _garbage(dice: random.Random) -> bytes:
    """Bytes that are no records, under any codec's number."""
    body = dice.randbytes(dice.choice((0, 1, 20, 500, 20_000)))
    return sealed(body, count=dice.choice(_COUNTS), attributes=dice.randrange(8))


def _compressed_garbage(dice: random.Random) -> bytes:
    body = dice.randbytes(dice.choice((1, 20, 500)))
    return with_section(body, dice.choice(_COUNTS), dice.choice(tuple(Compression)))


def _wrong_count(dice: random.Random) -> bytes:
    return with_section(_section(dice, 3), dice.choice(_COUNTS), dice.choice(tuple(Compression)))


def _flipped_record(dice: random.Random) -> bytes:
    """Good records, of which a few bytes are replaced before the checksum is computed."""
    section = bytearray(_section(dice, dice.randrange(1, 20)))
    for _ in range(dice.randrange(1, 4)):
        section[dice.randrange(len(section))] = dice.randrange(256)
    return with_section(bytes(section), dice.randrange(1, 20), dice.choice(tuple(Compression)))


def _cut(dice: random.Random) -> bytes:
    batch = build_batch([Record(key=b"key", value=b"value")] * 5)
    return batch[: dice.randrange(len(batch))]


def _wrong_length(dice: random.Random) -> bytes:
    error = dice.choice((-60, -49, -1, 1, 1000, INT32_MAX - 1000))
    return sealed(_section(dice, 2), count=2, length_error=error)


def _wrong_checksum(dice: random.Random) -> bytes:
    return sealed(_section(dice, 2), count=2, checksum_error=dice.randrange(1, 2**32))


def _extreme_header(dice: random.Random) -> bytes:
    """Good records under a header whose numbers are at the edges of their types."""
    numbers: dict[str, int] = {
        "base_offset": dice.choice((0, -1, 7, INT64_MAX)),
        "base_timestamp": dice.choice((FIRST_MS, -1, 0, INT64_MAX, -(2**63))),
        "max_timestamp": dice.choice((FIRST_MS, -1, INT64_MAX, -(2**63))),
        "producer_id": dice.choice((-1, 0, 5, INT64_MAX)),
        "producer_epoch": dice.choice((-1, 0, 2**15 - 1, -(2**15))),
        "base_sequence": dice.choice((-1, 0, INT32_MAX)),
        "leader_epoch": dice.choice((-1, 0, INT32_MAX)),
        "last_offset_delta": dice.choice((1, 0, -1, INT32_MAX)),
        "attributes": dice.choice((0, 0x08, 0x10, 0x20, 0x30, 0x40, 0x7FF8)),
    }
    kept = {name: value for name, value in numbers.items() if dice.random() < 0.3}
    return sealed(_section(dice, 2), count=2, **kept)


def _old_format(dice: random.Random) -> bytes:
    return sealed(_section(dice, 2), count=2, magic=dice.choice((0, 1, 3, 127, -1)))


def _several(dice: random.Random) -> bytes:
    """Two batches in one, or a good one with bytes after it."""
    good = build_batch([Record(key=b"k", value=b"v")])
    return good + dice.choice((good, dice.randbytes(30), good[:40]))


def _records_with_headers(dice: random.Random) -> bytes:
    """Records that claim more headers than there are."""
    fields = b"\0\0\0\1\1" + varint(dice.choice((1, 100, INT32_MAX, INT64_MAX)))
    return with_section(varint(len(fields)) + fields, 1, dice.choice(tuple(Compression)))


KINDS: Final[tuple[Callable[[random.Random], bytes], ...]] = (
    _garbage,
    _compressed_garbage,
    _wrong_count,
    _flipped_record,
    _cut,
    _wrong_length,
    _wrong_checksum,
    _extreme_header,
    _old_format,
    _several,
    _records_with_headers,
)
