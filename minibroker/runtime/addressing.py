"""Addresses of roles: a role listens under its name and connects to others by theirs.

Owns names and listening sockets. It must never know messages. Unix sockets are created before the
fork and held by the supervisor, so a name can be connected to while its process restarts: the
connection waits in the backlog. Invariant: only the broker's user can access the directory of the
sockets, because channels carry pickles.
"""

from __future__ import annotations

import errno
import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from random import Random
from typing import Final, Generic, TypeVar

import trio

from minibroker.runtime.handoff import Connection, Handoff, memory_handoff_pair, socket_handoff
from minibroker.runtime.rpc import (
    Channel,
    ChannelClosed,
    SocketChannel,
    memory_channel_pair,
)
from minibroker.runtime.stream import Address, MemoryStream, memory_stream_pair
from minibroker.runtime.system import packet_socket_type

# -------------------------- Sources of client connections: a listening TCP socket, or one in memory
# Owns accepting. It must never know what happens to a connection. Listening sockets are created
# before the fork and shared by accepting processes, so a port outlives the process that serves it.
# Invariant: an accepted connection is returned to exactly one caller.


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


BACKLOG: Final = 128
"""Connections to a name that wait to be accepted; further ones wait to connect."""

Endpoint = TypeVar("Endpoint")


class ChannelListener(Generic[Endpoint]):
    """Accepts the connections to one name."""

    def __init__(self, accept: Callable[[], Awaitable[Endpoint]]) -> None:
        self._accept = accept

    async def accept(self) -> Endpoint:
        """Wait for the next connection and return it."""
        return await self._accept()


class Transport(ABC):
    """Opens channels and handoffs between roles by name."""

    @abstractmethod
    def listen(self, name: str) -> ChannelListener[Channel]:
        """Return the listener for channels to a name."""

    @abstractmethod
    def listen_handoff(self, name: str) -> ChannelListener[Handoff]:
        """Return the listener for handoffs to a name."""

    @abstractmethod
    async def connect(self, name: str) -> Channel:
        """Return a channel to the role with this name; wait until it listens."""

    @abstractmethod
    async def connect_handoff(self, name: str) -> Handoff:
        """Return a handoff to the role with this name; wait until it listens."""


class SocketPathError(Exception):
    """A socket cannot have this path, e.g. because it is too long; the message says what to do."""


class UnixTransport(Transport):
    """A transport over Unix sockets in a private directory; create it before the fork."""

    def __init__(self, directory: Path, channels: Iterable[str], handoffs: Iterable[str]) -> None:
        self._directory = directory
        self._listening: dict[str, socket.socket] = {}
        if directory.stat().st_mode & 0o077:
            raise PermissionError(f"{directory} must be accessible only to its owner (mode 0700)")
        for name in channels:
            self._listening[name] = self._bind(name, socket.SOCK_STREAM)
        for name in handoffs:
            self._listening[name] = self._bind(name, packet_socket_type())

    def _bind(self, name: str, kind: int) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, kind)
        path = os.fspath(self._directory / name)
        try:
            sock.bind(path)
        except OSError as error:
            sock.close()
            raise SocketPathError(f"{path}: {error}; set TMPDIR to a short path") from None
        sock.listen(BACKLOG)
        sock.setblocking(False)
        return sock

    def listen(self, name: str) -> ChannelListener[Channel]:
        async def accept() -> Channel:
            return SocketChannel(await _accept(self._listening[name]))

        return ChannelListener(accept)

    def listen_handoff(self, name: str) -> ChannelListener[Handoff]:
        async def accept() -> Handoff:
            return socket_handoff(await _accept(self._listening[name]))

        return ChannelListener(accept)

    async def connect(self, name: str) -> Channel:
        return SocketChannel(await self._connect(name, socket.SOCK_STREAM))

    async def connect_handoff(self, name: str) -> Handoff:
        return socket_handoff(await self._connect(name, packet_socket_type()))

    async def _connect(self, name: str, kind: int) -> socket.socket:
        sock = trio.socket.socket(socket.AF_UNIX, kind)
        try:
            await sock.connect(os.fspath(self._directory / name))
        except OSError as error:
            sock.close()
            raise ChannelClosed(f"{name} can't be connected to: {error}") from None
        return socket.socket(fileno=sock.detach())

    def close(self) -> None:
        """Close the listening sockets and remove their files; called by the supervisor."""
        for name, sock in self._listening.items():
            sock.close()
            (self._directory / name).unlink(missing_ok=True)


async def _accept(listening: socket.socket) -> socket.socket:
    while True:
        try:
            return listening.accept()[0]
        except BlockingIOError:
            await trio.lowlevel.wait_readable(listening)


class MemoryTransport(Transport):
    """A transport in memory, within one trio run."""

    def __init__(self) -> None:
        self._channels: dict[str, _Queue[Channel]] = {}
        self._handoffs: dict[str, _Queue[Handoff]] = {}

    def listen(self, name: str) -> ChannelListener[Channel]:
        return ChannelListener(self._channels.setdefault(name, _Queue()).receive.receive)

    def listen_handoff(self, name: str) -> ChannelListener[Handoff]:
        return ChannelListener(self._handoffs.setdefault(name, _Queue()).receive.receive)

    async def connect(self, name: str) -> Channel:
        here, there = memory_channel_pair()
        await self._channels.setdefault(name, _Queue()).send.send(there)
        return here

    async def connect_handoff(self, name: str) -> Handoff:
        here, there = memory_handoff_pair()
        await self._handoffs.setdefault(name, _Queue()).send.send(there)
        return here


class _Queue(Generic[Endpoint]):
    """Connections to one name that were not accepted yet."""

    def __init__(self) -> None:
        self.send: trio.MemorySendChannel[Endpoint]
        self.receive: trio.MemoryReceiveChannel[Endpoint]
        self.send, self.receive = trio.open_memory_channel(BACKLOG)
