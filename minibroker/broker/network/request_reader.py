"""Reads requests: four bytes of length, then the body directly into shared memory.

Owns the bytes of a connection up to a complete request. It must never decode one. Invariant: memory
for a body is taken from the processor's part of the arena after its length was checked, so the size
of the arena limits the memory of all requests; while it is full, nothing more is read. A request
that has not arrived completely makes a claim, which may be evicted if its bytes arrive too slowly.
``socket.request.max.bytes``; Kafka's ``NetworkReceive`` and ``MemoryPool`` (KIP-72).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.settings import SOCKET_REQUEST_MAX_BYTES
from minibroker.runtime.arena import ArenaPart, Block
from minibroker.runtime.request_memory import Claim, TooManyWaiting
from minibroker.runtime.stream import ByteStream

SCRATCH_BYTES: Final = 32 * 1024
"""Bytes read at once before the length is known; most requests fit."""

LENGTH_BYTES: Final = 4

_TLS_HANDSHAKE: Final = b"\x16\x03"
_HTTP_STARTS: Final = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"CONN", b"PRI ")


class InvalidRequestSize(Exception):
    """Bytes that are not a request; ``reason`` is counted, and the text is logged."""

    def __init__(self, reason: CloseReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class RequestReader:
    """Splits the bytes of one connection into request bodies.

    ``number`` identifies the connection and ``address`` its client, for claims. ``now`` returns
    real seconds, independent of the broker's clock. ``scratch`` may be shared by all readers of a
    process: it is used only between two waits.
    """

    __slots__ = (
        "_address",
        "_buffered",
        "_filled",
        "_now",
        "_number",
        "_part",
        "_request_bytes_max",
        "_scratch",
        "_setting",
        "_stream",
    )

    def __init__(
        self,
        stream: ByteStream,
        part: ArenaPart,
        request_bytes_max: int,
        scratch: memoryview,
        now: Callable[[], float],
        *,
        number: int,
        address: str,
    ) -> None:
        self._stream = stream
        self._number = number
        self._address = address
        self._part = part
        self._request_bytes_max = request_bytes_max
        self._setting = SOCKET_REQUEST_MAX_BYTES.name
        self._scratch = scratch
        self._now = now
        self._buffered = b""
        self._filled = 0

    @contextmanager
    def bounded(self, request_bytes_max: int, setting: str) -> Iterator[None]:
        """Context in which a request may not exceed the value of a setting."""
        before = self._request_bytes_max, self._setting
        self._request_bytes_max, self._setting = min(before[0], request_bytes_max), setting
        try:
            yield
        finally:
            self._request_bytes_max, self._setting = before

    async def next(self) -> Block | None:
        """Return the next body, in memory that the caller releases; None when the client
        disconnected.

        Raises ``InvalidRequestSize``, or ``StreamClosed`` from the stream.
        """
        body = await self.next_body()
        if not isinstance(body, bytes):
            return body
        try:
            return await self.store(body)
        except BaseException:  # Kept if a wait is cancelled.
            self._buffered = len(body).to_bytes(LENGTH_BYTES, "big") + body + self._buffered
            raise

    async def next_body(self) -> bytes | Block | None:
        """Return the next body as ``next`` does, or as bytes if it arrived at once.

        At most ``SCRATCH_BYTES`` of each connection are outside of the shared memory.
        """
        while len(self._buffered) < LENGTH_BYTES:
            count = await self._stream.receive_into(self._scratch)
            if count == 0:
                if self._buffered:
                    raise _partial_request(len(self._buffered), LENGTH_BYTES)
                return None
            self._buffer(count)
        body = self.buffered_body()
        return await self._receive(self._checked_size(self._buffered)) if body is None else body

    def received(self, count: int) -> bytes | None:
        """Take ``count`` bytes from scratch; return the next body if it has arrived completely.

        Raises ``InvalidRequestSize``.
        """
        self._buffer(count)
        return self.buffered_body()

    def buffered_body(self) -> bytes | None:
        """Return the next body if it has been received completely."""
        data = self._buffered
        if len(data) < LENGTH_BYTES:
            return None
        end = LENGTH_BYTES + self._checked_size(data)
        if len(data) < end:
            return None
        self._buffered = data[end:]
        return data[LENGTH_BYTES:end]

    @property
    def has_buffered(self) -> bool:
        """Whether bytes of the next request were received."""
        return bool(self._buffered)

    def _buffer(self, count: int) -> None:
        data = self._scratch[:count]
        self._buffered = self._buffered + data if self._buffered else bytes(data)

    async def store(self, body: bytes) -> Block:
        """Copy a body into shared memory that the caller releases."""
        size = len(body)
        block = self._part.allocate_nowait(size)
        if block is None:
            block = await self._allocate(Claim(self._number, self._address, size, is_complete=True))
        block.view[:] = body
        return block

    def arrived(self) -> int:
        """Number of received bytes of the current body."""
        return self._filled + self._stream.arrived()

    async def _receive(self, size: int) -> Block:
        """Receive the rest of a body that has not arrived completely."""
        claim = Claim(self._number, self._address, size)
        block = await self._allocate(claim)
        try:
            body = self._buffered[LENGTH_BYTES:]
            self._buffered = b""
            self._filled = filled = len(body)
            block.view[:filled] = body
            claim.since = self._now()
            filled += await self._stream.receive_exactly(block.view[filled:])
            if filled < size:
                raise _partial_request(filled, size)
        except BaseException:
            self._part.finish(claim)
            block.release()
            raise
        self._part.finish(claim)
        return block

    async def _allocate(self, claim: Claim) -> Block:
        try:
            block = self._part.claim(claim)
        except TooManyWaiting as error:
            raise InvalidRequestSize(CloseReason.LIMIT, str(error)) from None
        return await self._part.wait_granted(claim) if block is None else block

    def _checked_size(self, data: bytes) -> int:
        size = int.from_bytes(data[:LENGTH_BYTES], "big", signed=True)
        if 0 < size <= self._request_bytes_max:
            return size
        if data.startswith(_TLS_HANDSHAKE):
            raise InvalidRequestSize(
                CloseReason.BAD_FRAME, "a TLS handshake: this listener has no TLS"
            )
        if data.startswith(_HTTP_STARTS):
            raise InvalidRequestSize(
                CloseReason.BAD_FRAME, "an HTTP request: this port serves the Kafka protocol"
            )
        if size <= 0:
            raise InvalidRequestSize(CloseReason.BAD_FRAME, f"a request claims {size} bytes")
        raise InvalidRequestSize(
            CloseReason.FRAME_TOO_LARGE,
            f"a request claims {size} bytes; {self._setting} is {self._request_bytes_max}",
        )


def _partial_request(received: int, expected: int) -> InvalidRequestSize:
    return InvalidRequestSize(
        CloseReason.PARTIAL_REQUEST,
        f"the client disconnected {expected - received} bytes before the end of its request",
    )
