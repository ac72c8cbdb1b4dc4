"""A small Kafka client for one connection in memory: a request and its response at a time.

Owns framing, headers and correlation ids. It must never know retries, metadata or time. Invariant:
a response belongs to the request before it, in the same version, and is decoded completely.
"""

from __future__ import annotations

import socket
from typing import Any

from minibroker.runtime.stream import ByteStream, MemoryStream, SocketStream, StreamClosed
from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import RequestHeader, decode_response_header, encode_request_header


def api_key(request: Message) -> int:
    """The key of a request's API."""
    key = type(request).__api_key__
    assert key is not None
    return key


def frame(
    request: Message, version: int, *, correlation_id: int = 1, client_id: str = "t"
) -> bytes:
    """A request as it goes over the wire, its length before it."""
    key = api_key(request)
    header = RequestHeader(key, version, correlation_id, client_id)
    body = encode_request_header(header) + encode(request, version)
    return len(body).to_bytes(4, "big") + body


class SimulatedClient:
    """One connection. Every call raises ``StreamClosed`` when the broker has disconnected."""

    def __init__(self, stream: ByteStream, client_id: str = "t") -> None:
        self.stream = stream
        self.client_id = client_id
        self._correlation_id = 0
        self.received = b""
        """The last frame, for comparing every byte."""

    async def ask(self, request: Message, version: int) -> Any:
        """The response to a request."""
        await self.send_request(request, version)
        return await self.answer(api_key(request), version)

    async def send_request(self, request: Message, version: int) -> None:
        """Sends a request without waiting for a response."""
        self._correlation_id += 1
        await self.stream.send_all(
            frame(
                request,
                version,
                correlation_id=self._correlation_id,
                client_id=self.client_id,
            )
        )

    async def answer(self, key: int, version: int) -> Any:
        """The next response, which answers the last request."""
        body = await self.receive_frame()
        correlation_id, at = decode_response_header(body, key, version)
        assert correlation_id == self._correlation_id
        return decode(registry.schema(key).response, version, body, at)

    async def receive_frame(self) -> bytes:
        """The next frame without its length."""
        size = int.from_bytes(await self._exactly(4), "big")
        self.received = await self._exactly(size)
        return self.received

    async def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        filled = 0
        while filled < size:
            count = await self.stream.receive_into(memoryview(data)[filled:])
            if count == 0:
                raise StreamClosed("the broker hung up")
            filled += count
        return bytes(data)

    async def wait_closed(self) -> bytes:
        """Wait until the broker has disconnected; return what it sent before."""
        received = bytearray()
        room = memoryview(bytearray(4096))
        while True:
            try:
                count = await self.stream.receive_into(room)
            except StreamClosed:
                return bytes(received)
            if count == 0:
                return bytes(received)
            received += room[:count]

    def end_sending(self) -> None:
        """Half-close the connection."""
        if isinstance(self.stream, SocketStream):
            self.stream._socket.shutdown(socket.SHUT_WR)
            return
        assert isinstance(self.stream, MemoryStream)
        outgoing = self.stream._outgoing
        outgoing.ended = True
        outgoing.notify()

    def close(self) -> None:
        self.stream.close()
