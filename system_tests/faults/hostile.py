"""Named requests that no honest client sends, and sockets that report how they end.

It owns the requests that must have a certain outcome; ``system_tests.attack.frames`` generates any
number of others. It expects nothing. A frame is Kafka's: four bytes of length, then a header of API
key, version, correlation id and client id.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from system_tests.harness.waiting import PATIENCE_S

METADATA, API_VERSIONS, PRODUCE, FETCH = 3, 18, 0, 1


class Outcome(Enum):
    ANSWERED = "answered"
    CLOSED = "closed"
    WAITS = "waits"


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def request(api_key: int, version: int, body: bytes = b"", *, correlation: int = 7) -> bytes:
    """Return a frame with a version 1 header, whose client id is "x"."""
    return frame(struct.pack(">hhih", api_key, version, correlation, 1) + b"x" + body)


def flexible_request(api_key: int, version: int, body: bytes = b"") -> bytes:
    """Return a frame with a version 2 header: the same and no tagged fields."""
    return frame(struct.pack(">hhih", api_key, version, 7, 1) + b"x\x00" + body)


def api_versions_request() -> bytes:
    return request(API_VERSIONS, 0)


# A frame of which less arrives than it says: the broker can only wait for the rest.
UNFINISHED = {
    "a length and nothing": struct.pack(">i", 100),
    "half a length": b"\x00\x00",
    "half a frame": struct.pack(">i", 100) + b"\x00" * 50,
    "a large length within bounds": struct.pack(">i", 90_000_000) + b"\x00" * 10,
}
# What can't become right however much follows.
HOPELESS = {
    "a length below nothing": struct.pack(">i", -1) + b"\x00" * 16,
    "the least length": struct.pack(">i", -(2**31)) + b"\x00" * 16,
    "a length of 2 GB": struct.pack(">i", 2**31 - 1) + b"\x00" * 16,
    "a length above the limit": struct.pack(">i", 104_857_601) + b"\x00" * 16,
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a TLS hello": bytes.fromhex("1603010200010001fc0303") + b"\x11" * 512,
    "a frame of nothing": frame(b""),
    "a header cut short": frame(struct.pack(">hh", METADATA, 1)),
    "an unknown API": request(9999, 0),
    "an API below nothing": request(-5, 0),
    "a version of nowhere": request(METADATA, 300),
    "a version below nothing": request(METADATA, -3),
    "an array of 2 billion topics": request(METADATA, 1, struct.pack(">i", 2**31 - 1)),
    "an array of minus 7 topics": request(METADATA, 1, struct.pack(">i", -7)),
    "a string longer than the frame": request(METADATA, 1, struct.pack(">ih", 1, 30_000) + b"ab"),
    "a varint without an end": flexible_request(METADATA, 9, b"\xff" * 12),
    "a compact array of 4 billion": flexible_request(METADATA, 9, b"\xff\xff\xff\xff\x0f"),
    "a produce request of nothing": request(PRODUCE, 7),
    "a fetch request of nothing": request(FETCH, 11),
}


@contextmanager
def connected(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, PATIENCE_S) as stream:
        yield stream


def outcome(stream: socket.socket, *, patience_s: float) -> Outcome:
    """Wait for an answer or the end of the connection, whichever is first."""
    readable, _, _ = select.select([stream], [], [], patience_s)
    if not readable:
        return Outcome.WAITS
    try:
        return Outcome.ANSWERED if stream.recv(65536) else Outcome.CLOSED
    except ConnectionError:
        return Outcome.CLOSED


def send_all(stream: socket.socket, data: bytes) -> None:
    """Send, and don't mind if the other side has had enough before the end."""
    try:
        stream.sendall(data)
    except (ConnectionError, TimeoutError):
        return


def end_sending(stream: socket.socket) -> None:
    """Close our half of the connection, if the other side has not closed it all."""
    with suppress(OSError):
        stream.shutdown(socket.SHUT_WR)


def read_exactly(stream: socket.socket, size: int, *, patience_s: float = 10.0) -> bytes:
    deadline = time.monotonic() + patience_s
    data = b""
    while len(data) < size:
        stream.settimeout(max(deadline - time.monotonic(), 0.001))
        piece = stream.recv(size - len(data))
        if not piece:
            raise ConnectionError(f"closed after {len(data)} of {size} bytes")
        data += piece
    return data


def asks_and_is_answered(stream: socket.socket) -> None:
    """Hold one honest exchange."""
    stream.sendall(api_versions_request())
    size, correlation = struct.unpack(">ii", read_exactly(stream, 8))
    assert correlation == 7
    read_exactly(stream, size - 4)
