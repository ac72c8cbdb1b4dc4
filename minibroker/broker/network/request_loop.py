"""From connections to requests: selects the ready ones, and serves the requests of each in order.

Owns which connections are read next, and what happens between two requests of a connection:
reauthentication, the end of a throttle, and fairness to others. It must never know what a request
does, or why a connection closes.

``Selector`` serves all connections whose requests have arrived in one pass of one task, because a
switch between tasks takes longer than a small request: a connection that waits for its next request
leaves its socket to the selector. Its own task continues when more is needed than a complete
request that can be answered at once; a connection that never needed more has no task. Connections
that start or end are served last in a round, and a few in each round if others are served.

``NewConnectionPacer`` limits how many connections start or end in one turn of the loop. A hundred
that do so together take tens of milliseconds; a request on another connection must not wait for
more than a few of them. If no other connection was served recently, all proceed at once, which
takes a third less time in total.

Invariant: at most one request of a connection is served at a time. A socket is read either by the
selector or by its task, never by both; in each round every other ready connection is served once,
its response is sent before its next request is executed, and other tasks run after at most
``ROUND_REQUESTS_MAX`` requests and the rest of their round. In each turn at least one waiting
connection proceeds; while others are served, at most ``PER_TURN`` do, or twice that when the queue
becomes empty. Kafka's ``Selector.poll`` and ``SocketServer.Processor.processCompletedReceives``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import SCRATCH_BYTES, RequestReader
from minibroker.broker.network.direct_requests import DelayedRequest
from minibroker.broker.network.quota_stage import RequestCost
from minibroker.broker.settings import SOCKET_REQUEST_MAX_BYTES
from minibroker.runtime.arena import ArenaPart, Block
from minibroker.runtime.stream import SocketStream, StreamClosed
from minibroker.runtime.system import (
    ENDED_EVENTS,
    RECEIVED_EVENTS,
    EdgeTriggeredPoller,
    edge_triggered_poller,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from minibroker.broker.network.authenticator import Authenticator
    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.direct_requests import DelayedRequests
    from minibroker.broker.network.request_handler import RequestHandler
    from minibroker.broker.process.environment import Environment
    from minibroker.runtime.worktime import WorkTime


ROUND_REQUESTS_MAX: Final = 16
"""Requests after which the other tasks of the process run."""

RESPONSES_MAX: Final = 16
"""Responses that wait until further requests of the round are executed. A client that sleeps is
woken by its response, which takes longer than the request if its core sleeps too; several responses
in a row find it awake."""

EVENTS_MAX: Final = 64
"""Ready connections of one round; others are ready in the next round."""


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
        poller: EdgeTriggeredPoller,
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
        # Edge-triggered: a busy connection does not wake the loop again and again.
        self._poller = poller
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
            if not self._poller.closed:
                self._poller.unregister(stream.descriptor)

    async def run(self) -> None:
        """Serve connections until cancelled."""
        try:
            while True:
                await trio.lowlevel.wait_readable(self._poller.fileno())
                served = 0
                while count := self._serve_round():
                    served += count
                    if served >= ROUND_REQUESTS_MAX:
                        served = 0
                        await trio.lowlevel.checkpoint()
        finally:
            self._poller.close()

    def _register(self, client: ClientConnection, stream: SocketStream) -> _Registration:
        registration = _Registration(client, stream)
        self._poller.register(stream.descriptor, RECEIVED_EVENTS)
        self._registered[stream.descriptor] = registration
        return registration

    def _registration(self, client: ClientConnection) -> _Registration:
        assert isinstance(client.stream, SocketStream)
        return self._registered[client.stream.descriptor]

    def _serve_round(self) -> int:
        """Serve one request of each ready connection; return the number of connections."""
        again, self._again = self._again, []
        events = self._poller.poll(0, EVENTS_MAX)
        self._delayed.is_attended = True
        for registration in again:
            if registration.is_waiting:
                self._attempt(registration, self._serve_buffered)
        for descriptor, flags in events:
            registration = self._registered[descriptor]  # Forgotten ones have no events.
            if not registration.is_waiting or flags & ENDED_EVENTS:
                registration.is_ready = True
            if not registration.is_waiting:
                continue
            if registration.is_taskless and (registration.client.is_new or flags & ENDED_EVENTS):
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


class RequestLoop:
    """Serves the requests of one processor's connections."""

    def __init__(
        self,
        env: Environment,
        part: ArenaPart,
        pacer: NewConnectionPacer,
        authenticator: Authenticator,
        request_handler: RequestHandler,
        *,
        start_task: Callable[[ClientConnection], None],
        on_use: Callable[[int, float], None],
        on_end: Callable[[ClientConnection], None],
    ) -> None:
        """``start_task`` starts a task that calls `take_over`.

        ``on_use`` is called with the number of a connection that sent a request and the time,
        ``on_end`` when the client of a connection without a task has disconnected.
        """
        self._env = env
        self._part = part
        self._pacer = pacer
        self._authenticator = authenticator
        self._request_handler = request_handler
        self._on_use = on_use
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        poller = edge_triggered_poller()
        self.selector: Selector | None = None
        """None if the system has no such poller: each connection has a task, which reads."""
        if poller is not None:
            self.selector = Selector(
                poller,
                self._start_body,
                request_handler.respond,
                request_handler.delayed,
                pacer,
                scratch=self._scratch,
                work_time=env.work_time,
                start_task=start_task,
                on_end=on_end,
            )

    def attend(self, client: ClientConnection) -> None:
        """Serve a connection that needs no authentication, without a task until it needs one."""
        assert self.selector is not None
        client.reader = self._reader(client)
        self.selector.attend(client)

    def _reader(self, client: ClientConnection) -> RequestReader:
        return RequestReader(
            client.stream,
            self._part,
            self._env.settings[SOCKET_REQUEST_MAX_BYTES],
            self._scratch,
            self._env.clock.real_s,
            number=client.number,
            address=client.caller.client_host,
        )

    async def take_over(self, client: ClientConnection) -> None:
        """Serve a connection that had no task until the client disconnects or the broker stops."""
        reader, selector = client.reader, self.selector
        assert reader is not None
        assert selector is not None
        rest = selector.taken_over(client)
        is_open = True
        if rest is None:
            await trio.lowlevel.checkpoint_if_cancelled()
            is_open = await self._serve_next(client, reader)
        else:
            await self._finish(client, rest)
        await self._serve(client, reader, is_open=is_open)

    async def run(self, client: ClientConnection) -> None:
        """Authenticate, then serve requests until the client disconnects or the broker stops."""
        client.reader = reader = self._reader(client)
        if not await self._authenticator.authenticate(client, reader):
            return
        self._note_session(client, is_first=True)
        is_open = await self._serve_next(client, reader)
        await self._serve(client, reader, is_open=is_open)

    async def _serve(
        self, client: ClientConnection, reader: RequestReader, *, is_open: bool
    ) -> None:
        while is_open and not self._env.stopping.is_set():
            # Sessions that expire need reauthentication, which waits.
            rest = None
            if client.session_expires_at is None and self.selector is not None:
                rest = await self.selector.wait(client)
            if rest is None:
                is_open = await self._serve_next(client, reader)
            else:
                await self._finish(client, rest)
        if is_open:
            client.close_reason = CloseReason.STOPPING

    def _note_session(self, client: ClientConnection, *, is_first: bool) -> None:
        for observer in self._request_handler.observers:
            observer.authenticated(client, is_first=is_first)

    async def _serve_next(self, client: ClientConnection, reader: RequestReader) -> bool:
        """Read and serve one request; return whether the client is still connected."""
        stream = client.stream
        waits = stream.waits
        try:
            body = await reader.next_body()
        except StreamClosed:
            await self._pacer.wait_turn()
            raise
        if body is None:
            await self._pacer.wait_turn()
            return False
        if client.is_new and stream.waits > waits:  # Others were opened while it waited.
            await self._pace(body)
        if client.session_expires_at is not None:
            self._on_use(client.number, self._env.clock.now())
            block = await reader.store(body) if isinstance(body, bytes) else body
            if await self._authenticator.reauthenticate(client, reader, block):
                self._note_session(client, is_first=False)
                return True
            body = block
        self._note_request(client)
        rest = self._request_handler.serve(client, body)
        was_throttled = rest is not None and await self._finish(client, rest)
        if stream.waits == waits and not was_throttled:
            # A client that pipelines requests may not have waited anywhere above, and would
            # otherwise keep other connections from being served.
            await trio.lowlevel.checkpoint()
        return True

    def _start_body(self, client: ClientConnection, body: bytes) -> RequestCost | Awaitable[None]:
        self._note_request(client)
        return self._request_handler.start(client, body)

    def _note_request(self, client: ClientConnection) -> None:
        if client.is_new:
            client.is_new = False
        else:
            self._pacer.note_served()
        self._on_use(client.number, self._env.clock.now())

    async def _finish(self, client: ClientConnection, rest: Awaitable[None]) -> bool:
        """Complete a request, and the throttle that it caused; return whether there was one."""
        await rest
        if client.throttle_end is None:
            return False
        await client.throttle_end.wait()
        client.throttle_end = None
        return True

    async def _pace(self, first: bytes | Block) -> None:
        try:
            await self._pacer.wait_turn()
        except BaseException:
            if isinstance(first, Block):
                first.release()
            raise


PER_TURN: Final = 2
"""A connection takes 0.1 to 0.2 ms, and the turn itself some hundredths."""

RECENT_TURNS: Final = 2000
"""Turns after its last request in which a connection still counts as served: some seconds under
load; without load it is longer, which does no harm."""


class NewConnectionPacer:
    """The pacer of one loop; ``run`` must be running."""

    def __init__(self, turns: Callable[[], int]) -> None:
        """``turns`` returns the number of turns of the loop so far."""
        self._turns = turns
        self._turn = turns()
        self._remaining = PER_TURN
        self._busy_until_turn = self._turn
        self._waiting = trio.lowlevel.ParkingLot()
        self._has_waiting = trio.Event()

    def note_served(self) -> None:
        """Note that a request of a connection that is not new was served."""
        self._busy_until_turn = self._turns() + RECENT_TURNS

    @property
    def others_served_recently(self) -> bool:
        """Whether other connections were served recently."""
        return self._turns() < self._busy_until_turn

    async def wait_turn(self) -> None:
        """Wait for the turn to proceed; return at once if few others did in this turn."""
        turn = self._turns()
        if turn != self._turn:
            self._turn = turn
            self._remaining = PER_TURN
        if (self._remaining > 0 and not self._waiting) or turn >= self._busy_until_turn:
            self._remaining -= 1
            return
        self._has_waiting.set()
        await self._waiting.park()

    async def run(self) -> None:
        """Let waiting connections proceed, a few in each turn, until cancelled."""
        while True:
            await self._has_waiting.wait()
            self._has_waiting = trio.Event()
            while self._waiting:
                self._waiting.unpark(count=PER_TURN)
                await trio.lowlevel.checkpoint()
