"""Codecs both ways, in all framings, and never past the limit."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
import zlib

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from protocol import codecs
from protocol.compression import Compression, compress, decompress
from protocol.errors import DecodeError

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
