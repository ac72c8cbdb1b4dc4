"""Framing of each codec's bytes; imported only when a compressed batch is handled.

Owns the calls into cramjam and zlib, in the framings that Kafka's clients use, and never allocates
more than the limit that it is given. Many programs never compress, so ``protocol.compression``
loads it late (1.3 MB); a broker loads it before its fork. Echoes
``org.apache.kafka.common.compress`` (KIP-57 for LZ4's framing, KIP-110 for Zstandard).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final

import cramjam

from protocol.errors import DecodeError

_ZSTD_HEADER_MAX: Final = 18
_LIKELY_RATIO_MAX: Final = 64
_FIRST_GUESS_BYTES: Final = 64 * 1024
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_INT32: Final = Struct(">i")
_GZIP_WBITS: Final = 31
_LZ4_LEVEL: Final = 9
_ZSTD_LEVEL: Final = 3

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

FAILURES: Final = (cramjam.DecompressionError, zlib.error, OverflowError)
"""What damaged data makes the libraries raise."""


def _compress_gzip(data: bytes) -> bytes:
    return zlib.compress(data, wbits=_GZIP_WBITS)


def _compress_snappy(data: bytes) -> bytes:
    """Xerial's stream framing: a header, then length-prefixed raw Snappy blocks."""
    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _compress_lz4(data: bytes) -> bytes:
    # Kafka's reader rejects frames with dependent blocks.
    compressor = cramjam.lz4.Compressor(
        level=_LZ4_LEVEL, content_checksum=False, block_linked=False
    )
    compressor.compress(data)
    return bytes(compressor.finish())


def _compress_zstd(data: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL))


def _decompress_gzip(data: memoryview | bytes, limit: int) -> bytes:
    """Inflate every member of the gzip file, never past the limit."""
    parts: list[bytes] = []
    room = limit
    rest: memoryview | bytes = data
    while len(rest):
        inflater = zlib.decompressobj(_GZIP_WBITS)
        part = inflater.decompress(rest, room + 1)
        if len(part) > room:
            raise _too_big("gzip", limit)
        if not inflater.eof:
            raise DecodeError("gzip data is damaged: it ends inside a member", 0)
        room -= len(part)
        parts.append(part)
        rest = inflater.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_snappy(data: memoryview | bytes, limit: int) -> bytes:
    if bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, limit, limit)
    parts: list[bytes] = []
    room = limit
    position, end = len(_XERIAL_HEADER), len(data)
    if end < position:
        raise DecodeError("snappy data ends inside its stream header", end)
    while position < end:
        if end - position < _INT32.size:
            raise DecodeError("snappy data ends inside a block's length", position)
        (size,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 < size <= end - position:
            raise DecodeError(f"snappy block claims {size} bytes", position - _INT32.size)
        parts.append(_snappy_block(data[position : position + size], room, limit))
        room -= len(parts[-1])
        position += size
    return b"".join(parts)


def _snappy_block(block: memoryview | bytes, room: int, limit: int) -> bytes:
    raw = bytes(block)
    if cramjam.snappy.decompress_raw_len(raw) > room:
        raise _too_big("snappy", limit)
    return bytes(cramjam.snappy.decompress_raw(raw))


def _growing(
    codec: str,
    into: Callable[[memoryview | bytes, memoryview | bytearray], int],
    claimed_size: Callable[[bytes], int] = lambda _: 0,
) -> Callable[[memoryview | bytes, int], memoryview]:
    """Decompress into a buffer that doubles until the data fits or the limit is reached.

    cramjam has no output limit and its stream objects need the complete input, so the size of the
    output buffer is the limit: cramjam stops when it is full. ``claimed_size`` returns the size
    that the data claims to have, or 0. It is believed up to a likely ratio: it costs memory.
    """

    def decompress_growing(data: memoryview | bytes, limit: int) -> memoryview:
        raw = bytes(data)
        guess = min(claimed_size(raw), _LIKELY_RATIO_MAX * len(raw)) or 4 * len(raw)
        capacity = min(limit, max(_FIRST_GUESS_BYTES, guess))
        while True:
            buffer = bytearray(capacity)
            try:
                return memoryview(buffer)[: into(raw, buffer)]
            except cramjam.DecompressionError as error:
                if not is_too_small(error):
                    raise
            if capacity == limit:
                raise _too_big(codec, limit)
            capacity = min(limit, 2 * capacity)

    return decompress_growing


def _zstd_claimed_size(data: bytes) -> int:
    """The content size in the header of a Zstandard frame (RFC 8878, 3.1.1.1), 0 without one."""
    if len(data) < _ZSTD_HEADER_MAX:
        return 0
    descriptor = data[4]
    is_single_segment = bool(descriptor & 0x20)
    position = 5 + (not is_single_segment) + (0, 1, 2, 4)[descriptor & 3]
    width = (int(is_single_segment), 2, 4, 8)[descriptor >> 6]
    size = int.from_bytes(data[position : position + width], "little")
    return size + 256 if width == 2 else size


def is_too_small(error: Exception) -> bool:
    """Whether it was raised because there was no room for the data."""
    return "whole buffer" in str(error)


def _too_big(codec: str, limit: int) -> DecodeError:
    return DecodeError(f"{codec} data grows past the limit of {limit} bytes", 0)


COMPRESSORS: Final[dict[int, Callable[[bytes], bytes]]] = {
    GZIP: _compress_gzip,
    SNAPPY: _compress_snappy,
    LZ4: _compress_lz4,
    ZSTD: _compress_zstd,
}

INTO: Final[dict[int, Callable[[memoryview | bytes, memoryview | bytearray], int]]] = {
    LZ4: cramjam.lz4.decompress_into,
    ZSTD: cramjam.zstd.decompress_into,
}
"""Codecs that write into a given buffer."""

DECOMPRESSORS: Final[dict[int, Callable[[memoryview | bytes, int], memoryview | bytes]]] = {
    GZIP: _decompress_gzip,
    SNAPPY: _decompress_snappy,
    LZ4: _growing("lz4", INTO[LZ4]),
    ZSTD: _growing("zstd", INTO[ZSTD], _zstd_claimed_size),
}
