"""Codecs both ways, in all framings, and never past the limit."""

from __future__ import annotations

import contextlib
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.compression import Compression, compress, decompress
from protocol.errors import DecodeError

PACKED = [codec for codec in Compression if codec is not Compression.NONE]


@pytest.mark.parametrize("codec", Compression)
@given(data=st.binary(max_size=100_000))
def test_what_was_compressed_comes_back(codec: Compression, data: bytes) -> None:
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed)) == data
    assert bytes(decompress(codec, memoryview(packed))) == data


@pytest.mark.parametrize("codec", PACKED)
def test_data_larger_than_the_first_guess_comes_back(codec: Compression) -> None:
    data = bytes(3_000_000)
    assert bytes(decompress(codec, compress(codec, data))) == data


@pytest.mark.parametrize("codec", PACKED)
def test_growth_stops_at_the_limit(codec: Compression) -> None:
    data = bytes(1_000_000)
    packed = compress(codec, data)
    assert bytes(decompress(codec, packed, len(data))) == data
    with pytest.raises(DecodeError, match="limit of 999999 bytes"):
        decompress(codec, packed, len(data) - 1)


@pytest.mark.parametrize("codec", PACKED)
@given(data=st.binary(max_size=200))
def test_any_bytes_decompress_or_are_refused(codec: Compression, data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        decompress(codec, data, 1000)


@pytest.mark.parametrize("codec", PACKED)
@pytest.mark.parametrize("keep", [0, 1, 10, 50])
def test_cut_off_data_is_refused(codec: Compression, keep: int) -> None:
    packed = compress(codec, bytes(range(256)) * 4)
    with pytest.raises(DecodeError):
        decompress(codec, packed[:keep])


def test_snappy_comes_with_and_without_xerial_framing() -> None:
    data = b"librdkafka sends one raw block " * 3000
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert decompress(Compression.SNAPPY, raw) == data
    assert compress(Compression.SNAPPY, data)[:8] == b"\x82SNAPPY\x00"


def test_xerial_blocks_count_together_against_the_limit() -> None:
    packed = compress(Compression.SNAPPY, bytes(200_000))
    with pytest.raises(DecodeError, match="limit"):
        decompress(Compression.SNAPPY, packed, 100_000)


def test_lz4_blocks_are_independent_as_kafka_demands() -> None:
    flags = compress(Compression.LZ4, b"x" * 200_000)[4]
    version, independent = flags >> 6, flags >> 5 & 1
    assert (version, independent) == (1, 1)


def test_gzip_may_have_several_members() -> None:
    members = zlib.compress(b"one ", wbits=31) + zlib.compress(b"two", wbits=31)
    assert decompress(Compression.GZIP, members) == b"one two"
    with pytest.raises(DecodeError, match="limit"):
        decompress(Compression.GZIP, members, 6)
