"""Serves all connections whose requests have arrived, in one pass of one task.

Owns which connections wait for their next request, and reads those that are ready. It must never
know what a request does. A switch between tasks takes longer than a small request, so a connection
that waits for its next request leaves its socket to the selector. Its own task continues when more
is needed than a complete request that can be answered at once; a connection that never needed more
has no task. Connections that start or end are served last in a round, and a few in each round if
others are served. Invariant: a socket is read either by the selector or by its task, never by both;
in each round every other ready connection is served once, its response is sent before its next
request is executed, and other tasks run after at most ``ROUND_REQUESTS_MAX`` requests and the rest
of their round.
Kafka's ``Selector.poll`` and ``SocketServer.Processor.processCompletedReceives``.
"""

from __future__ import annotations

import select
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.admission.new_connection_pacer import PER_TURN
from minibroker.broker.network.delayed_requests import DelayedRequest
from minibroker.broker.network.request_cost import RequestCost
from minibroker.broker.network.request_reader import SCRATCH_BYTES
from minibroker.runtime.stream import SocketStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from minibroker.broker.admission.new_connection_pacer import NewConnectionPacer
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.delayed_requests import DelayedRequests
    from minibroker.broker.network.request_reader import RequestReader
    from minibroker.runtime.worktime import WorkTime

ROUND_REQUESTS_MAX: Final = 16
"""Requests after which the other tasks of the process run."""

RESPONSES_MAX: Final = 16
"""Responses that wait until further requests of the round are executed. A client that sleeps is
woken by its response, which takes longer than the request if its core sleeps too; several responses
in a row find it awake."""

EVENTS_MAX: Final = 64
"""Ready connections of one round; others are ready in the next round."""

_ENDED: Final = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
# Edge-triggered: a connection whose task is busy does not wake the selector again and again.
_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class _Registration:
    """A connection's socket."""

    __slots__ = (
        "client",
        "cost",
        "delayed",
        "error",
        "is_ready",
        "rest",
        "stream",
        "task",
    )

    def __init__(self, client: ClientConnection, stream: SocketStream) -> None:
        self.client = client
        self.stream = stream
        self.task: trio.lowlevel.Task | None = None
        """The connection's task while it waits for the next request."""
        self.delayed: DelayedRequest | None = None
        """The request of the connection that waits for records."""
        self.cost: RequestCost | None = None
        """The request of the connection that was executed, and has no response yet."""
        self.is_ready = False
        """Whether the socket may have bytes, or its end, of which no further event comes."""
        self.rest: Awaitable[None] | None = None
        """What the task awaits when it continues."""
        self.error: Exception | None = None
        """What the task raises when it continues."""

    @property
    def is_taskless(self) -> bool:
        """Whether the connection is open and has no task."""
        return self.client.start_task is not None

    @property
    def is_attended(self) -> bool:
        """Whether the selector serves the connection, and not its task."""
        return self.task is not None or self.is_taskless

    @property
    def is_waiting(self) -> bool:
        """Whether the next request of the connection can be served."""
        return self.is_attended and self.delayed is None and self.cost is None

    def wait_in(self, task: trio.lowlevel.Task) -> None:
        """Let the connection's task wait for what the next request needs."""
        self.task = task
        self.rest = self.error = None


class Selector:
    """The selector of one processor; ``run`` must be running."""

    def __init__(
        self,
        start: Callable[[ClientConnection, bytes], RequestCost | Awaitable[None]],
        respond: Callable[[RequestCost], Awaitable[None] | None],
        delayed: DelayedRequests,
        pacer: NewConnectionPacer,
        *,
        scratch: memoryview,
        work_time: WorkTime,
        start_task: Callable[[ClientConnection], None],
        on_end: Callable[[ClientConnection], None],
    ) -> None:
        """Use the functions ``start`` and ``respond`` of a request handler.

        ``start_task`` starts the task of a connection that had none, which calls `taken_over`.
        ``on_end`` is called when the client of such a connection has disconnected.
        """
        self._start = start
        self._respond = respond
        self._delayed = delayed
        self._pacer = pacer
        self._start_task = start_task
        self._on_end = on_end
        self._scratch = scratch
        self._work_time = work_time
        self._epoll = select.epoll()
        self._registered: dict[int, _Registration] = {}
        self._again: list[_Registration] = []
        """Connections with a further request in their buffers."""
        self._executed: list[_Registration] = []
        """Connections that are to get a response."""
        self._paced: deque[_Registration] = deque()
        """Connections without a task that are new, or whose client may have disconnected."""

    def attend(self, client: ClientConnection) -> None:
        """Serve a connection without a task until it needs one."""
        stream = client.stream
        assert isinstance(stream, SocketStream)
        self._register(client, stream)
        client.start_task = self._close

    def taken_over(self, client: ClientConnection) -> Awaitable[None] | None:
        """Return and raise what `wait` does, for a task that was started now."""
        return self._outcome(self._registration(client))

    async def wait(self, client: ClientConnection) -> Awaitable[None] | None:
        """Wait until the connection's task is needed, and serve requests in the meantime.

        Return what remains of the newest request, which the caller must await, or None if the
        caller must read. Raises what reading or serving a request raises.
        """
        stream, reader = client.stream, client.reader
        assert reader is not None
        if not isinstance(stream, SocketStream):
            return None
        registration = self._registered.get(stream.descriptor)
        if registration is None:
            registration = self._register(client, stream)
        if reader.has_buffered or (registration.is_ready and stream.is_readable()):
            registration.is_ready = True  # The caller may leave bytes in the socket.
            return None
        registration.is_ready = False
        registration.wait_in(trio.lowlevel.current_task())

        def abort(_: object) -> trio.lowlevel.Abort:
            registration.task = None
            if registration.delayed is not None:
                registration.delayed.cancel()
                registration.delayed = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
        return self._outcome(registration)

    def _outcome(self, registration: _Registration) -> Awaitable[None] | None:
        if registration.error is not None:
            raise registration.error
        registration.is_ready = registration.is_ready or registration.rest is None
        return registration.rest

    def forget(self, client: ClientConnection) -> None:
        """Forget a connection that will be closed; its socket must be open until then."""
        stream = client.stream
        if isinstance(stream, SocketStream) and stream.descriptor in self._registered:
            del self._registered[stream.descriptor]
            client.start_task = None  # It may be noted to be served again, or be closed again.
            if not self._epoll.closed:
                self._epoll.unregister(stream.descriptor)

    async def run(self) -> None:
        """Serve connections until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                served = 0
                while count := self._serve_round():
                    served += count
                    if served >= ROUND_REQUESTS_MAX:
                        served = 0
                        await trio.lowlevel.checkpoint()
        finally:
            self._epoll.close()

    def _register(self, client: ClientConnection, stream: SocketStream) -> _Registration:
        registration = _Registration(client, stream)
        self._epoll.register(stream.descriptor, _EVENTS)
        self._registered[stream.descriptor] = registration
        return registration

    def _registration(self, client: ClientConnection) -> _Registration:
        assert isinstance(client.stream, SocketStream)
        return self._registered[client.stream.descriptor]

    def _serve_round(self) -> int:
        """Serve one request of each ready connection; return the number of connections."""
        again, self._again = self._again, []
        events = self._epoll.poll(0, EVENTS_MAX)
        self._delayed.is_attended = True
        for registration in again:
            if registration.is_waiting:
                self._attempt(registration, self._serve_buffered)
        for descriptor, flags in events:
            registration = self._registered[descriptor]  # Forgotten ones have no events.
            if not registration.is_waiting or flags & _ENDED:
                registration.is_ready = True
            if not registration.is_waiting:
                continue
            if registration.is_taskless and (registration.client.is_new or flags & _ENDED):
                self._paced.append(registration)
            else:
                self._attempt(registration, self._serve_received)
        paced = self._serve_paced()
        self._send_responses()
        self._delayed.attempt_noted()
        self._delayed.is_attended = False
        self._work_time.switch(None)
        return len(events) + len(again) + paced

    def _serve_paced(self) -> int:
        """Serve connections that start or end, a few if others are served; return their number."""
        count = len(self._paced)
        if count > PER_TURN and self._pacer.others_served_recently:
            count = PER_TURN
        for _ in range(count):
            registration = self._paced.popleft()
            if registration.is_waiting:
                self._attempt(registration, self._serve_received)
        return count

    def _attempt(
        self, registration: _Registration, step: Callable[[_Registration, RequestReader], None]
    ) -> None:
        client = registration.client
        self._work_time.switch(client.account)
        assert client.reader is not None
        try:
            step(registration, client.reader)
        except Exception as error:  # noqa: BLE001 - raised in the connection's task
            self._wake(registration, error=error)

    def _serve_received(self, registration: _Registration, reader: RequestReader) -> None:
        count = registration.stream.receive_now(self._scratch)
        if not count:
            if registration.is_taskless:
                registration.is_ready = False
                if count == 0:
                    self._on_end(registration.client)
            elif count == 0 or registration.is_ready:
                self._wake(registration)
            return
        if count == SCRATCH_BYTES:
            registration.is_ready = True  # The socket may have more.
        self._serve_body(registration, reader.received(count))

    def _serve_buffered(self, registration: _Registration, reader: RequestReader) -> None:
        self._serve_body(registration, reader.buffered_body())

    def _serve_body(self, registration: _Registration, body: bytes | None) -> None:
        if body is None:
            self._wake(registration)  # The task receives the rest.
            return
        started = self._start(registration.client, body)
        if isinstance(started, RequestCost):
            registration.cost = started
            self._executed.append(registration)
            if len(self._executed) == RESPONSES_MAX:
                self._send_responses()
        elif isinstance(started, DelayedRequest):
            registration.delayed = started
            # Refers to the request by the registration only: without a cycle once it is completed.
            started.on_due = partial(self._complete, registration)
        else:
            self._wake(registration, started)

    def _send_responses(self) -> None:
        executed, self._executed = self._executed, []
        for registration in executed:
            if registration.is_attended:  # Else it was closed by another request of the round.
                self._attempt(registration, self._send_response)
            registration.cost = None

    def _send_response(self, registration: _Registration, reader: RequestReader) -> None:
        cost = registration.cost
        assert cost is not None
        rest = self._respond(cost)
        if rest is not None:
            self._wake(registration, rest)
        elif reader.has_buffered:
            self._again.append(registration)
        elif registration.is_taskless and registration.is_ready:
            self._paced.append(registration)
        elif registration.is_ready:
            self._wake(registration)

    def _complete(self, registration: _Registration) -> None:
        delayed, registration.delayed = registration.delayed, None
        if delayed is None:  # It was closed by another request that was due now.
            return
        client = registration.client
        assert client.reader is not None
        try:
            rest = delayed.complete()
        except Exception as error:  # noqa: BLE001 - raised in the connection's task
            self._wake(registration, error=error)
            return
        # The task reads what has arrived in the meantime.
        if rest is not None or client.reader.has_buffered or registration.is_ready:
            self._wake(registration, rest)

    def _wake(
        self,
        registration: _Registration,
        rest: Awaitable[None] | None = None,
        error: Exception | None = None,
    ) -> None:
        registration.rest, registration.error = rest, error
        if registration.is_taskless:
            registration.client.start_task = None
            self._start_task(registration.client)
            return
        assert registration.task is not None
        trio.lowlevel.reschedule(registration.task)
        registration.task = None

    def _close(self, client: ClientConnection) -> None:
        """Let a task close a connection that has none."""
        registration = self._registration(client)
        if registration.delayed is not None:
            registration.delayed.cancel()
            registration.delayed = None
        self._wake(registration)
