"""Codecs both ways, in all framings, and never past the limit."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
import zlib

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol import codecs
from minibroker_protocol.compression import Compression, compress, decompress
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import HEADER_BYTES, Record, build_batch
from tests.protocol.compressed_frames import (
    CompressedFrame,
    compressed_frames,
    frames_that_only_java_reads,
)

SECTION = build_batch([Record(key=b"k", value=bytes([65 + n]) * 200) for n in range(4)])[
    HEADER_BYTES:
]
FRAMES = compressed_frames(SECTION)

PACKED = [codec for codec in Compression if codec is not Compression.NONE]


@pytest.mark.parametrize("codec", Compression)
@given(data=st.binary(max_size=100_000))
def test_compressed_data_round_trips(codec: Compression, data: bytes) -> None:
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed)) == data
    assert bytes(decompress(codec, memoryview(packed))) == data


@pytest.mark.parametrize("codec", PACKED)
def test_data_larger_than_first_buffer_round_trips(codec: Compression) -> None:
    data = bytes(3_000_000)
    assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", PACKED)
def test_decompressed_data_beyond_limit_is_rejected(codec: Compression) -> None:
    data = bytes(1_000_000)
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, len(data))) == data
    with pytest.raises(DecodeError, match="limit of 999999 bytes"):
        decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.binary(max_size=200))
def test_random_bytes_decompress_or_raise_decode_error(codec: Compression, data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        decompress(codec, data, 1000)


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("keep", [0, 1, 10, 50])
def test_truncated_data_is_rejected(codec: Compression, keep: int) -> None:
    packed = compress(codec, bytes(range(256)) * 4)
    with pytest.raises(DecodeError):
        decompress(codec, packed[:keep])


def test_snappy_is_read_with_and_without_xerial_framing() -> None:
    data = b"librdkafka sends one raw block " * 3000
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert decompress(Compression.SNAPPY, raw) == data
    assert compress(Compression.SNAPPY, data)[:8] == b"\x82SNAPPY\x00"


def test_xerial_blocks_are_limited_in_total() -> None:
    packed = compress(Compression.SNAPPY, bytes(200_000))
    with pytest.raises(DecodeError, match="limit"):
        decompress(Compression.SNAPPY, packed, 100_000)


def test_lz4_blocks_are_independent() -> None:
    flags = compress(Compression.LZ4, b"x" * 200_000)[4]
    version, independent = flags >> 6, flags >> 5 & 1
    assert (version, independent) == (1, 1)


def frame_name(frame: CompressedFrame) -> str:
    return f"{frame.codec.name}: {frame.name}"


@pytest.mark.parametrize(
    "frame", [each for each in FRAMES if each.content is not None], ids=frame_name
)
def test_frame_that_java_reads_is_decompressed_to_the_same(frame: CompressedFrame) -> None:
    assert frame.content is not None
    assert bytes(decompress(frame.codec, memoryview(frame.data))) == frame.content
    if frame.content:
        with pytest.raises(DecodeError, match="limit"):
            decompress(frame.codec, frame.data, len(frame.content) - 1)


@pytest.mark.parametrize(
    "frame",
    [each for each in FRAMES if each.content is None] + frames_that_only_java_reads(SECTION),
    ids=frame_name,
)
def test_frame_that_some_client_cannot_read_is_rejected(frame: CompressedFrame) -> None:
    with pytest.raises(DecodeError, match=frame.codec.name.lower()):
        decompress(frame.codec, frame.data)


def test_rejected_lz4_frame_says_what_to_change() -> None:
    frames = {frame.name: frame.data for frame in FRAMES if frame.codec is Compression.LZ4}
    for name, reason in (
        ("linked blocks", "must write independent blocks"),
        ("version 2", "unknown version 2"),
        ("dictionary id", "dictionary"),
        ("no frame", "does not start with the header of an LZ4 frame"),
        ("no end mark", "ends inside its frame"),
    ):
        with pytest.raises(DecodeError, match=reason):
            decompress(Compression.LZ4, frames[name])


@pytest.mark.parametrize("linked", [False, True])
def test_frame_of_python_lz4_is_read_if_its_blocks_are_independent(linked: bool) -> None:
    data = SECTION * 200
    size = lz4.frame.BLOCKSIZE_MAX64KB
    frame = lz4.frame.compress(data, block_linked=linked, block_size=size, store_size=linked)
    if linked:
        with pytest.raises(DecodeError, match="independent"):
            decompress(Compression.LZ4, frame)
    else:
        assert decompress(Compression.LZ4, frame) == data


def test_gzip_member_that_ends_at_any_place_of_a_piece_is_inflated() -> None:
    noise = random.Random(1).randbytes(codecs._GZIP_PIECE_BYTES)
    for size in range(len(noise) - 40, len(noise)):
        members = compress(Compression.GZIP, noise[:size]) + compress(Compression.GZIP, b"end")
        assert decompress(Compression.GZIP, members) == noise[:size] + b"end"


def test_gzip_with_several_members_is_decompressed() -> None:
    members = zlib.compress(b"one ", wbits=31) + zlib.compress(b"two", wbits=31)
    assert decompress(Compression.GZIP, members) == b"one two"
    with pytest.raises(DecodeError, match="limit"):
        decompress(Compression.GZIP, members, 6)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 65_791, 65_792, 1 << 20])
def test_claimed_size_of_zstd_frame_is_its_content_size(size: int) -> None:
    data = random.Random(size).randbytes(size)
    frame = zstandard.ZstdCompressor().compress(data)
    # Too short for a header of the longest kind.
    assert codecs._zstd_claimed_size(frame) == (size if len(frame) >= 18 else 0)
    without = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    assert codecs._zstd_claimed_size(without) == 0


def test_false_claim_of_zstd_frame_costs_little_memory() -> None:
    # Single segment with a content size of 8 bytes, and nothing that decompresses.
    frame = bytes.fromhex("28b52ffd e0") + (200 << 20).to_bytes(8, "little") + bytes(100)
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decompress(Compression.ZSTD, frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
