"""The compression codecs of record batches.

Owns the codec numbers in a batch's attributes, and compression and decompression of its records
section. It must never know what the bytes mean, or their source. Invariant: decompression never
allocates more than its limit, for any input, and every failure is a
DecodeError. Kafka's ``CompressionType``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from minibroker_protocol.errors import DecodeError

DECOMPRESSED_MAX_BYTES: Final = 256 * 1024 * 1024
"""What one batch may grow to unless the caller sets another limit, bytes."""


class Compression(IntEnum):
    """The codec in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def compress(codec: Compression, data: bytes) -> bytes:
    """Compress a records section as Kafka's own producer frames it."""
    if codec is Compression.NONE:
        return data
    from minibroker_protocol import codecs

    return codecs.COMPRESSORS[codec](data)


def decompress(
    codec: Compression, data: memoryview | bytes, limit: int = DECOMPRESSED_MAX_BYTES
) -> memoryview | bytes:
    """Undo ``compress``; also accepts the other framings clients send.

    Raises DecodeError when the data is damaged or would grow past ``limit`` bytes.
    """
    if codec is Compression.NONE:
        return data
    if not len(data):
        raise DecodeError(f"{codec.name.lower()} data is empty", 0)
    from minibroker_protocol import codecs

    try:
        return codecs.DECOMPRESSORS[codec](data, limit)
    except codecs.FAILURES as error:
        raise DecodeError(f"{codec.name.lower()} data is damaged: {error}", 0) from error
