"""Compressed data built byte by byte: what Kafka's Java readers accept of each codec, and what not.

Each frame contains the records section that is given, so that it can be tested alone and in a
batch. Each belongs to one rule of a format. Unit tests decompress them, and the comparison with
Kafka sends them to both brokers.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from minibroker_protocol.compression import Compression
from tests.protocol.xxhash import xxh32, xxh64

_MASK: Final = 0xFFFFFFFF
_SKIPPABLE: Final = bytes.fromhex("502a4d18") + struct.pack("<I", 4) + b"skip"
_SHORT: Final = b"ab"
_GARBAGE: Final = b"these bytes belong to no frame at all"


class CompressedFrame(NamedTuple):
    """Compressed data and what must become of it."""

    codec: Compression
    name: str
    data: bytes
    content: bytes | None
    """What it decompresses to; None if it is rejected."""


def compressed_frames(section: bytes) -> list[CompressedFrame]:
    """Frames with ``section``, of at least 300 and at most 1,024 bytes, in all codecs."""
    makers: dict[Compression, Callable[[bytes], Iterator[tuple[str, bytes, bytes | None]]]] = {
        Compression.GZIP: _gzip_frames,
        Compression.SNAPPY: _snappy_frames,
        Compression.LZ4: _lz4_frames,
        Compression.ZSTD: _zstd_frames,
    }
    return [
        CompressedFrame(codec, *frame)
        for codec, make in makers.items()
        for frame in (*make(section), ("nothing", b"", None))
    ]


def frames_that_only_java_reads(section: bytes) -> list[CompressedFrame]:
    """Damaged data that Kafka stores, since its readers overlook what other readers do not."""
    makers = {
        Compression.GZIP: _gzip_members_that_only_java_reads,
        Compression.SNAPPY: _snappy_that_only_java_reads,
        Compression.LZ4: _lz4_frames_that_only_java_reads,
        Compression.ZSTD: _zstd_frames_that_only_java_reads,
    }
    return [
        CompressedFrame(codec, name, data, None)
        for codec, make in makers.items()
        for name, data in make(section)
    ]


def _halves(section: bytes) -> tuple[bytes, bytes]:
    middle = len(section) // 2
    return section[:middle], section[middle:]


# LZ4: the frame format 1.6.

_LZ4_MAGIC: Final = bytes.fromhex("04224d18")
_LZ4_END: Final = bytes(4)
_VERSION: Final = 0x40
_INDEPENDENT: Final = 0x20
_BLOCK_CHECKSUM: Final = 0x10
_CONTENT_SIZE: Final = 0x08
_CONTENT_CHECKSUM: Final = 0x04
_DICTIONARY_ID: Final = 0x01
_USUAL: Final = _VERSION | _INDEPENDENT
_LZ4_BLOCK_MAX: Final = 64 * 1024


def _lz4_header(
    flags: int = _USUAL, sizes: int = 0x40, extra: bytes = b"", checksum_error: int = 0
) -> bytes:
    descriptor = bytes((flags, sizes)) + extra
    checksum = (xxh32(descriptor) >> 8) + checksum_error & 0xFF
    return _LZ4_MAGIC + descriptor + bytes((checksum,))


def _lz4_stored(content: bytes) -> bytes:
    """A block that is not compressed."""
    return struct.pack("<I", 1 << 31 | len(content)) + content


def _lz4_literals(content: bytes) -> bytes:
    """The compressed form of one sequence of literals."""
    if len(content) < 15:
        return bytes((len(content) << 4,)) + content
    full, rest = divmod(len(content) - 15, 255)
    return b"\xf0" + b"\xff" * full + bytes((rest,)) + content


def _lz4_packed(packed: bytes) -> bytes:
    """A compressed block."""
    return struct.pack("<I", len(packed)) + packed


def _lz4_frames(section: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    first, second = _halves(section)
    header, stored = _lz4_header(), _lz4_stored(section)
    packed = _lz4_packed(_lz4_literals(section))
    plain = header + stored + _LZ4_END
    yield "stored block", plain, section
    yield "compressed block", header + packed + _LZ4_END, section
    yield "two blocks", header + _lz4_stored(first) + _lz4_stored(second) + _LZ4_END, section
    yield "two end marks", header + stored + b"\0\0\0\x80" + _LZ4_END, section
    yield from _lz4_headers(section, stored + _LZ4_END)
    yield from _lz4_checksums(section, stored)
    yield from _lz4_ends(section, plain)

    yield "block cut", plain[:-8], None
    yield "block size cut", header + b"\1\0", None
    yield "damaged block", header + _lz4_packed(b"\x10a\xff\xff\0") + _LZ4_END, None
    too_large = bytes(_LZ4_BLOCK_MAX + 1)
    yield "stored block too large", header + _lz4_stored(too_large) + _LZ4_END, None
    grows = _lz4_packed(b"\x1f\0\1\0" + b"\xff" * 260 + b"\0\x50abcde")
    yield "compressed block grows too large", header + grows + _LZ4_END, None
    empty = _lz4_packed(b"\0")
    yield "empty block first", header + empty + stored + _LZ4_END, None
    between = _lz4_stored(first) + empty + _lz4_stored(second)
    yield "empty block between", header + between + _LZ4_END, None
    yield "empty blocks last", header + stored + empty + empty + _LZ4_END, section


def _lz4_headers(section: bytes, blocks: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    size = struct.pack("<Q", len(section))
    for code, at_most in ((4, "64 KiB"), (5, "256 KiB"), (6, "1 MiB"), (7, "4 MiB")):
        yield f"blocks of at most {at_most}", _lz4_header(sizes=code << 4) + blocks, section
    for code in (0, 3):
        yield f"block size code {code}", _lz4_header(sizes=code << 4) + blocks, None
    for sizes in (0xC0, 0x41, 0x48):
        yield f"reserved bits, sizes {sizes:#04x}", _lz4_header(sizes=sizes) + blocks, None
    yield "reserved flag", _lz4_header(_USUAL | 0x02) + blocks, None
    yield "version 0", _lz4_header(_INDEPENDENT) + blocks, None
    yield "version 2", _lz4_header(0x80 | _INDEPENDENT) + blocks, None
    yield "linked blocks", _lz4_header(_VERSION) + blocks, None
    yield "content size", _lz4_header(_USUAL | _CONTENT_SIZE, extra=size) + blocks, section
    cut = _lz4_header(_USUAL | _CONTENT_SIZE, extra=size)[:9]
    yield "content size cut", cut, None
    dictionary = _lz4_header(_USUAL | _DICTIONARY_ID, extra=struct.pack("<I", 7))
    yield "dictionary id", dictionary + blocks, None
    yield "header checksum wrong", _lz4_header(checksum_error=1) + blocks, None
    yield "header alone", _lz4_header(), None
    yield "header cut", _lz4_header()[:5], None
    yield "header without checksum", _lz4_header()[:6], None
    yield "legacy frame", bytes.fromhex("02214c18") + _lz4_packed(_lz4_literals(section)), None


def _lz4_checksums(section: bytes, stored: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    checksum = xxh32(section)
    right, wrong = struct.pack("<I", checksum), struct.pack("<I", checksum ^ 1)
    blocks = _lz4_header(_USUAL | _BLOCK_CHECKSUM) + stored
    yield "block checksum", blocks + right + _LZ4_END, section
    yield "block checksum wrong", blocks + wrong + _LZ4_END, None
    yield "block checksum missing", blocks + _LZ4_END, None
    content = _lz4_header(_USUAL | _CONTENT_CHECKSUM) + stored + _LZ4_END
    yield "content checksum", content + right, section
    yield "content checksum missing", content, None
    yield "content checksum cut", content + right[:2], None


def _lz4_frames_that_only_java_reads(section: bytes) -> Iterator[tuple[str, bytes]]:
    header, stored = _lz4_header(), _lz4_stored(section)
    blocks = stored + _LZ4_END
    wrong = struct.pack("<I", xxh32(section) ^ 1)
    yield "content checksum wrong", _lz4_header(_USUAL | _CONTENT_CHECKSUM) + blocks + wrong
    for name, error in (("small", -1), ("large", 1)):
        size = struct.pack("<Q", len(section) + error)
        yield f"content size too {name}", _lz4_header(_USUAL | _CONTENT_SIZE, extra=size) + blocks
    yield "end mark of a stored block", header + stored + b"\0\0\0\x80"
    empty = _lz4_packed(b"\0")
    yield "block behind an empty one", header + stored + empty + _lz4_stored(_SHORT) + _LZ4_END
    yield "no end mark behind an empty block", header + stored + empty


def _lz4_ends(section: bytes, plain: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    first, second = (_lz4_header() + _lz4_stored(half) + _LZ4_END for half in _halves(section))
    yield "no end mark", plain[:-4], None
    yield "end mark cut", plain[:-2], None
    yield "records in two frames", first + second, _halves(section)[0]
    yield "same frame again", plain + plain, section
    yield "one byte follows", plain + b"\1", section
    yield "two bytes follow", plain + _SHORT, section
    yield "garbage follows", plain + _GARBAGE, section
    yield "skippable frame first", _SKIPPABLE + plain, None
    yield "skippable frame last", plain + _SKIPPABLE, section
    yield "end mark alone", _lz4_header() + _LZ4_END, b""
    yield "no frame", _GARBAGE, None


# Snappy: raw data, and the stream format of snappy-java ("xerial").

_XERIAL_MAGIC: Final = b"\x82SNAPPY\0"


def _xerial_header(version: int = 1, compatible: int = 1) -> bytes:
    return _XERIAL_MAGIC + struct.pack(">ii", version, compatible)


def _snappy_raw(content: bytes, length_error: int = 0) -> bytes:
    """One literal of at most 64 KiB."""
    length = _varint(len(content) + length_error)
    return length + b"\xf4" + struct.pack("<H", len(content) - 1) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))


def _xerial_block(raw: bytes) -> bytes:
    return struct.pack(">i", len(raw)) + raw


def _snappy_frames(section: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    raw = _snappy_raw(section)
    yield "raw", raw, section
    yield "raw cut", raw[:-1], None
    yield "raw with bytes behind it", raw + _SHORT, None
    yield "raw length too large", _snappy_raw(section, length_error=1), None
    yield "raw copy from offset 0", b"\x08\x0cabcd\x01\0", None
    yield "raw length of 4 GiB", b"\xff\xff\xff\xff\x0f" + raw[2:], None
    yield from _xerial_streams(section)


def _xerial_streams(section: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    first, second = (_xerial_block(_snappy_raw(half)) for half in _halves(section))
    header, block = _xerial_header(), _xerial_block(_snappy_raw(section))
    empty = _xerial_block(b"\0")
    yield "one block", header + block, section
    yield "two blocks", header + first + second, section
    yield "two headers", header + first + header + second, section
    yield "header last", header + block + header, section
    yield "three headers in a row", header * 3 + block, section
    yield "version 2", _xerial_header(2, 1) + block, section
    yield "compatible version 2", _xerial_header(1, 2) + block, section
    for version in (0, -1):
        yield f"version {version}", _xerial_header(version) + block, section
        second_header = header + first + _xerial_header(version) + second
        yield f"second header of version {version}", second_header, None
    yield "second header with another magic", header + first + b"\x82SNAPPX\0" + header[8:], None
    yield "second header cut", header + block + header[:-1], None
    yield "header alone", header, b""
    yield "header cut", header[:-1], None
    yield "magic alone", header[:8], None
    yield "block of length 0", header + bytes(4) + block, None
    yield "block of length 0 last", header + block + bytes(4), None
    yield "block of a negative length", header + b"\xff\xff\xff\xff" + block, None
    yield "block cut", header + block[:-1], None
    yield "block without data", header + block + b"\0\0\0\5", None
    yield "damaged block", header + _xerial_block(b"\x05\0a") + block, None
    yield "empty block first", header + empty + block, section
    yield "empty block between", header + first + empty + second, section
    yield "empty block last", header + block + empty, section
    yield "one byte follows", header + block + b"\1", section
    yield "three bytes follow", header + block + b"\1\2\3", section
    yield "raw data behind the magic's first byte", b"\x82" + block, None


def _snappy_that_only_java_reads(section: bytes) -> Iterator[tuple[str, bytes]]:
    header, block = _xerial_header(), _xerial_block(_snappy_raw(section))
    yield "header with another magic last", header + block + b"\x82SNAPPX\0" + header[8:]


# GZIP: RFC 1952.

_FTEXT, _FHCRC, _FEXTRA, _FNAME, _FCOMMENT = 1, 2, 4, 8, 16


def _gzip_header(flags: int = 0, extra: bytes = b"", method: int = 8) -> bytes:
    return bytes((0x1F, 0x8B, method, flags)) + bytes(4) + b"\0\xff" + extra


def _gzip_body(content: bytes, crc_error: int = 0, size_error: int = 0) -> bytes:
    deflater = zlib.compressobj(wbits=-15)
    crc, size = zlib.crc32(content) ^ crc_error, len(content) + size_error & _MASK
    return deflater.compress(content) + deflater.flush() + struct.pack("<II", crc, size)


def _gzip_frames(section: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    header, body = _gzip_header(), _gzip_body(section)
    plain = header + body
    yield "plain", plain, section
    yield "wrong magic", b"\x1f\x8c" + plain[2:], None
    yield "method 7", _gzip_header(method=7) + body, None
    yield "zlib's format", zlib.compress(section), None
    yield "deflated data alone", body[:-8], None
    yield "wrong checksum", header + _gzip_body(section, crc_error=1), None
    yield "wrong size", header + _gzip_body(section, size_error=1), None
    yield "header cut", header[:-1], None
    yield "data cut", plain[:-12], None
    yield "trailer cut", plain[:-1], None
    yield "no trailer", plain[:-8], None
    yield from _gzip_headers(section, body)
    yield from _gzip_members(section, plain)


def _gzip_headers(section: bytes, body: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    field = struct.pack("<H", 5) + b"extra"
    yield "text", _gzip_header(_FTEXT) + body, section
    yield "name", _gzip_header(_FNAME, b"name\0") + body, section
    yield "comment", _gzip_header(_FCOMMENT, b"comment\0") + body, section
    yield "extra field", _gzip_header(_FEXTRA, field) + body, section
    yield "name without end", _gzip_header(_FNAME, b"name"), None
    yield "extra field cut", _gzip_header(_FEXTRA, field[:-1]), None
    all_flags = _gzip_header(
        _FTEXT | _FHCRC | _FEXTRA | _FNAME | _FCOMMENT, field + b"name\0comment\0"
    )
    checksum = struct.pack("<H", zlib.crc32(all_flags) & 0xFFFF)
    yield "all fields and their checksum", all_flags + checksum + body, section
    wrong = bytes((checksum[0] ^ 1, checksum[1]))
    yield "header checksum wrong", all_flags + wrong + body, None


def _gzip_members(section: bytes, plain: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    first, second = _halves(section)
    one, two = (_gzip_header() + _gzip_body(half) for half in (first, second))
    empty = _gzip_header() + _gzip_body(b"")
    yield "two members", one + two, section
    yield "empty member first", empty + plain, section
    yield "empty member between", one + empty + two, section
    yield "empty member last", plain + empty, section
    yield "second member with a name", one + _gzip_header(_FNAME, b"n\0") + two[10:], section
    yield "second member with wrong checksum", one + _gzip_header() + _gzip_body(second, 1), None
    yield "second member cut", plain + plain[:-9], None
    yield "second member of method 7", one + _gzip_header(method=7) + two[10:], first
    damaged = _gzip_header(_FHCRC, b"\0\0") + two[10:]
    yield "second member with wrong header checksum", one + damaged, None
    for count in (1, 2, 8, 18, 19, 100, 9000):
        yield f"{count} zeros follow", plain + bytes(count), section
    yield "two bytes follow", plain + _SHORT, section
    yield "garbage follows", plain + _GARBAGE, section
    yield "first bytes of a header follow", plain + _gzip_header()[:2], section


def _gzip_members_that_only_java_reads(section: bytes) -> Iterator[tuple[str, bytes]]:
    plain = _gzip_header() + _gzip_body(section)
    yield "header follows", plain + _gzip_header()
    yield "cut header follows", plain + _gzip_header()[:-1]
    damaged = _gzip_header(_FHCRC, b"\0\0") + _gzip_body(b"")
    yield "member with wrong header checksum follows", plain + damaged
    for flag in (0x20, 0x40, 0x80):
        yield f"reserved flag {flag:#04x}", _gzip_header(flag) + plain[10:]


# Zstandard: RFC 8878.

_ZSTD_MAGIC: Final = bytes.fromhex("28b52ffd")
_SINGLE_SEGMENT: Final = 0x20
_ZSTD_CHECKSUM: Final = 0x04
_LARGEST_WINDOW_LOG: Final = 27
"""The largest window that readers accept by default."""


def _zstd_window(log: int, eighths: int = 0) -> bytes:
    return bytes((log - 10 << 3 | eighths,))


def _zstd_block(content: bytes, kind: int = 0, *, is_last: bool = True) -> bytes:
    """A block that is not compressed."""
    return struct.pack("<I", len(content) << 3 | kind << 1 | is_last)[:3] + content


def _zstd_frame(
    content: bytes, descriptor: int = 0, fields: bytes | None = None, trailer: bytes = b""
) -> bytes:
    """A frame of one block; ``fields`` follow the descriptor, by default a window of 64 KiB."""
    head = _ZSTD_MAGIC + bytes((descriptor,)) + (_zstd_window(16) if fields is None else fields)
    return head + _zstd_block(content) + trailer


def _zstd_frames(section: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    first, second = _halves(section)
    plain = _zstd_frame(section)
    yield "without content size", plain, section
    yield from _zstd_headers(section)
    checksum = xxh64(section) & _MASK
    right, wrong = struct.pack("<I", checksum), struct.pack("<I", checksum ^ 1)
    yield "checksum", _zstd_frame(section, _ZSTD_CHECKSUM, trailer=right), section
    yield "checksum wrong", _zstd_frame(section, _ZSTD_CHECKSUM, trailer=wrong), None
    yield "checksum missing", _zstd_frame(section, _ZSTD_CHECKSUM), None
    yield "checksum cut", _zstd_frame(section, _ZSTD_CHECKSUM, trailer=right[:2]), None
    yield "block cut", plain[:-1], None
    yield "block header cut", plain[:8], None
    head = _ZSTD_MAGIC + b"\0" + _zstd_window(16)
    blocks = _zstd_block(first, is_last=False) + _zstd_block(second)
    yield "two blocks", head + blocks, section
    yield "no last block", head + _zstd_block(section, is_last=False), None
    yield "empty blocks", head + _zstd_block(b"", is_last=False) + plain[6:], section
    yield "reserved block type", head + _zstd_block(section, 3), None
    too_large = _zstd_block(bytes(128 * 1024 + 1))
    yield "block of more than 128 KiB", _ZSTD_MAGIC + b"\0" + _zstd_window(20) + too_large, None
    yield from _zstd_series(section, plain)


def _zstd_headers(section: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    size = struct.pack("<I", len(section))
    single = _SINGLE_SEGMENT | 0x80
    yield "content size", _zstd_frame(section, single, size), section
    yield "content size and window", _zstd_frame(section, 0x80, _zstd_window(16) + size), section
    for name, error in (("small", -1), ("large", 1)):
        wrong = struct.pack("<I", len(section) + error)
        yield f"content size too {name}", _zstd_frame(section, single, wrong), None
    yield "unused bit", _zstd_frame(section, 0x10), section
    yield "reserved bit", _zstd_frame(section, 0x08), None
    yield "dictionary id", _zstd_frame(section, 0x01, _zstd_window(16) + b"\7"), None
    yield "dictionary id 0", _zstd_frame(section, 0x01, _zstd_window(16) + b"\0"), section
    for log in (10, 20, _LARGEST_WINDOW_LOG):
        yield f"window of 2**{log}", _zstd_frame(section, 0, _zstd_window(log)), section
    for log, eighths in ((_LARGEST_WINDOW_LOG, 1), (28, 0), (31, 0), (41, 7)):
        name = f"window of 2**{log} + {eighths}/8"
        yield name, _zstd_frame(section, 0, _zstd_window(log, eighths)), None
    yield "header cut", _ZSTD_MAGIC + b"\0", None
    yield "magic alone", _ZSTD_MAGIC, None
    yield "no magic", _zstd_frame(section)[4:], None
    yield "frame of version 0.7", bytes.fromhex("27b52ffd") + _zstd_frame(section)[4:], None


def _zstd_series(section: bytes, plain: bytes) -> Iterator[tuple[str, bytes, bytes | None]]:
    one, two = map(_zstd_frame, _halves(section))
    empty = _zstd_frame(b"")
    yield "records in two frames", one + two, section
    yield "empty frame first", empty + plain, section
    yield "empty frame between", one + empty + two, section
    yield "empty frame last", plain + empty, section
    yield "skippable frame first", _SKIPPABLE + plain, section
    yield "skippable frame between", one + _SKIPPABLE + two, section
    yield "skippable frame last", plain + _SKIPPABLE, section
    yield "skippable frame alone", _SKIPPABLE, b""
    yield "second frame cut", one + two[:-1], None
    yield "second frame with a large window", plain + _zstd_frame(b"", 0, _zstd_window(28)), None
    yield "one byte follows", plain + b"\1", None
    yield "two bytes follow", plain + _SHORT, None
    yield "garbage follows", plain + _GARBAGE, None
    yield "zeros follow", plain + bytes(20), None


def _zstd_frames_that_only_java_reads(section: bytes) -> Iterator[tuple[str, bytes]]:
    plain, (first, second) = _zstd_frame(section), _halves(section)
    yield "skippable frame cut", plain + _SKIPPABLE[:-1]
    yield "frame header cut", plain + plain[:5]
    without_end = _ZSTD_MAGIC + b"\0" + _zstd_window(16) + _zstd_block(second, is_last=False)
    yield "second frame without its end", _zstd_frame(first) + without_end
    yield "second frame without its checksum", plain + _zstd_frame(b"", _ZSTD_CHECKSUM)
