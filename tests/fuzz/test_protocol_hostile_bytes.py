"""Law: any bytes at all give an object or a `DecodeError`, soon, and nothing else.

Random bytes, bytes of real frames with bits changed, counts and lengths set to extremes: for every
API and version, through headers, codecs, frames and the dissector.
"""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol import compiler, framing, wire
from minibroker_protocol.dissect import dissect
from minibroker_protocol.errors import DecodeError, UnsupportedVersion
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Message

MESSAGES = [cls for key in ApiKey for cls in (schema(key).request, schema(key).response)]
EXTREMES = [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff" * 5 + b"\x0f", b"\0"]


def versions_of(cls: type[Message]) -> range:
    return range(cls.__versions__.low, cls.__versions__.high + 1)


def try_decoding(cls: type[Message], version: int, data: bytes) -> None:
    """Decode; a decoded message can be encoded again, and stays the same."""
    error = None
    try:
        message, end = compiler.decoder(cls, version)(data)
    except DecodeError as caught:
        error = caught
    else:
        assert 0 <= end <= len(data)
        encoded = compiler.encode(message, version)
        again = compiler.decode(cls, version, encoded)
        assert compiler.encode(again, version) == encoded
    if error is not None:
        assert 0 <= error.offset <= len(data)
        assert error.what.startswith(f"{cls.__name__} v{version}, ")
        assert "?" not in error.what.split(":")[0]


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_random_bytes_decode_or_raise_decode_error(cls: type[Message], seed: int) -> None:
    rng = random.Random(f"{cls.__name__} {seed}")
    for version in versions_of(cls):
        for _ in range(20):
            try_decoding(cls, version, rng.randbytes(rng.randrange(60)))
            # Small numbers are likelier to be believed as counts and lengths.
            try_decoding(cls, version, bytes(rng.choices(range(4), k=rng.randrange(60))))


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_mutated_messages_decode_or_raise_decode_error(
    cls: type[Message],
    draw_message: Callable[[type[Message]], st.SearchStrategy[Any]],
    project_message: Callable[[Message, int], Message],
) -> None:
    @given(st.data(), st.randoms(use_true_random=False))
    def check(data: st.DataObject, rng: random.Random) -> None:
        version = data.draw(st.sampled_from(versions_of(cls)))
        message = project_message(data.draw(draw_message(cls)), version)
        for mutant in mutations(compiler.encode(message, version), rng):
            try_decoding(cls, version, mutant)

    check()


def mutations(data: bytes, rng: random.Random) -> Iterator[bytes]:
    for _ in range(10):
        at = rng.randrange(len(data) + 1)
        yield data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        yield data[:at] + rng.choice(EXTREMES) + data[at + rng.randrange(5) :]
        yield data[:at] + data[at + rng.randrange(4) :]


@given(st.binary(max_size=60), st.integers(0, 100))
def test_random_stream_yields_frames_within_limit_or_decode_error(data: bytes, limit: int) -> None:
    decoder = framing.FrameDecoder(limit=limit)
    decoder.receive(data)
    with contextlib.suppress(DecodeError):
        while (frame := decoder.next_frame()) is not None:
            assert len(frame) <= limit
    assert decoder.wanted >= 0


@given(st.binary(max_size=60))
def test_random_headers_decode_or_raise_decode_error(data: bytes) -> None:
    with contextlib.suppress(DecodeError, UnsupportedVersion):
        header, end = wire.decode_request_header(data)
        assert 8 <= end <= len(data)
        assert header.api_key in list(ApiKey)
    with contextlib.suppress(DecodeError):
        assert wire.decode_response_header(data, ApiKey.METADATA, 12)[1] <= len(data)


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_random_bodies_are_dissected(key: ApiKey, seed: int) -> None:
    rng = random.Random(f"{key.name} {seed}")
    for version in versions_of(schema(key).request):
        start = wire.encode_request_header(wire.RequestHeader(key, version, 1, None))
        for _ in range(5):
            body = bytes(rng.choices(range(4), k=rng.randrange(60)))
            assert dissect(start + body).root.children
            assert dissect(body, api_key=key, version=version).root.children


@pytest.mark.parametrize(
    "cls",
    [m for m in MESSAGES if m.__flexible__.has(m.__versions__.high)],
    ids=lambda m: m.__name__,
)
def test_invalid_array_counts_allocate_no_memory(cls: type[Message]) -> None:
    """A count is held against the bytes that are left before anything is made for it."""
    data = b"\xff\xff\xff\xff\x07" * 12
    decode = compiler.decoder(cls, cls.__versions__.high)
    tracemalloc.start()
    try:
        with contextlib.suppress(DecodeError):
            decode(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 16
