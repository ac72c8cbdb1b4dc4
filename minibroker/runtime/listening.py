"""Sources of client connections: a listening TCP socket, or one in memory.

Owns accepting. It must never know what happens to a connection. Listening sockets are created
before the fork and shared by accepting processes, so a port outlives the process that serves it.
Invariant: an accepted connection is returned to exactly one caller.
"""

from __future__ import annotations

import errno
import socket
from abc import ABC, abstractmethod
from random import Random
from typing import Final

import trio

from minibroker.runtime.handoff import Connection
from minibroker.runtime.stream import Address, MemoryStream, memory_stream_pair

MEMORY_BACKLOG: Final = 128
"""Connections in memory that wait to be accepted before a connecting client waits."""

_DISCONNECTED: Final = frozenset(
    {errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EHOSTDOWN, errno.EHOSTUNREACH}
)
"""The client disconnected before it was accepted, which does not affect the next one."""


class ConnectionSource(ABC):
    """A source of client connections."""

    @abstractmethod
    async def accept(self) -> Connection:
        """Wait for the next connection and return it.

        Raises ``OSError`` when descriptors or memory run out.
        """


class TcpSource(ConnectionSource):
    """A listening socket."""

    def __init__(self, listening: socket.socket) -> None:
        listening.setblocking(False)
        # A response is written at once; waiting for more data would only delay it. On Linux,
        # accepted connections inherit this option.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._listening = listening

    async def accept(self) -> Connection:
        while True:
            try:
                connection, _ = self._listening.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._listening)
                continue
            except OSError as error:
                if error.errno in _DISCONNECTED:
                    continue
                raise
            return connection


class MemorySource(ConnectionSource):
    """A source in memory, for clients in the same trio run."""

    def __init__(self, address: Address = ("127.0.0.1", 9092)) -> None:
        self.address = address
        self._connected = 0
        self._send, self._receive = trio.open_memory_channel[MemoryStream](MEMORY_BACKLOG)

    async def connect(self, host: str = "127.0.0.1") -> MemoryStream:
        """Return the client's end of a new connection from address ``host``."""
        self._connected += 1
        client, server = memory_stream_pair((host, 40_000 + self._connected), self.address)
        await self._send.send(server)
        return client

    async def accept(self) -> Connection:
        return await self._receive.receive()


class MemorySources:
    """Sources in memory with one address, one per accepting process.

    Connections are distributed at random.
    """

    def __init__(self, address: Address, parts: int, random: Random) -> None:
        self.address = address
        self.parts = [MemorySource(address) for _ in range(parts)]
        self._random = random

    async def connect(self, host: str = "127.0.0.1", part: int | None = None) -> MemoryStream:
        """Connect like ``MemorySource.connect``, to one part or to any."""
        source = self._random.choice(self.parts) if part is None else self.parts[part]
        return await source.connect(host)
