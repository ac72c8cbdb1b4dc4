"""Frames on the two connections of a proxied client.

Owns reading whole frames from a stream and sending them. It must never look into one. Invariant: a
frame above the limit of its direction ends the connection before its bytes are kept, and a stream
is read only when a frame is asked for, so a slow receiver slows its sender down.
"""

from __future__ import annotations

from typing import Final

import trio

from minibroker.lab.proxy.exchange import UnexpectedFrame
from minibroker.runtime.stream import ByteStream
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.framing import FrameDecoder

REQUEST_BYTES_MAX: Final = 100 * 1024 * 1024
"""Size of a request: Kafka's default of ``socket.request.max.bytes``."""

RESPONSE_BYTES_MAX: Final = 512 * 1024 * 1024
"""Size of a response: a fetch may have more than its limit if its first batch does."""

READ_BYTES: Final = 64 * 1024
"""Bytes that are read at once."""

JOINED_BYTES_MAX: Final = 64 * 1024
"""Frames up to this size are sent in one piece with their length."""

LENGTH_BYTES: Final = 4
_TLS_HANDSHAKE: Final = b"\x16\x03"


class FrameReader:
    """The frames that arrive on a stream."""

    def __init__(self, stream: ByteStream, limit: int) -> None:
        self._stream = stream
        self._decoder = FrameDecoder(limit=limit)
        self._scratch = memoryview(bytearray(READ_BYTES))
        self._is_first = True

    async def next_frame(self) -> bytes | None:
        """The next frame without its length; None if the stream has ended.

        Raises ``UnexpectedFrame`` or ``StreamClosed``.
        """
        while True:
            try:
                frame = self._decoder.next_frame()
            except DecodeError as error:
                raise UnexpectedFrame(str(error)) from None
            if frame is not None:
                self._is_first = False
                return frame
            waits = self._stream.waits
            count = await self._stream.receive_into(self._scratch)
            if count == 0:
                return None
            if self._is_first and bytes(self._scratch[:count]).startswith(_TLS_HANDSHAKE):
                raise UnexpectedFrame("TLS; the proxy reads requests, so it needs PLAINTEXT")
            self._decoder.receive(self._scratch[:count])
            if self._stream.waits == waits:  # Others have their turn even if this one never waits.
                await trio.lowlevel.checkpoint()

    async def discard_bytes(self) -> None:
        """Read and drop bytes until the stream ends."""
        while await self._stream.receive_into(self._scratch):
            pass


def with_length(frame: bytes) -> bytes:
    """A frame as it is sent."""
    return len(frame).to_bytes(LENGTH_BYTES, "big") + frame


async def send_frame(stream: ByteStream, frame: bytes) -> None:
    """Send a frame with its length. Raises ``StreamClosed``."""
    if len(frame) <= JOINED_BYTES_MAX:
        await stream.send_all(with_length(frame))
    else:
        await stream.send_all(len(frame).to_bytes(LENGTH_BYTES, "big"), more=True)
        await stream.send_all(frame)
