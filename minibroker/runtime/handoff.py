"""Handoffs: a channel whose messages may carry one open connection to another process.

Owns the passing of a socket (``SCM_RIGHTS`` over a Unix socket) or, in one trio run, of an
in-memory stream. It must never know which process gets which connection. Invariant: a connection
has exactly one owner, so after ``send`` the sender's descriptor is closed, even if sending failed;
in the portable variant, once the receiver has acknowledged it. Messages are pickled, which is safe
for the reason given in ``rpc``.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

import trio

from minibroker.runtime.rpc import ChannelClosed
from minibroker.runtime.stream import (
    Address,
    ByteStream,
    MemoryStream,
    SocketStream,
    socket_addresses,
)
from minibroker.runtime.system import packet_socket_type

PACKET_BYTES_MAX: Final = 16 * 1024
"""Largest message without its connection: the listener's name and addresses."""

Connection = socket.socket | MemoryStream

_T = TypeVar("_T")


class Handoff(ABC):
    """One end of an ordered two-way stream of messages that may carry a connection."""

    @abstractmethod
    async def send(self, message: object, connection: Connection | None = None) -> None:
        """Send a message and give the connection away. Raises ``ChannelClosed``."""

    @abstractmethod
    async def receive(self) -> tuple[Any, Connection | None]:
        """Return the next message and its connection. Raises ``ChannelClosed``."""

    @abstractmethod
    def close(self) -> None:
        """Close both directions; connections that were not received are closed. Idempotent."""


class _SocketHandoff(Handoff):
    """A handoff over a connected Unix socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._closed = False

    def _now(self, act: Callable[[], _T]) -> _T:
        """Use the socket once. Raises ``ChannelClosed``, or `BlockingIOError` if it must wait."""
        if self._closed:
            raise ChannelClosed("this side was closed")
        try:
            return act()
        except BlockingIOError:
            raise
        except OSError as error:
            self.close()
            raise ChannelClosed(f"the other side is gone ({error})") from None

    async def _when(
        self, ready: Callable[[socket.socket], Awaitable[None]], act: Callable[[], _T]
    ) -> _T:
        """Use the socket as soon as it is ready. Raises ``ChannelClosed``."""
        while True:
            try:
                return self._now(act)
            except BlockingIOError:
                try:
                    await ready(self._socket)
                except (trio.ClosedResourceError, ValueError, OSError):
                    raise ChannelClosed("this side was closed") from None

    async def _read(self, bytes_max: int, descriptors_max: int) -> tuple[bytes, list[int]]:
        """Wait for bytes; return them with their descriptors. Raises ``ChannelClosed``."""
        received, descriptors, _, _ = await self._when(
            trio.lowlevel.wait_readable,
            lambda: socket.recv_fds(self._socket, bytes_max, descriptors_max),
        )
        if not received:
            self.close()
            raise ChannelClosed("the other side is gone")
        return received, descriptors

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class PacketHandoff(_SocketHandoff):
    """A handoff over a connected Unix socket that preserves the boundaries of messages."""

    async def send(self, message: object, connection: Connection | None = None) -> None:
        packet = _packed(message)
        try:
            await self._when(trio.lowlevel.wait_writable, lambda: self._send(packet, connection))
        finally:
            if connection is not None:
                connection.close()

    def _send(self, packet: bytes, connection: Connection | None) -> None:
        if isinstance(connection, socket.socket):
            socket.send_fds(self._socket, [packet], [connection.fileno()])
        else:
            self._socket.send(packet)

    async def receive(self) -> tuple[Any, Connection | None]:
        packet, descriptors = await self._read(PACKET_BYTES_MAX, 1)
        connection = socket.socket(fileno=descriptors[0]) if descriptors else None
        return pickle.loads(packet), connection  # noqa: S301 - packed by this broker


def _packed(message: object) -> bytes:
    packet = pickle.dumps(message, 5)
    if len(packet) > PACKET_BYTES_MAX:
        raise ValueError(f"message of {len(packet)} bytes; the limit is {PACKET_BYTES_MAX}")
    return packet


_HEADER: Final = struct.Struct("=HB")
"""The length of the message that follows, and whether a descriptor belongs to it."""

_ACKNOWLEDGEMENT: Final = _HEADER.pack(0, 0)
"""A descriptor has been received. No message is empty."""

_READ_BYTES: Final = 64 * 1024
_DESCRIPTORS_AT_ONCE_MAX: Final = 64
"""More than one read returns: that ends with the first message that has one."""


class _Frame:
    """A message that is being sent."""

    def __init__(self, packet: bytes, connection: socket.socket | None) -> None:
        self.rest = memoryview(packet)
        self.connection = connection
        """The connection, until the first byte has been sent."""
        self.is_started = False


class StreamHandoff(_SocketHandoff):
    """A handoff over a connected stream socket: the portable variant.

    Nothing preserves the boundaries of messages, so each has a header. Descriptors arrive in order,
    each at the latest with the last byte of its message. A system may lose one that its sender
    closes before it was received, so the sender keeps it until the receiver has acknowledged it,
    which the sender learns when it receives. One task may send at a time.
    """

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._outgoing: deque[_Frame] = deque()
        self.unacknowledged: deque[socket.socket] = deque()
        """Connections that were sent, and are closed when the receiver acknowledges them."""
        self._incoming = bytearray()
        self._descriptors: deque[int] = deque()

    async def send(self, message: object, connection: Connection | None = None) -> None:
        has_descriptor = isinstance(connection, socket.socket)
        packet = _packed(message)
        frame = _Frame(
            _HEADER.pack(len(packet), has_descriptor) + packet,
            connection if isinstance(connection, socket.socket) else None,
        )
        self._outgoing.append(frame)
        try:
            await self._when(trio.lowlevel.wait_writable, self._flush)
        finally:
            if not frame.is_started:  # Otherwise the rest is sent before the next message.
                if frame in self._outgoing:
                    self._outgoing.remove(frame)
                if connection is not None:
                    connection.close()

    def _flush(self) -> None:
        """Send everything. Raises `BlockingIOError` if the rest must wait."""
        while self._outgoing:
            frame = self._outgoing[0]
            if frame.connection is None:
                count = self._socket.send(frame.rest)
            else:
                descriptor = frame.connection.fileno()
                count = socket.send_fds(self._socket, [frame.rest], [descriptor])
                self.unacknowledged.append(frame.connection)
                frame.connection = None
            frame.is_started = True
            frame.rest = frame.rest[count:]
            if not frame.rest:
                self._outgoing.popleft()

    async def receive(self) -> tuple[Any, Connection | None]:
        while True:
            for packet, has_descriptor in self._packets():
                if not packet:
                    self.unacknowledged.popleft().close()
                    continue
                connection = None
                if has_descriptor:
                    connection = socket.socket(fileno=self._descriptors.popleft())
                    self._acknowledge()
                return pickle.loads(packet), connection  # noqa: S301 - packed by this broker
            received, descriptors = await self._read(_READ_BYTES, _DESCRIPTORS_AT_ONCE_MAX)
            self._incoming += received
            self._descriptors += descriptors

    def _packets(self) -> Iterator[tuple[bytes, bool]]:
        """Take complete packets out of the received bytes; an empty one acknowledges."""
        while len(self._incoming) >= _HEADER.size:
            length, has_descriptor = _HEADER.unpack_from(self._incoming)
            end = _HEADER.size + length
            if len(self._incoming) < end:
                return
            packet = bytes(self._incoming[_HEADER.size : end])
            del self._incoming[:end]
            yield packet, bool(has_descriptor)

    def _acknowledge(self) -> None:
        self._outgoing.append(_Frame(_ACKNOWLEDGEMENT, None))
        with suppress(ChannelClosed, BlockingIOError):  # The next call raises it, or sends it.
            self._now(self._flush)

    def close(self) -> None:
        if self._closed:
            return
        super().close()
        for connection in self.unacknowledged:
            connection.close()
        for frame in self._outgoing:
            if frame.connection is not None:
                frame.connection.close()
        self._outgoing.clear()
        for descriptor in self._descriptors:
            os.close(descriptor)


def socket_handoff(sock: socket.socket) -> Handoff:
    """Return the handoff over a connected Unix socket of a `packet_socket_type`."""
    return StreamHandoff(sock) if sock.type == socket.SOCK_STREAM else PacketHandoff(sock)


class MemoryHandoff(Handoff):
    """A handoff between two tasks of one trio run."""

    def __init__(
        self,
        outgoing: trio.MemorySendChannel[tuple[bytes, Connection | None]],
        incoming: trio.MemoryReceiveChannel[tuple[bytes, Connection | None]],
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming

    async def send(self, message: object, connection: Connection | None = None) -> None:
        try:
            await self._outgoing.send((pickle.dumps(message, 5), connection))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            if connection is not None:
                connection.close()
            raise ChannelClosed("the other side is gone") from None

    async def receive(self) -> tuple[Any, Connection | None]:
        try:
            packet, connection = await self._incoming.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise ChannelClosed("the other side is gone") from None
        return pickle.loads(packet), connection  # noqa: S301 - packed by this broker

    def close(self) -> None:
        self._outgoing.close()
        while True:
            try:
                _, connection = self._incoming.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel, trio.ClosedResourceError):
                break
            if connection is not None:
                connection.close()
        self._incoming.close()


def memory_handoff_pair(capacity: int = 64) -> tuple[Handoff, Handoff]:
    """Return two connected in-memory ends."""
    there = trio.open_memory_channel[tuple[bytes, Connection | None]](capacity)
    back = trio.open_memory_channel[tuple[bytes, Connection | None]](capacity)
    return MemoryHandoff(there[0], back[1]), MemoryHandoff(back[0], there[1])


def socket_handoff_pair() -> tuple[Handoff, Handoff]:
    """Return two connected ends of a Unix socket pair."""
    here, there = socket.socketpair(socket.AF_UNIX, packet_socket_type())
    return socket_handoff(here), socket_handoff(there)


def addresses(connection: Connection) -> tuple[Address, Address]:
    """Return the addresses of a connection: the local one and the client's."""
    if isinstance(connection, socket.socket):
        return socket_addresses(connection)
    return connection.local, connection.peer


def as_stream(
    connection: Connection, local: Address | None = None, peer: Address | None = None
) -> ByteStream:
    """Return the byte stream of a received connection; known addresses are not requested again."""
    if isinstance(connection, socket.socket):
        return SocketStream(connection, local, peer)
    return connection
