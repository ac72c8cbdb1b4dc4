"""Framing of each codec's bytes; imported only when a compressed batch is handled.

Owns the calls into cramjam and zlib, and never allocates more than the limit that it is given.
Invariant: Kafka's Java clients decompress what is decompressed here to the same bytes. Many
programs never compress, so ``minibroker_protocol.compression`` loads it late (1.3 MB); a broker
loads it before its fork. Echoes ``org.apache.kafka.common.compress`` (KIP-57 for LZ4's framing,
KIP-110 for Zstandard).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final

import cramjam

from minibroker_protocol.errors import DecodeError

_ZSTD_HEADER_MAX: Final = 18
_LIKELY_RATIO_MAX: Final = 64
_FIRST_GUESS_BYTES: Final = 64 * 1024
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_VERSION_MIN: Final = 1
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_INT32: Final = Struct(">i")

_GZIP_WBITS: Final = 31
_GZIP_MAGIC: Final = b"\x1f\x8b\x08"
_GZIP_PIECE_BYTES: Final = 64 * 1024

_LZ4_MAGIC: Final = bytes.fromhex("04224d18")
_LZ4_FLAGS_POSITION: Final = 4
_LZ4_HEADER_MIN_BYTES: Final = 7
_LZ4_FIXED_FLAGS: Final = 0xE3
"""The bits of version, independent blocks, a reserved flag and a dictionary's id."""
_LZ4_INDEPENDENT_BLOCKS: Final = 0x60
_LZ4_BLOCK_CHECKSUM: Final = 0x10
_LZ4_CONTENT_SIZE: Final = 0x08
_LZ4_CONTENT_CHECKSUM: Final = 0x04
_LZ4_SIZE_MASK: Final = 0x7FFFFFFF
_LZ4_RATIO_MAX: Final = 255
"""A byte of a long match's length adds this many bytes of content."""
_LZ4_EMPTY_BLOCKS: Final = (1, 0x80000000)
"""Size fields of blocks without content: Java takes them for the end of the frame."""
_UINT32: Final = Struct("<I")

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
    """Inflate every member. Bytes after the last one are ignored, as in Java."""
    parts: list[bytes] = []
    room, position = limit, 0
    while not parts or data[position : position + len(_GZIP_MAGIC)] == _GZIP_MAGIC:
        inflater = zlib.decompressobj(_GZIP_WBITS)
        while not inflater.eof:
            # zlib copies what follows a member, so it gets a piece at a time.
            piece = data[position : position + _GZIP_PIECE_BYTES]
            if not piece:
                raise DecodeError("gzip data ends inside a member", position)
            part = inflater.decompress(piece, room + 1)
            if len(part) > room:
                raise _too_big("gzip", limit)
            room -= len(part)
            position += len(piece) - len(inflater.unused_data)
            parts.append(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _decompress_snappy(data: memoryview | bytes, limit: int) -> bytes:
    """Snappy's raw form, or Xerial's stream, in which headers may stand between blocks."""
    position, end = len(_XERIAL_HEADER), len(data)
    if end < position or bytes(data[: len(_XERIAL_MAGIC)]) != _XERIAL_MAGIC:
        return _snappy_block(data, limit, limit)
    parts: list[bytes] = []
    room = limit
    while end - position >= _INT32.size:  # Up to three more bytes are ignored, as Java does.
        if bytes(data[position : position + len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
            position = _xerial_header_end(data, position)
            continue
        (size,) = _INT32.unpack_from(data, position)
        position += _INT32.size
        if not 0 < size <= end - position:
            raise DecodeError(f"snappy block claims {size} bytes", position - _INT32.size)
        parts.append(_snappy_block(data[position : position + size], room, limit))
        room -= len(parts[-1])
        position += size
    return b"".join(parts)


def _xerial_header_end(data: memoryview | bytes, start: int) -> int:
    """Check a header that is not the first one, of which Java ignores the version."""
    end = start + len(_XERIAL_HEADER)
    if end > len(data):
        raise DecodeError("snappy data ends inside a stream header", start)
    (version,) = _INT32.unpack_from(data, start + len(_XERIAL_MAGIC))
    if version < _XERIAL_VERSION_MIN:
        raise DecodeError(f"snappy stream header has the version {version}", start)
    return end


def _snappy_block(block: memoryview | bytes, room: int, limit: int) -> bytes:
    raw = bytes(block)
    if cramjam.snappy.decompress_raw_len(raw) > room:
        raise _too_big("snappy", limit)
    return bytes(cramjam.snappy.decompress_raw(raw))


def _first_lz4_frame(data: memoryview | bytes) -> bytes:
    """Return the first frame, which is the only one that Java reads.

    Raises DecodeError if it has a form that LZ4's library decompresses and Java does not.
    """
    whole = bytes(data)
    if len(whole) < _LZ4_HEADER_MIN_BYTES or not whole.startswith(_LZ4_MAGIC):
        raise DecodeError("lz4 data does not start with the header of an LZ4 frame", 0)
    flags = whole[_LZ4_FLAGS_POSITION]
    if flags & _LZ4_FIXED_FLAGS != _LZ4_INDEPENDENT_BLOCKS:
        raise DecodeError(_lz4_flags_error(flags), _LZ4_FLAGS_POSITION)
    position = _LZ4_HEADER_MIN_BYTES + (8 if flags & _LZ4_CONTENT_SIZE else 0)
    checksum_bytes = 4 if flags & _LZ4_BLOCK_CHECKSUM else 0
    is_after_empty_block = False
    while position + _UINT32.size <= len(whole):
        (size,) = _UINT32.unpack_from(whole, position)
        if not size:
            end = position + _UINT32.size + (4 if flags & _LZ4_CONTENT_CHECKSUM else 0)
            return whole[:end]
        if size in _LZ4_EMPTY_BLOCKS:
            is_after_empty_block = True
        elif is_after_empty_block:
            raise DecodeError("lz4 data has an empty block before others", position)
        position += _UINT32.size + (size & _LZ4_SIZE_MASK) + checksum_bytes
    raise DecodeError("lz4 data ends inside its frame", len(whole))


def _lz4_flags_error(flags: int) -> str:
    if flags >> 6 != 1:
        return f"lz4 frame has the unknown version {flags >> 6}"
    if not flags & 0x20:
        return (
            "lz4 frame has blocks that depend on each other, which Kafka's Java clients cannot"
            " read; the producer must write independent blocks"
        )
    return "lz4 frame has a dictionary or a reserved flag, which Kafka's clients cannot read"


def _decompress_lz4(data: memoryview | bytes, limit: int) -> memoryview:
    frame = _first_lz4_frame(data)
    size = len(frame)
    limit = min(limit, _LZ4_RATIO_MAX * size)
    return _decompress_growing("lz4", cramjam.lz4.decompress_into, frame, 4 * size, limit)


def _decompress_zstd(data: memoryview | bytes, limit: int) -> memoryview:
    """Decompress every frame. The first one's content size is believed up to a likely ratio."""
    frames = bytes(data)
    guess = min(_zstd_claimed_size(frames), _LIKELY_RATIO_MAX * len(frames)) or 4 * len(frames)
    return _decompress_growing("zstd", cramjam.zstd.decompress_into, frames, guess, limit)


def _decompress_growing(
    codec: str, into: Callable[[bytes, bytearray], int], data: bytes, guess: int, limit: int
) -> memoryview:
    """Decompress into a buffer that doubles until the data fits or the limit is reached.

    cramjam has no output limit and its stream objects need the complete input, so the size of the
    output buffer is the limit: cramjam stops when it is full.
    """
    capacity = min(limit, max(_FIRST_GUESS_BYTES, guess))
    while True:
        buffer = bytearray(capacity)
        try:
            return memoryview(buffer)[: into(data, buffer)]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):
                raise
        if capacity == limit:
            raise _too_big(codec, limit)
        capacity = min(limit, 2 * capacity)


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


def _too_big(codec: str, limit: int) -> DecodeError:
    return DecodeError(f"{codec} data grows past the limit of {limit} bytes", 0)


COMPRESSORS: Final[dict[int, Callable[[bytes], bytes]]] = {
    GZIP: _compress_gzip,
    SNAPPY: _compress_snappy,
    LZ4: _compress_lz4,
    ZSTD: _compress_zstd,
}

DECOMPRESSORS: Final[dict[int, Callable[[memoryview | bytes, int], memoryview | bytes]]] = {
    GZIP: _decompress_gzip,
    SNAPPY: _decompress_snappy,
    LZ4: _decompress_lz4,
    ZSTD: _decompress_zstd,
}
