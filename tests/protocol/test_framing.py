"""Frames cut from streams, however the bytes arrive."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker_protocol import compiler, framing, wire
from minibroker_protocol.errors import DecodeError, EncodeError
from minibroker_protocol.framing import FrameDecoder
from minibroker_protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.registry import ApiKey


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def drain(decoder: FrameDecoder) -> list[bytes]:
    frames = []
    while (frame := decoder.next_frame()) is not None:
        frames.append(frame)
    return frames


@given(bodies=st.lists(st.binary(max_size=20), max_size=4), sizes=st.lists(st.integers(1, 9)))
def test_frames_are_decoded_from_chunks_of_any_size(bodies: list[bytes], sizes: list[int]) -> None:
    stream = framed(*bodies)
    decoder = FrameDecoder()
    frames = []
    for size in [*sizes, len(stream)]:
        decoder.receive(stream[:size])
        stream = stream[size:]
        frames += drain(decoder)
    assert frames == bodies
    assert decoder.wanted == 4


def test_frame_decoder_reports_wanted_bytes() -> None:
    decoder = FrameDecoder()
    wanted = []
    for byte in framed(b"abc"):
        wanted.append(decoder.wanted)
        assert decoder.next_frame() is None
        decoder.receive(bytes([byte]))
    assert wanted == [4, 3, 2, 1, 3, 2, 1]
    assert decoder.wanted == 0
    assert decoder.next_frame() == b"abc"


def test_start_of_next_frame_stays_buffered() -> None:
    decoder = FrameDecoder()
    decoder.receive(framed(b"one") + b"\0\0")
    assert drain(decoder) == [b"one"]
    decoder.receive(b"\0\1x")
    assert drain(decoder) == [b"x"]


@pytest.mark.parametrize(
    ("size", "what"),
    [(-1, "frame size -1 is negative"), (101, "frame size 101 is above the limit of 100")],
)
def test_invalid_frame_size_is_a_permanent_error(size: int, what: str) -> None:
    decoder = FrameDecoder(limit=100)
    decoder.receive(framed(b"good") + struct.pack(">i", size))
    assert decoder.next_frame() == b"good"
    for _ in range(2):
        with pytest.raises(DecodeError, match=what):
            decoder.next_frame()
    decoder.receive(framed(b"more"))
    with pytest.raises(DecodeError, match=what):
        decoder.next_frame()


def test_frame_size_equal_to_limit_is_accepted() -> None:
    assert framing.frame_size(struct.pack(">i", 100), limit=100) == 100


def test_truncated_frame_size_is_rejected() -> None:
    with pytest.raises(DecodeError, match="4 bytes of size"):
        framing.frame_size(b"\0\0\0")


def test_request_frame_is_one_chunk_with_size_and_header() -> None:
    header = wire.RequestHeader(ApiKey.METADATA, 9, 5, "me")
    body = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    (chunk,) = framing.request_frame(header, body)
    assert isinstance(chunk, bytes)
    assert framing.frame_size(chunk) == len(chunk) - 4
    decoded, pos = wire.decode_request_header(chunk, 4)
    assert decoded == header
    assert compiler.decode(MetadataRequest, 9, chunk, pos) == body


class Slice:
    def __len__(self) -> int:
        return 500


def test_response_frame_size_includes_record_slices() -> None:
    topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(records=Slice())])
    chunks = framing.response_frame(ApiKey.FETCH, 12, 8, FetchResponse(responses=[topic]))
    assert isinstance(chunks[0], bytes)
    assert isinstance(chunks[1], Slice)
    assert framing.frame_size(chunks[0]) == sum(len(chunk) for chunk in chunks) - 4
    assert wire.decode_response_header(chunks[0], ApiKey.FETCH, 12, 4) == (8, 9)


class Huge:
    def __len__(self) -> int:
        return 2**31 - 1


def test_frame_larger_than_int32_is_rejected() -> None:
    with pytest.raises(EncodeError, match="larger than any may be"):
        framing.frame(b"header", [Huge()])
    assert len(framing.frame(b"", [Huge()])) == 2
