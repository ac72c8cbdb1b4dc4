"""Addresses of roles: a role listens under its name and connects to others by theirs.

Owns names and listening sockets. It must never know messages. Unix sockets are created before the
fork and held by the supervisor, so a name can be connected to while its process restarts: the
connection waits in the backlog. Invariant: only the broker's user can access the directory of the
sockets, because channels carry pickles.
"""

from __future__ import annotations

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final, Generic, TypeVar

import trio

from minibroker.runtime.channel import (
    Channel,
    ChannelClosed,
    SocketChannel,
    memory_channel_pair,
)
from minibroker.runtime.handoff import Handoff, memory_handoff_pair, socket_handoff
from minibroker.runtime.system import packet_socket_type

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
