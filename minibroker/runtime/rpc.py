"""Requests over a channel, and links that survive the restart of a peer.

Owns the numbers of requests and the tasks that wait for answers. It must never know the content of
requests. A request is answered exactly once: with the answer, with ``PeerFailed`` if the handler
failed, or with ``PeerLost`` if the peer has disconnected. Invariant: no task waits for an answer
that cannot arrive. ``Link`` reconnects when its peer restarts; requests wait until then.

If both sides send requests, handlers must return awaitables, which run as tasks: if the readers of
both sides waited to send, neither would read.
"""

from __future__ import annotations

import inspect
import logging
import math
import pickle
import socket
import struct
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import trio

from minibroker.runtime.arena import StaleReferenceError

# ------ Channels: messages between two roles of a broker, whether processes or tasks of one nursery
# Owns framing and pickling. It must never know what messages mean. A channel keeps order, keeps
# messages complete, and is bounded: a sender waits for a slow receiver. Invariant: the receiver
# gets a copy, also in memory, so two roles never share an object; one contract suite
# (``tests/contracts/test_channel.py``) tests all implementations. Messages are pickled, which is
# safe because both ends are this broker's processes, connected by sockets in a directory that is
# closed to other users.


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


POLL_NS: Final = 150_000
"""How long to poll for an answer before the task sleeps.

Waking a process on an idle core costs more than most requests; most answers arrive in time.
"""

REQUESTS_MAX: Final = 500
"""Requests in flight from one side; further ones wait to be sent."""

WAITING_REQUESTS_MAX: Final = 100_000
"""Requests in flight whose handlers may wait; they do not count for the limit above.

A client connection has at most one, so this limit is never reached.
"""

_REQUEST: Final = 0
_RESPONSE: Final = 1
_FAILED: Final = 2
_CANCEL: Final = 3

Handler = Callable[[Any], Any]
"""Takes a request; returns the answer, or an awaitable of it, which runs as a task."""

_log = logging.getLogger(__name__)


class PeerLost(Exception):
    """The peer died before it answered; whether it executed the request is unknown."""


class PeerFailed(Exception):
    """The peer's handler raised an exception, which the text describes; the peer still runs."""


class _Wait:
    """A task that waits for several answers, and is woken once, by the last one."""

    __slots__ = ("missing", "task")

    def __init__(self, missing: int) -> None:
        self.missing = missing
        self.task: trio.lowlevel.Task | None = None

    def answered(self) -> None:
        self.missing -= 1
        if self.missing <= 0 and self.task is not None:
            trio.lowlevel.reschedule(self.task)
            self.task = None

    async def wait(self) -> None:
        """Wait until no answer is missing; after a cancellation, a late answer wakes no task."""
        if self.missing > 0:
            self.task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def _abort(self, _raise_cancel: Any) -> trio.lowlevel.Abort:
        self.task = None
        return trio.lowlevel.Abort.SUCCEEDED


class _PendingRequest:
    """A request in flight: its number, the waiting task, and later the answer."""

    __slots__ = ("answer", "answered", "failed", "limit", "number", "wait")

    def __init__(self, number: int, wait: _Wait, limit: trio.Semaphore | None = None) -> None:
        self.number = number
        self.wait = wait
        self.limit = limit
        self.answered = False
        self.answer: Any = None
        self.failed: Exception | None = None

    def complete(self, answer: Any, failed: Exception | None = None) -> None:
        self.answered = True
        self.answer = answer
        self.failed = failed
        self.wait.answered()

    def result(self) -> Any:
        if self.failed is not None:
            raise self.failed
        return self.answer


def _reject_request(payload: Any) -> Any:
    raise TypeError(f"this side handles no requests, got {type(payload).__name__}")


def _do_nothing() -> None:
    pass


def _ignore_polling(spent_ns: int) -> None:
    del spent_ns


class RpcConnection:
    """One side of a channel over which both sides may send requests; ``run`` must be running."""

    def __init__(
        self,
        channel: Channel,
        on_request: Handler = _reject_request,
        *,
        requests_max: int = REQUESTS_MAX,
        on_polled: Callable[[int], None] = _ignore_polling,
    ) -> None:
        self._channel = channel
        self._on_request = on_request
        self._on_polled = on_polled
        self._request_limit = trio.Semaphore(requests_max, max_value=requests_max)
        self._waiting_request_limit = trio.Semaphore(
            WAITING_REQUESTS_MAX, max_value=WAITING_REQUESTS_MAX
        )
        self._number = 0
        self._pending: dict[int, _PendingRequest] = {}
        self._handler_scopes: dict[int, trio.CancelScope] = {}
        self.is_closed = False

    async def request(
        self,
        payload: object,
        *,
        may_wait: bool = False,
        poll: bool = False,
        on_sent: Callable[[], None] = _do_nothing,
    ) -> Any:
        """Return the peer's answer. Raises ``PeerLost`` or ``PeerFailed``.

        With ``may_wait`` the handler may wait for long, and the request does not count for
        ``requests_max``.

        If the caller is cancelled, the peer's handler is cancelled too. With ``poll`` the task
        polls for the answer without sleeping, for ``POLL_NS`` at most; use it only if the peer
        sends no requests and this process has no other work. ``on_sent`` is called when the
        request has been sent.
        """
        wait = _Wait(1)
        pending = await self._send_request(payload, wait, may_wait=may_wait)
        try:
            on_sent()
            if poll and self._channel.crosses_processes:
                self._poll(pending)
            await wait.wait()
        except trio.Cancelled:
            await self._cancel(pending)
            raise
        finally:
            self._remove(pending)
        return pending.result()

    async def _send_request(
        self, payload: object, wait: _Wait, *, may_wait: bool
    ) -> _PendingRequest:
        """Send a request; a failure to send becomes its result."""
        limit = self._waiting_request_limit if may_wait else self._request_limit
        try:
            limit.acquire_nowait()
        except trio.WouldBlock:
            await limit.acquire()
        self._number += 1
        pending = _PendingRequest(self._number, wait, limit)
        self._pending[pending.number] = pending
        try:
            if self.is_closed:
                pending.complete(None, PeerLost("the connection is closed"))
            else:
                await self._channel.send((_REQUEST, pending.number, payload))
        except ChannelClosed as closed:
            self.is_closed = True
            if not pending.answered:
                pending.complete(None, PeerLost(str(closed)))
        except BaseException:
            self._remove(pending)
            raise
        return pending

    def _poll(self, pending: _PendingRequest) -> None:
        assert self._on_request is _reject_request  # Requests are not handled while polling.
        started_ns = time.perf_counter_ns()
        spent_ns = 0
        with suppress(ChannelClosed):  # ``run`` notices by itself.
            while not (pending.answered or spent_ns > POLL_NS):
                self._receive_available()
                spent_ns = time.perf_counter_ns() - started_ns
        self._on_polled(spent_ns)

    def _receive_available(self) -> None:
        with suppress(trio.WouldBlock):
            while True:
                self._complete(*self._channel.receive_nowait())

    def _complete(self, kind: int, number: int, payload: Any) -> None:
        pending = self._pending.get(number)
        if pending is not None and not pending.answered:
            pending.complete(payload, PeerFailed(payload) if kind == _FAILED else None)

    def _remove(self, pending: _PendingRequest) -> None:
        del self._pending[pending.number]
        assert pending.limit is not None
        pending.limit.release()

    async def _cancel(self, pending: _PendingRequest) -> None:
        if not pending.answered:
            # If the peer has disconnected, there is nothing to cancel.
            with trio.CancelScope(shield=True), suppress(ChannelClosed):
                await self._channel.send((_CANCEL, pending.number, None))

    async def run(self) -> None:
        """Receive until the channel closes; then all requests in flight fail with ``PeerLost``."""
        try:
            async with trio.open_nursery() as nursery:
                try:
                    while True:
                        await self._handle(nursery, await self._channel.receive())
                except ChannelClosed:
                    nursery.cancel_scope.cancel()
        finally:
            self.is_closed = True
            self._channel.close()
            for pending in self._pending.values():
                if not pending.answered:
                    pending.complete(None, PeerLost("the peer has disconnected"))

    async def _handle(self, nursery: trio.Nursery, message: tuple[int, int, Any]) -> None:
        kind, number, payload = message
        if kind == _REQUEST:
            await self._handle_request(nursery, number, payload)
        elif kind == _CANCEL:
            if number in self._handler_scopes:
                self._handler_scopes[number].cancel()
        else:
            self._complete(kind, number, payload)

    async def _handle_request(self, nursery: trio.Nursery, number: int, payload: Any) -> None:
        try:
            answer = self._on_request(payload)
            if not inspect.isawaitable(answer):
                await self._channel.send((_RESPONSE, number, answer))
                return
        except ChannelClosed:
            raise
        except Exception as error:  # noqa: BLE001 - reported and logged
            await self._send_failure(number, error)
            return
        nursery.start_soon(self._finish_request, number, answer)

    async def _finish_request(self, number: int, answer: Awaitable[Any]) -> None:
        with trio.CancelScope() as scope:
            self._handler_scopes[number] = scope
            try:
                result = await answer
                await self._channel.send((_RESPONSE, number, result))
            except ChannelClosed:
                pass  # ``run`` notices by itself.
            except Exception as error:  # noqa: BLE001 - reported and logged
                await self._send_failure(number, error)
            finally:
                del self._handler_scopes[number]

    async def _send_failure(self, number: int, error: Exception) -> None:
        # After the death of the requesting process its memory may be reused, which is not an error
        # of the handler; while that process is running, it is.
        is_expected = isinstance(error, StaleReferenceError)
        if not is_expected:
            _log.exception("a request handler failed", exc_info=error)
        with suppress(ChannelClosed):  # ``run`` notices by itself.
            await self._channel.send((_FAILED, number, f"{type(error).__name__}: {error}"))
            if is_expected:
                _log.exception("a request handler failed", exc_info=error)

    def close(self) -> None:
        self._channel.close()

    def statistics(self) -> ChannelStatistics:
        return self._channel.statistics()


class Link:
    """A connection to a peer that may restart; ``run`` must be running.

    ``connect`` opens a channel and waits until the peer listens. ``register`` sends the first
    requests, which register this process; if the peer dies meanwhile, the link reconnects.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Channel]],
        register: Callable[[RpcConnection], Awaitable[None]],
        on_request: Handler = _reject_request,
        *,
        requests_max: int = REQUESTS_MAX,
        on_polled: Callable[[int], None] = _ignore_polling,
    ) -> None:
        """``on_polled`` is called with the nanoseconds spent polling for an answer."""
        self._connect = connect
        self._register = register
        self._on_request = on_request
        self._requests_max = requests_max
        self._on_polled = on_polled
        self._connection: RpcConnection | None = None
        self._connected = trio.Event()
        self._closed = False

    async def request(
        self,
        payload: object,
        *,
        may_wait: bool = False,
        poll: bool = False,
        on_sent: Callable[[], None] = _do_nothing,
    ) -> Any:
        """Send a request like ``RpcConnection.request``; wait first while the peer restarts."""
        connection = await self.connection()
        return await connection.request(payload, may_wait=may_wait, poll=poll, on_sent=on_sent)

    @property
    def is_closed(self) -> bool:
        """Whether the link has ended, so that the peer will not be connected again."""
        return self._closed

    async def connection(self) -> RpcConnection:
        """Return the connection after the registration; ``PeerLost`` if the link has ended."""
        while self._connection is None or self._connection.is_closed:
            if self._closed:
                raise PeerLost("the link is closed")
            self._disconnect()
            await self._connected.wait()
        return self._connection

    async def wait_connected(self) -> None:
        """Wait until this process is registered with the peer."""
        await self._connected.wait()

    async def run(self) -> None:
        """Connect, register and receive; reconnect until cancelled."""
        try:
            await self._run()
        finally:
            # Tasks that wait for a restart of the peer, possibly shielded, would wait forever.
            self._closed = True
            self._connection = None
            self._connected.set()

    async def _run(self) -> None:
        while True:
            connection = RpcConnection(
                await self._connect(),
                self._on_request,
                requests_max=self._requests_max,
                on_polled=self._on_polled,
            )
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._register_and_publish, connection)
                await connection.run()
                self._disconnect()
                nursery.cancel_scope.cancel()

    def _disconnect(self) -> None:
        self._connection = None
        if self._connected.is_set():
            self._connected = trio.Event()

    async def _register_and_publish(self, connection: RpcConnection) -> None:
        try:
            await self._register(connection)
        except PeerLost:
            return
        self._connection = connection
        self._connected.set()

    def statistics(self) -> ChannelStatistics | None:
        """Return the traffic of the current channel; None while disconnected."""
        return None if self._connection is None else self._connection.statistics()


class LocalPeer:
    """A peer in this process: its handler is called directly, and never restarts alone.

    ``on_request`` is as for ``RpcConnection``, but its exceptions reach the caller.
    """

    def __init__(self, on_request: Handler) -> None:
        self.on_request = on_request
        """Returns the answer, or an awaitable of it; to be called for a single request."""

    def start(self, payload: object, pending: _PendingRequest, nursery: trio.Nursery) -> None:
        """Call the handler, and complete the request now or when its awaitable has finished."""
        try:
            answer = self.on_request(payload)
        except Exception as error:  # noqa: BLE001 - raised by ``result``
            pending.complete(None, error)
            return
        if inspect.isawaitable(answer):
            nursery.start_soon(_complete_later, pending, answer)
        else:
            pending.complete(answer)


async def _complete_later(pending: _PendingRequest, answer: Awaitable[Any]) -> None:
    try:
        pending.complete(await answer)
    except Exception as error:  # noqa: BLE001 - raised by ``result``
        pending.complete(None, error)


async def request_all(
    requests: Sequence[tuple[Link | LocalPeer, object]],
    *,
    may_wait: bool = False,
    first_only: bool = False,
    on_sent: Callable[[], None] = _do_nothing,
) -> list[Any]:
    """Send one request to each of several peers and wait for all; return the answers in order.

    Raises as ``RpcConnection.request``, but only when every peer has answered or is lost. With
    ``first_only`` one answer is sufficient: the other requests are cancelled, and their answers are
    None. Use the same order of peers everywhere: otherwise two tasks, each holding the last request
    slot of one peer, could wait for each other.
    """
    wait = _Wait(1 if first_only else len(requests))
    if any(isinstance(peer, LocalPeer) for peer, _ in requests):
        async with trio.open_nursery() as nursery:
            pending = await _request_all(requests, wait, nursery, may_wait, on_sent)
            nursery.cancel_scope.cancel()
    else:
        pending = await _request_all(requests, wait, None, may_wait, on_sent)
    return [each.result() for each in pending]


async def _request_all(
    requests: Sequence[tuple[Link | LocalPeer, object]],
    wait: _Wait,
    nursery: trio.Nursery | None,
    may_wait: bool,
    on_sent: Callable[[], None],
) -> list[_PendingRequest]:
    """Send the requests and wait; ``nursery`` runs the handlers of local peers that wait."""
    sent: list[tuple[RpcConnection, _PendingRequest]] = []
    pending_requests: list[_PendingRequest] = []
    try:
        for peer, payload in requests:
            pending = _PendingRequest(0, wait)
            if isinstance(peer, LocalPeer):
                assert nursery is not None
                peer.start(payload, pending, nursery)
            else:
                try:
                    connection = await peer.connection()
                except PeerLost as lost:
                    pending.complete(None, lost)
                else:
                    pending = await connection._send_request(payload, wait, may_wait=may_wait)  # noqa: SLF001
                    sent.append((connection, pending))
            pending_requests.append(pending)
        on_sent()
        await wait.wait()
    finally:
        for connection, pending in sent:
            await connection._cancel(pending)  # noqa: SLF001
            connection._remove(pending)  # noqa: SLF001
    return pending_requests
