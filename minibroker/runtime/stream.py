"""Byte streams of client connections: a TCP socket or two ends in memory.

Owns reading into the caller's memory, writing, and sending a piece of a file. It must never know
what the bytes mean. Every call tries at once and waits only if the kernel says so. Invariant: a
stream that failed stays failed, and gives the reason in ``StreamClosed``. One contract suite
(``tests/contracts/test_stream.py``) tests both implementations.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import sys
import termios
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

from minibroker.runtime.system import send_from_file, send_more

MEMORY_STREAM_BYTES_MAX: Final = 64 * 1024
"""Bytes that one direction of an in-memory stream holds before its sender waits."""

LOW_WATER_FROM_BYTES: Final = 64 * 1024
"""Remaining bytes from which a receiver waits for more than the next few bytes."""

LOW_WATER_BYTES_MAX: Final = 512 * 1024
"""The most bytes that the kernel collects before it wakes the receiver."""

_INT_BYTES: Final = 4

_RESET: Final = struct.pack("ii", 1, 0)
"""``SO_LINGER`` on and zero seconds: a close sends a reset."""

_FILE_ERRORS: Final = frozenset({errno.EIO, errno.ESTALE})
"""Errors of sending a file that come from the file; all others come from the socket."""

Address = tuple[str, int]


class StreamClosed(Exception):
    """The peer disconnected during a transfer, or this side was closed."""


class ByteStream(ABC):
    """One end of a two-way stream of bytes."""

    peer: Address
    local: Address
    waits: int
    """Number of calls so far that had to wait."""
    before_waiting: Callable[[], object]
    """Called before each wait, and so before any other task runs."""
    _filled = 0
    """Bytes that the current ``receive_exactly`` has read so far."""

    @abstractmethod
    async def receive_into(self, view: memoryview) -> int:
        """Fill the start of ``view``; return the number of bytes, 0 at the end of the stream."""

    async def receive_exactly(self, view: memoryview) -> int:
        """Fill ``view``; return its length, or less if the stream ends before."""
        self._filled = filled = 0
        while filled < len(view):
            count = await self.receive_into(view[filled:])
            if count == 0:
                break
            self._filled = filled = filled + count
        return filled

    def arrived(self) -> int:
        """Bytes that have arrived for the current ``receive_exactly``, read or not."""
        return self._filled + self.unread()

    @abstractmethod
    def unread(self) -> int:
        """Return at least how many bytes have arrived and were not read yet."""

    @abstractmethod
    async def send_all(self, data: bytes | memoryview, *, more: bool = False) -> None:
        """Send all of ``data``; with ``more`` the kernel may delay it and add what follows."""

    @abstractmethod
    def send_now(self, data: bytes) -> int:
        """Send what fits without waiting; return the number of bytes."""

    @abstractmethod
    async def send_file(self, descriptor: int, position: int, length: int) -> None:
        """Send ``length`` bytes of a file.

        Raises ``EOFError`` if the file is shorter, and ``OSError`` if it cannot be read: part of
        the bytes may have been sent.
        """

    @abstractmethod
    def close(self) -> None:
        """Close both directions; waiting calls raise ``StreamClosed``. Idempotent."""

    @abstractmethod
    def reset_on_close(self) -> None:
        """Let `close` send a TCP reset if the stream is a socket; the stream stays open."""


def _do_nothing() -> None:
    pass


class SocketStream(ByteStream):
    """A connected, non-blocking TCP socket."""

    def __init__(
        self, sock: socket.socket, local: Address | None = None, peer: Address | None = None
    ) -> None:
        """Addresses that are not given are requested from the socket."""
        sock.setblocking(False)
        self._socket = sock
        self.descriptor: Final = sock.fileno()
        """Descriptor that is readable when bytes have arrived."""
        self._closed = False
        self._waiting = 0
        self.waits = 0
        self.before_waiting = _do_nothing
        if local is None or peer is None:
            local, peer = socket_addresses(sock)
        self.local = local
        self.peer = peer

    async def receive_into(self, view: memoryview) -> int:
        while True:
            try:
                return self._socket.recv_into(view)
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_readable)
            except OSError as error:
                raise StreamClosed(_describe(error)) from None

    async def receive_exactly(self, view: memoryview) -> int:
        # A large body arrives in small pieces. Waking for each would cost more than copying, so the
        # kernel waits for more bytes before it wakes this process.
        low_water = 1
        self._filled = filled = 0
        try:
            while filled < len(view):
                expected = min(len(view) - filled, LOW_WATER_BYTES_MAX)
                if expected >= LOW_WATER_FROM_BYTES and expected != low_water:
                    self._set_low_water(expected)
                    low_water = expected
                elif expected < LOW_WATER_FROM_BYTES and low_water > 1:
                    self._set_low_water(1)
                    low_water = 1
                count = await self.receive_into(view[filled:])
                if count == 0:
                    break
                self._filled = filled = filled + count
        finally:
            if low_water > 1 and not self._closed:
                self._set_low_water(1)
        return filled

    def unread(self) -> int:
        if self._closed:
            return 0
        count = fcntl.ioctl(self._socket, termios.FIONREAD, bytes(_INT_BYTES))
        return int.from_bytes(count, sys.byteorder)

    def _set_low_water(self, count: int) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    async def send_all(self, data: bytes | memoryview, *, more: bool = False) -> None:
        flags = send_more() if more else 0
        rest = data
        while True:
            try:
                sent = self._socket.send(rest, flags)
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_writable)
                continue
            except OSError as error:
                raise StreamClosed(_describe(error)) from None
            if sent == len(rest):
                return
            rest = memoryview(rest)[sent:]

    def is_readable(self) -> bool:
        """Whether bytes, an error or the end of the stream can be received without waiting."""
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def receive_now(self, view: memoryview) -> int | None:
        """Fill the start of ``view`` as ``receive_into``; None if nothing has arrived."""
        try:
            return self._socket.recv_into(view)
        except BlockingIOError:
            return None
        except OSError as error:
            raise StreamClosed(_describe(error)) from None

    def send_now(self, data: bytes) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise StreamClosed(_describe(error)) from None

    async def send_file(self, descriptor: int, position: int, length: int) -> None:
        end = position + length
        while position < end:
            try:
                sent = send_from_file(self._socket, descriptor, position, end - position)
            except BlockingIOError:
                await self._wait(trio.lowlevel.wait_writable)
                continue
            except OSError as error:
                if error.errno in _FILE_ERRORS:
                    raise
                raise StreamClosed(_describe(error)) from None
            if sent == 0:
                raise EOFError(f"the file ends {end - position} bytes too early")
            position += sent

    async def _wait(self, condition: Callable[[socket.socket], Awaitable[None]]) -> None:
        self._waiting += 1
        self.waits += 1
        self.before_waiting()
        try:
            await condition(self._socket)
        except (trio.ClosedResourceError, ValueError, OSError):
            raise StreamClosed("closed on this side") from None
        finally:
            self._waiting -= 1

    def reset_on_close(self) -> None:
        if not self._closed:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._waiting:
                trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def socket_addresses(sock: socket.socket) -> tuple[Address, Address]:
    """Return the local address and the peer's."""
    return _address(sock.getsockname), _address(sock.getpeername)


def _address(getter: Callable[[], Any]) -> Address:
    try:
        host, port = getter()[:2]
    except (OSError, ValueError):
        return ("", 0)  # The peer has disconnected; reading will report it.
    return (host, port)


def _describe(error: OSError) -> str:
    return error.strerror or type(error).__name__


class _Pipe:
    """One direction of an in-memory stream: a bounded buffer and the tasks that wait for it."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.ended = False
        self.changed = trio.Event()

    def notify(self) -> None:
        self.changed.set()
        self.changed = trio.Event()


class MemoryStream(ByteStream):
    """One end of a stream between two tasks of one trio run."""

    def __init__(self, outgoing: _Pipe, incoming: _Pipe, local: Address, peer: Address) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._closed = False
        self.waits = 0
        self.before_waiting = _do_nothing
        self.local = local
        self.peer = peer

    async def receive_into(self, view: memoryview) -> int:
        pipe = self._incoming
        while not pipe.buffer and not pipe.ended and not self._closed:
            self.waits += 1
            self.before_waiting()
            await pipe.changed.wait()
        if self._closed:
            raise StreamClosed("closed on this side")
        count = min(len(view), len(pipe.buffer))
        view[:count] = pipe.buffer[:count]
        del pipe.buffer[:count]
        pipe.notify()
        return count

    def unread(self) -> int:
        return len(self._incoming.buffer)

    async def send_all(self, data: bytes | memoryview, *, more: bool = False) -> None:
        _ = more  # Nothing is held back in memory.
        pipe = self._outgoing
        rest = memoryview(data)
        while rest:
            while len(pipe.buffer) >= MEMORY_STREAM_BYTES_MAX and not pipe.ended:
                self.waits += 1
                self.before_waiting()
                await pipe.changed.wait()
            if pipe.ended:
                raise StreamClosed("closed on this side" if self._closed else "Broken pipe")
            room = MEMORY_STREAM_BYTES_MAX - len(pipe.buffer)
            pipe.buffer += rest[:room]
            rest = rest[room:]
            pipe.notify()

    def send_now(self, data: bytes) -> int:
        pipe = self._outgoing
        if pipe.ended:
            raise StreamClosed("closed on this side" if self._closed else "Broken pipe")
        room = max(0, MEMORY_STREAM_BYTES_MAX - len(pipe.buffer))
        pipe.buffer += data[:room]
        pipe.notify()
        return min(room, len(data))

    async def send_file(self, descriptor: int, position: int, length: int) -> None:
        data = os.pread(descriptor, length, position)
        await self.send_all(data)
        if len(data) < length:
            raise EOFError(f"the file ends {length - len(data)} bytes too early")

    def reset_on_close(self) -> None:
        """There is no reset in memory."""

    def close(self) -> None:
        self._closed = True
        for pipe in (self._outgoing, self._incoming):
            pipe.ended = True
            pipe.notify()


def memory_stream_pair(
    near: Address = ("127.0.0.1", 0), far: Address = ("127.0.0.1", 0)
) -> tuple[MemoryStream, MemoryStream]:
    """Return two connected in-memory ends; the local address of the first is ``near``."""
    there, back = _Pipe(), _Pipe()
    return MemoryStream(there, back, near, far), MemoryStream(back, there, far, near)
