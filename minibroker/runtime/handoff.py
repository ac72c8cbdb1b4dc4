"""Handoffs: a channel whose messages may carry one open connection to another process.

Owns the passing of a socket (``SCM_RIGHTS`` over a sequenced-packet Unix socket) or, in one trio
run, of an in-memory stream. It must never know which process gets which connection. Invariant: a
connection has exactly one owner, so after ``send`` the sender's descriptor is closed, even if
sending failed. Messages are pickled, which is safe for the reason given in ``channel``.
"""

from __future__ import annotations

import pickle
import socket
from abc import ABC, abstractmethod
from typing import Any, Final

import trio

from minibroker.runtime.channel import ChannelClosed
from minibroker.runtime.stream import (
    Address,
    ByteStream,
    MemoryStream,
    SocketStream,
    socket_addresses,
)
from minibroker.runtime.system import PACKET_SOCKET

PACKET_BYTES_MAX: Final = 16 * 1024
"""Largest message without its connection: the listener's name and addresses."""

Connection = socket.socket | MemoryStream


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


class SocketHandoff(Handoff):
    """A handoff over a connected Unix socket of type `PACKET_SOCKET`."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._closed = False

    async def send(self, message: object, connection: Connection | None = None) -> None:
        packet = pickle.dumps(message, 5)
        if len(packet) > PACKET_BYTES_MAX:
            raise ValueError(f"message of {len(packet)} bytes; the limit is {PACKET_BYTES_MAX}")
        try:
            while not self._try_send(packet, connection):
                try:
                    await trio.lowlevel.wait_writable(self._socket)
                except (trio.ClosedResourceError, ValueError, OSError):
                    raise ChannelClosed("this side was closed") from None
        finally:
            if connection is not None:
                connection.close()

    def _try_send(self, packet: bytes, connection: Connection | None) -> bool:
        if self._closed:
            raise ChannelClosed("this side was closed")
        try:
            if isinstance(connection, socket.socket):
                socket.send_fds(self._socket, [packet], [connection.fileno()])
            else:
                self._socket.send(packet)
        except BlockingIOError:
            return False
        except OSError as error:
            self.close()
            raise ChannelClosed(f"the other side is gone ({error})") from None
        return True

    async def receive(self) -> tuple[Any, Connection | None]:
        while True:
            if self._closed:
                raise ChannelClosed("this side was closed")
            try:
                packet, descriptors, _, _ = socket.recv_fds(self._socket, PACKET_BYTES_MAX, 1)
            except BlockingIOError:
                try:
                    await trio.lowlevel.wait_readable(self._socket)
                except (trio.ClosedResourceError, ValueError, OSError):
                    raise ChannelClosed("this side was closed") from None
                continue
            except OSError as error:
                self.close()
                raise ChannelClosed(f"the other side is gone ({error})") from None
            if not packet:
                self.close()
                raise ChannelClosed("the other side is gone")
            connection = socket.socket(fileno=descriptors[0]) if descriptors else None
            return pickle.loads(packet), connection  # noqa: S301 - packed by this broker

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


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
    here, there = socket.socketpair(socket.AF_UNIX, PACKET_SOCKET)
    return SocketHandoff(here), SocketHandoff(there)


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
