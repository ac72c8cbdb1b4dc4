"""A client that sends single requests over a socket and looks at the bytes of the answers."""

from __future__ import annotations

import select
import socket
import struct
from types import TracebackType
from typing import Any, Self

from minibroker_protocol.compiler import decode
from minibroker_protocol.registry import schema
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import decode_response_header
from tests.simulation.client import frame

TIMEOUT_S = 120.0


class RawClient:
    """One connection."""

    def __init__(self, bootstrap_servers: str, client_id: str = "raw") -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), TIMEOUT_S)
        self.client_id = client_id
        self.correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._socket.close()

    def send(self, request: Message, version: int) -> None:
        """Send a request."""
        self.correlation_id += 1
        self._socket.sendall(
            frame(request, version, correlation_id=self.correlation_id, client_id=self.client_id)
        )

    def send_bytes(self, data: bytes) -> None:
        """Send bytes that need not be a request."""
        self._socket.sendall(data)

    def receive_bytes(self, count: int) -> bytes:
        """Receive so many bytes, or fewer if the broker disconnects."""
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            if not more:
                break
            data += more
        return data

    def receive_frame(self) -> bytes:
        """Receive a response with its length; fewer bytes if the broker disconnects."""
        start = self.receive_bytes(4)
        if len(start) < 4:
            return start
        (length,) = struct.unpack(">i", start)
        return start + self.receive_bytes(length)

    def receive(self, request: Message, version: int) -> Any:
        """Receive the response to a request."""
        return response_in(self.receive_frame(), request, version)

    def ask(self, request: Message, version: int) -> Any:
        """Send a request and receive its response."""
        self.send(request, version)
        return self.receive(request, version)

    def is_readable(self) -> bool:
        """Whether bytes or an end have arrived."""
        return bool(select.select([self._socket], [], [], 0)[0])


def response_in(frame: bytes, request: Message, version: int) -> Any:
    """The response in a frame."""
    assert len(frame) > 4, "the broker has disconnected"
    key = request.__api_key__
    assert key is not None
    _, at = decode_response_header(frame, key, version, 4)
    return decode(schema(key).response, version, frame, at)
