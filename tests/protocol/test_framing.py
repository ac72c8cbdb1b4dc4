"""Frames cut from streams, however the bytes arrive."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import compiler, framing, headers
from protocol.errors import DecodeError, EncodeError
from protocol.framing import FrameDecoder
from protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from protocol.registry import ApiKey


def framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def drain(decoder: FrameDecoder) -> list[bytes]:
    frames = []
    while (frame := decoder.next_frame()) is not None:
        frames.append(frame)
    return frames


@given(bodies=st.lists(st.binary(max_size=20), max_size=4), sizes=st.lists(st.integers(1, 9)))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    bodies: list[bytes], sizes: list[int]
) -> None:
    stream = framed(*bodies)
    decoder = FrameDecoder()
    frames = []
    for size in [*sizes, len(stream)]:
        decoder.receive(stream[:size])
        stream = stream[size:]
        frames += drain(decoder)
    assert frames == bodies
    assert decoder.wanted == 4


def test_byte_by_byte_it_says_how_much_it_wants() -> None:
    decoder = FrameDecoder()
    wanted = []
    for byte in framed(b"abc"):
        wanted.append(decoder.wanted)
        assert decoder.next_frame() is None
        decoder.receive(bytes([byte]))
    assert wanted == [4, 3, 2, 1, 3, 2, 1]
    assert decoder.wanted == 0
    assert decoder.next_frame() == b"abc"


def test_a_frame_with_the_beginning_of_the_next_leaves_the_rest() -> None:
    decoder = FrameDecoder()
    decoder.receive(framed(b"one") + b"\0\0")
    assert drain(decoder) == [b"one"]
    decoder.receive(b"\0\1x")
    assert drain(decoder) == [b"x"]


@pytest.mark.parametrize(
    ("size", "what"),
    [(-1, "frame size -1 is negative"), (101, "frame size 101 is above the limit of 100")],
)
def test_a_bad_size_ends_the_stream(size: int, what: str) -> None:
    decoder = FrameDecoder(limit=100)
    decoder.receive(framed(b"good") + struct.pack(">i", size))
    assert decoder.next_frame() == b"good"
    for _ in range(2):
        with pytest.raises(DecodeError, match=what):
            decoder.next_frame()
    decoder.receive(framed(b"more"))
    with pytest.raises(DecodeError, match=what):
        decoder.next_frame()


def test_the_limit_itself_is_allowed() -> None:
    assert framing.frame_size(struct.pack(">i", 100), limit=100) == 100


def test_a_size_needs_four_bytes() -> None:
    with pytest.raises(DecodeError, match="4 bytes of size"):
        framing.frame_size(b"\0\0\0")


def test_a_request_goes_out_with_its_size_and_header_in_one_chunk() -> None:
    header = headers.RequestHeader(ApiKey.METADATA, 9, 5, "me")
    body = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    (chunk,) = framing.request_frame(header, body)
    assert isinstance(chunk, bytes)
    assert framing.frame_size(chunk) == len(chunk) - 4
    decoded, pos = headers.decode_request_header(chunk, 4)
    assert decoded == header
    assert compiler.decode(MetadataRequest, 9, chunk, pos) == body


class Slice:
    def __len__(self) -> int:
        return 500


def test_a_response_keeps_foreign_chunks_and_counts_them() -> None:
    topic = FetchableTopicResponse(topic="t", partitions=[PartitionData(records=Slice())])
    chunks = framing.response_frame(ApiKey.FETCH, 12, 8, FetchResponse(responses=[topic]))
    assert isinstance(chunks[0], bytes)
    assert isinstance(chunks[1], Slice)
    assert framing.frame_size(chunks[0]) == sum(len(chunk) for chunk in chunks) - 4
    assert headers.decode_response_header(chunks[0], ApiKey.FETCH, 12, 4) == (8, 9)


class Huge:
    def __len__(self) -> int:
        return 2**31 - 1


def test_a_frame_that_no_size_can_tell_is_refused() -> None:
    with pytest.raises(EncodeError, match="larger than any may be"):
        framing.frame(b"header", [Huge()])
    assert len(framing.frame(b"", [Huge()])) == 2
