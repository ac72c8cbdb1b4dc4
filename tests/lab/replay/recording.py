"""Lines of a capture: made of frames, or recorded from a conversation with a broker."""

from __future__ import annotations

import base64
import json
import socket
from typing import Any, Self

from minibroker_protocol import registry
from minibroker_protocol.compiler import decode, encode
from minibroker_protocol.schema import Message
from minibroker_protocol.wire import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
    encode_response_header,
)
from tests.simulation.client import api_key

PATIENCE_S = 30.0


class CaptureWriter:
    """Writes requests and responses as the journal has them, one millisecond after another."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, kind: str, connection: str, correlation_id: int, frame: bytes | None) -> None:
        """Add an entry."""
        self.lines.append(
            json.dumps({
                "sequence": len(self.lines) + 1,
                "clock_ms": 1000.0 + len(self.lines),
                "kind": kind,
                "connection": connection,
                "correlation_id": correlation_id,
                "api": "Produce",
                "frame": None if frame is None else base64.b64encode(frame).decode(),
            })
        )  # fmt: skip

    def exchange(
        self,
        connection: str,
        correlation_id: int,
        request: Message,
        version: int,
        response: Message | None = None,
    ) -> None:
        """Add a request and its response."""
        self.add(
            "request", connection, correlation_id, request_of(request, version, correlation_id)
        )
        if response is not None:
            start = encode_response_header(api_key(request), version, correlation_id)
            self.add("response", connection, correlation_id, start + encode(response, version))


def request_of(request: Message, version: int, correlation_id: int = 1) -> bytes:
    header = RequestHeader(api_key(request), version, correlation_id, "t")
    return encode_request_header(header) + encode(request, version)


class RecordedClient:
    """A connection whose requests and responses are recorded."""

    def __init__(self, bootstrap_servers: str, connection: str, writer: CaptureWriter) -> None:
        host, _, port = bootstrap_servers.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self._file = self._socket.makefile("rb")
        self._connection = connection
        self._writer = writer
        self._correlation_id = 0

    def ask(self, request: Message, version: int) -> Any:
        """Return the response."""
        self._correlation_id += 1
        frame = request_of(request, version, self._correlation_id)
        self._writer.add("request", self._connection, self._correlation_id, frame)
        self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
        size = self._file.read(4)
        assert size, "the broker closed the connection"
        body = self._file.read(int.from_bytes(size, "big"))
        self._writer.add("response", self._connection, self._correlation_id, body)
        _, at = decode_response_header(body, api_key(request), version)
        return decode(registry.schema(api_key(request)).response, version, body, at)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()
