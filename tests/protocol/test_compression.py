"""Codec numbers and the step through a codec, apart from any codec's framing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from minibroker_protocol.compression import Compression, compress, decompress
from minibroker_protocol.errors import DecodeError


def test_codec_numbers_match_batch_attributes() -> None:
    assert [codec.name for codec in sorted(Compression)] == [
        "NONE",
        "GZIP",
        "SNAPPY",
        "LZ4",
        "ZSTD",
    ]


def test_codec_none_returns_same_object() -> None:
    data = b"as they are"
    assert compress(Compression.NONE, data) is data
    assert decompress(Compression.NONE, data, limit=1) is data


@pytest.mark.parametrize("codec", [codec for codec in Compression if codec])
def test_library_errors_become_decode_errors(codec: Compression) -> None:
    with pytest.raises(DecodeError, match="is empty"):
        decompress(codec, b"")
    with pytest.raises(DecodeError, match=codec.name.lower()):
        decompress(codec, b"\x00\x01 no such thing" * 3)


def test_codec_libraries_are_loaded_on_first_compression() -> None:
    program = (
        "import sys; from minibroker_protocol.records import build_batch; "
        "loaded = 'cramjam' in sys.modules; "
        "from minibroker_protocol.compression import compress, Compression; "
        "compress(Compression.ZSTD, b'x'); "
        "sys.exit(loaded or 'cramjam' not in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
