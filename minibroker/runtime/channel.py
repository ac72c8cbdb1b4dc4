"""Channels: messages between two roles of a broker, whether processes or tasks of one nursery.

Owns framing and pickling. It must never know what messages mean. A channel keeps order, keeps
messages complete, and is bounded: a sender waits for a slow receiver. Invariant: the receiver gets
a copy, also in memory, so two roles never share an object; one contract suite
(``tests/contracts/test_channel.py``) tests all implementations. Messages are pickled, which is safe
because both ends are this broker's processes, connected by sockets in a directory that is closed to
other users.
"""

from __future__ import annotations

import math
import pickle
import socket
import struct
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import trio

MESSAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Largest pickled message; a cluster image of some hundred thousand partitions stays below."""

MEMORY_MESSAGES_MAX: Final = 64
"""Messages in an in-memory channel before its sender waits."""

MESSAGES_BEFORE_YIELD: Final = 64
"""Messages received in a row before other tasks of the loop run."""

_RECEIVE_BYTES: Final = 128 * 1024
_LENGTH: Final = struct.Struct("<I")


class ChannelClosed(Exception):
    """The other side has ended, or this side was closed; no messages can be sent or received."""


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """Traffic of one end of a channel, and the number of waiting senders."""

    sent: int
    received: int
    waiting: int


class Channel(ABC):
    """One end of an ordered, bounded, two-way stream of picklable messages."""

    crosses_processes: ClassVar[bool]
    """Whether messages may arrive while this task does not yield, from another process."""

    @abstractmethod
    async def send(self, message: object) -> None:
        """Send a message; wait while the receiver is slow. Raises ``ChannelClosed``.

        Returns without yielding to other tasks if the message fits at once.
        """

    @abstractmethod
    async def receive(self) -> Any:
        """Return the next message. Raises ``ChannelClosed`` when the other side has ended."""

    @abstractmethod
    def receive_nowait(self) -> Any:
        """Return the next message if there is one. Raises ``trio.WouldBlock`` or ``ChannelClosed``.

        While another task waits in ``receive``, receive until ``trio.WouldBlock``: the task is not
        woken for a message that is left.
        """

    @abstractmethod
    def close(self) -> None:
        """Close both directions; messages not received yet are lost. Idempotent."""

    @abstractmethod
    def statistics(self) -> ChannelStatistics:
        """Return the traffic of this end."""


class SocketChannel(Channel):
    """A channel over a connected Unix stream socket: 4 bytes of length, then a pickle."""

    crosses_processes = True

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._send_lock = trio.Lock()
        self._inbox: deque[Any] = deque()
        self._partial = bytearray()
        self._received_in_a_row = 0
        self._drained = True
        self._sent = 0
        self._received = 0
        self._closed = False

    async def send(self, message: object) -> None:
        body = pickle.dumps(message, 5)
        if len(body) > MESSAGE_BYTES_MAX:
            raise ValueError(f"message of {len(body)} bytes; the limit is {MESSAGE_BYTES_MAX}")
        frame = _LENGTH.pack(len(body)) + body
        if self._send_lock.locked():
            async with self._send_lock:
                await self._send_rest(memoryview(frame))
        else:
            sent = self._try_send(frame)
            if sent < len(frame):
                # The lock is free, but acquiring it is a cancellation point.
                with trio.CancelScope(shield=True):
                    async with self._send_lock:
                        await self._send_rest(memoryview(frame)[sent:])
        self._sent += 1

    def _try_send(self, data: bytes | memoryview) -> int:
        if self._closed:
            raise ChannelClosed("this side was closed")
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:
            self.close()
            raise ChannelClosed(f"the other side is gone ({error})") from None

    async def _send_rest(self, rest: memoryview) -> None:
        # A partial frame would corrupt all later ones, so a started frame is always completed; the
        # receiver is a process of this broker, which either reads or dies.
        with trio.CancelScope(shield=True):
            while rest:
                sent = self._try_send(rest)
                rest = rest[sent:]
                if rest:
                    await self._writable()

    async def _writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self._socket)
        except (trio.ClosedResourceError, ValueError, OSError):
            raise ChannelClosed("this side was closed") from None

    async def receive(self) -> Any:
        self._received_in_a_row += 1
        if self._received_in_a_row > MESSAGES_BEFORE_YIELD:
            self._received_in_a_row = 0
            await trio.lowlevel.checkpoint()
        while not self._inbox:
            await self._fill()
        self._received += 1
        return self._inbox.popleft()

    def receive_nowait(self) -> Any:
        if not self._inbox and not self._fill_nowait():
            raise trio.WouldBlock
        if not self._inbox:
            raise trio.WouldBlock  # A part of a message has arrived.
        self._received += 1
        return self._inbox.popleft()

    async def _fill(self) -> None:
        if self._drained:
            # The last attempt took everything, so another one would most likely fail.
            await self._readable()
        self._fill_nowait()

    def _fill_nowait(self) -> bool:
        """Read what the kernel has; return whether there was anything."""
        if self._closed:
            raise ChannelClosed("this side was closed")
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            self._drained = True
            return False
        except OSError as error:
            self.close()
            raise ChannelClosed(f"the other side is gone ({error})") from None
        if not data:
            self.close()
            raise ChannelClosed("the other side is gone")
        self._drained = len(data) < _RECEIVE_BYTES
        if self._partial:
            self._partial += data
            taken = self._unpack(self._partial)
            del self._partial[:taken]
        else:
            taken = self._unpack(data)
            if taken < len(data):
                self._partial += data[taken:]
        return True

    async def _readable(self) -> None:
        self._received_in_a_row = 0
        try:
            await trio.lowlevel.wait_readable(self._socket)
        except (trio.ClosedResourceError, ValueError, OSError):
            raise ChannelClosed("this side was closed") from None

    def _unpack(self, data: bytes | bytearray) -> int:
        """Move all complete messages of ``data`` to the inbox; return the bytes used."""
        start = 0
        with memoryview(data) as view:
            while len(data) - start >= _LENGTH.size:
                end = start + _LENGTH.size + _LENGTH.unpack_from(data, start)[0]
                if end > len(data):
                    break
                with view[start + _LENGTH.size : end] as body:
                    self._inbox.append(pickle.loads(body))  # noqa: S301 - packed by this broker
                start = end
        return start

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def statistics(self) -> ChannelStatistics:
        waiting = self._send_lock.statistics()
        return ChannelStatistics(
            self._sent, self._received, waiting.tasks_waiting + int(waiting.locked)
        )


class MemoryChannel(Channel):
    """A channel between two tasks of one trio run; messages are pickled here too."""

    crosses_processes = False

    def __init__(
        self,
        outgoing: trio.MemorySendChannel[bytes],
        incoming: trio.MemoryReceiveChannel[bytes],
    ) -> None:
        self._outgoing = outgoing
        self._incoming = incoming
        self._sent = 0
        self._received = 0

    async def send(self, message: object) -> None:
        body = pickle.dumps(message, 5)
        try:
            await self._outgoing.send(body)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise ChannelClosed("the other side is gone") from None
        self._sent += 1

    async def receive(self) -> Any:
        try:
            body = await self._incoming.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise ChannelClosed("the other side is gone") from None
        self._received += 1
        return pickle.loads(body)  # noqa: S301 - packed by this broker

    def receive_nowait(self) -> Any:
        try:
            body = self._incoming.receive_nowait()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            raise ChannelClosed("the other side is gone") from None
        self._received += 1
        return pickle.loads(body)  # noqa: S301 - packed by this broker

    def close(self) -> None:
        self._outgoing.close()
        self._incoming.close()

    def statistics(self) -> ChannelStatistics:
        waiting = self._outgoing.statistics().tasks_waiting_send
        return ChannelStatistics(self._sent, self._received, waiting)


def memory_channel_pair(capacity: float = MEMORY_MESSAGES_MAX) -> tuple[Channel, Channel]:
    """Return two connected in-memory ends; ``capacity`` messages fit in each direction."""
    if capacity != math.inf and capacity < 1:
        raise ValueError(f"capacity {capacity}: a channel holds at least one message")
    here_to_there = trio.open_memory_channel[bytes](capacity)
    there_to_here = trio.open_memory_channel[bytes](capacity)
    return (
        MemoryChannel(here_to_there[0], there_to_here[1]),
        MemoryChannel(there_to_here[0], here_to_there[1]),
    )


def socket_channel_pair() -> tuple[Channel, Channel]:
    """Return two connected ends of a Unix socket pair."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return SocketChannel(here), SocketChannel(there)
