"""Requests of one processor that wait for records of a partition of this process.

Owns their deadlines, and when they are attempted again. It must never know what they wait for.
An appended record only notes the requests that wait for it: they are attempted when the request
that appended it was answered, so a consumer never delays a producer. Invariant: a request is
completed once, unless it is cancelled, and is watched only until then; there is at most one for
each connection. Kafka's ``DelayedOperationPurgatory``.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, cast

import trio

from minibroker.runtime.deadlines import Deadlines

if TYPE_CHECKING:
    from collections.abc import Callable

    from minibroker.broker.network.client_connection import ClientConnection
    from minibroker.broker.network.request_handler import SingleDelay, SingleResponse
    from minibroker.runtime.worktime import WorkTime


def _do_nothing() -> None:
    """Before the request's connection knows of it."""


class DelayedRequest(Awaitable[None]):
    """One request that waits; its connection awaits it or sets ``on_due``.

    ``on_due`` is called when the wait has ended; then `complete` must be called.
    """

    def __init__(
        self,
        requests: DelayedRequests,
        delay: SingleDelay,
        respond: Callable[[SingleResponse | None], Awaitable[None] | None],
    ) -> None:
        self._requests = requests
        self.delay = delay
        self._respond = respond
        self._response: SingleResponse | None = None
        self._error: Exception | None = None
        self.on_due: Callable[[], object] = _do_nothing
        self.is_noted = False

    @property
    def client(self) -> ClientConnection:
        """The connection that sent the request."""
        return self.delay.cost.client

    def set(self) -> None:
        """Attempt the request again soon."""
        self._requests.note(self)

    def attempt(self, *, is_over: bool) -> bool:
        """Return whether the wait has ended."""
        try:
            found = self.delay.attempt(is_over=is_over)
        except Exception as error:  # noqa: BLE001 - closes the connection, see `complete`
            self._error = error
            return True
        if found is self.delay:
            return False
        self._response = cast("SingleResponse | None", found)
        return True

    def complete(self) -> Awaitable[None] | None:
        """Respond now; return what remains to be awaited. Raises what the attempt raised."""
        if self._error is not None:
            raise self._error
        return self._respond(self._response)

    def cancel(self) -> None:
        """End the wait without a response."""
        self._requests.forget(self)

    def __await__(self) -> Generator[object, None, None]:
        """Wait, and respond."""
        return self._wait().__await__()

    async def _wait(self) -> None:
        due = trio.Event()
        self.on_due = due.set
        try:
            await due.wait()
        except BaseException:
            self.cancel()
            raise
        rest = self.complete()
        if rest is not None:
            await rest


class DelayedRequests:
    """The waiting requests of one processor; ``run`` must be running."""

    def __init__(self, now: Callable[[], float], work_time: WorkTime) -> None:
        self._now = now
        self._work_time = work_time
        self._deadlines: Deadlines[DelayedRequest] = Deadlines()
        self._noted: list[DelayedRequest] = []
        self._wake = trio.Event()
        self._timer = trio.CancelScope()
        """Ends the sleep of `run` at the next deadline; moving it is cheaper than waking `run`."""
        self.is_attended = False
        """Whether `attempt_noted` will be called before other tasks run."""

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._deadlines)

    def start(
        self,
        delay: SingleDelay,
        respond: Callable[[SingleResponse | None], Awaitable[None] | None],
    ) -> DelayedRequest:
        """Let a request wait; ``respond`` is called with its response, or None for other ways."""
        request = DelayedRequest(self, delay, respond)
        delay.watch(request)
        if self._deadlines.add(request, delay.deadline):
            self._timer.deadline = delay.deadline
        return request

    def note(self, request: DelayedRequest) -> None:
        """Attempt a request soon."""
        if not request.is_noted:
            request.is_noted = True
            self._noted.append(request)
            if not self.is_attended:
                self._wake.set()

    def forget(self, request: DelayedRequest) -> None:
        """Forget a request."""
        if request in self._deadlines:
            self._deadlines.forget(request)
            request.delay.unwatch(request)

    def attempt_noted(self) -> None:
        """Attempt the noted requests, and complete those whose wait has ended."""
        while self._noted:
            noted, self._noted = self._noted, []
            for request in noted:
                request.is_noted = False
                if request in self._deadlines:
                    self._attempt(request, is_over=False)

    async def run(self) -> None:
        """Attempt requests when they are noted or due, until cancelled."""
        while True:
            self._wake = trio.Event()
            self.attempt_noted()
            for request in self._deadlines.due(self._now()):
                request.delay.unwatch(request)
                self._attempt(request, is_over=True)
            self._work_time.switch(None)
            end = self._deadlines.next()
            with trio.CancelScope(deadline=math.inf if end is None else end) as self._timer:
                await self._wake.wait()

    def _attempt(self, request: DelayedRequest, *, is_over: bool) -> None:
        self._work_time.switch(request.client.account)
        if request.attempt(is_over=is_over):
            self.forget(request)
            request.on_due()
