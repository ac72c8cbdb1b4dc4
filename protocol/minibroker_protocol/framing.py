"""Frames: the four bytes of size before every request and response.

Owns the splitting of a stream of bytes into frames, and the size before what is sent. It does no
I/O and reads no frame. Invariant: any bytes result in frames, a request for more bytes, or one
`DecodeError`, after which nothing follows; a size is compared with the limit before memory of that
size is used. Kafka's ``org.apache.kafka.common.network.NetworkReceive``.
"""

from __future__ import annotations

import struct
from typing import Final

from minibroker_protocol import wire
from minibroker_protocol.compiler import Chunk, encoder
from minibroker_protocol.errors import DecodeError, EncodeError
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import Buffer

SIZE_BYTES: Final = 4
FRAME_SIZE_MAX: Final = 0x7FFFFFFF
_SIZE: Final = struct.Struct(">i")


def frame_size(prefix: Buffer, *, limit: int = FRAME_SIZE_MAX) -> int:
    """Return the size in the first four bytes of a frame.

    Raises `DecodeError` outside 0..`limit`.
    """
    if len(prefix) < SIZE_BYTES:
        raise DecodeError(f"a frame begins with {SIZE_BYTES} bytes of size", len(prefix))
    size = int(_SIZE.unpack_from(prefix)[0])
    if size < 0:
        raise DecodeError(f"frame size {size} is negative", 0)
    if size > limit:
        raise DecodeError(f"frame size {size} is above the limit of {limit}", 0)
    return size


class FrameDecoder:
    """Cuts a stream into frames: `receive` what comes in, then `next_frame` until it is None."""

    def __init__(self, *, limit: int = FRAME_SIZE_MAX) -> None:
        self._limit = limit
        self._buffer = bytearray()
        self._error: DecodeError | None = None

    @property
    def wanted(self) -> int:
        """Bytes that the frame under way still lacks; of its size alone, as long as that does."""
        have = len(self._buffer)
        if have < SIZE_BYTES:
            return SIZE_BYTES - have
        size = SIZE_BYTES + int(_SIZE.unpack_from(self._buffer)[0])
        return max(0, size - have)

    def receive(self, data: Buffer) -> None:
        """Take what came in; dropped after an error."""
        if self._error is None:
            self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next whole frame without its size, or None for want of bytes.

        Raises `DecodeError` for a size outside the limit, and again at every later call.
        """
        if self._error is not None:
            raise self._error
        if len(self._buffer) < SIZE_BYTES:
            return None
        try:
            end = SIZE_BYTES + frame_size(self._buffer, limit=self._limit)
        except DecodeError as error:
            self._error = error
            self._buffer.clear()
            raise
        if len(self._buffer) < end:
            return None
        frame = bytes(memoryview(self._buffer)[SIZE_BYTES:end])
        del self._buffer[:end]
        return frame


def frame(header: bytes, body: list[Chunk]) -> list[Chunk]:
    """Header and body with their size before them. Chunks that aren't bytes stay as they are."""
    size = len(header) + sum(len(chunk) for chunk in body)
    if size > FRAME_SIZE_MAX:
        raise EncodeError(f"a frame of {size} bytes is larger than any may be")
    start = _SIZE.pack(size) + header
    if body and isinstance(body[0], (bytes, bytearray)):
        return [start + body[0], *body[1:]]
    return [start, *body]


def request_frame(header: wire.RequestHeader, body: Message) -> list[Chunk]:
    """A whole request, ready to be sent, in the version that its header names."""
    return frame(wire.encode_request_header(header), encoder(type(body), header.api_version)(body))


def response_frame(
    api_key: int, api_version: int, correlation_id: int, body: Message
) -> list[Chunk]:
    """A whole response, ready to be sent, to a request of this API and version."""
    return frame(
        wire.encode_response_header(api_key, api_version, correlation_id),
        encoder(type(body), api_version)(body),
    )
