"""A selector whose requests are served by the test, and clients that send them."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.network.client_connection import (
    SCRATCH_BYTES,
    ClientConnection,
    RequestReader,
)
from minibroker.broker.network.direct_requests import DelayedRequests
from minibroker.broker.network.quota_stage import RequestCost
from minibroker.broker.network.request_loop import NewConnectionPacer, Selector
from minibroker.broker.roles.io_worker import Purgatory
from minibroker.runtime.arena import PART_BYTES_MIN, Arena
from minibroker.runtime.stream import SocketStream
from minibroker.runtime.system import edge_triggered_poller
from minibroker.runtime.worktime import WorkTime
from tests.tcp import connected_sockets

PATIENCE_S = 60.0
REQUEST_BYTES_MAX = 3 * SCRATCH_BYTES


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def fail_if_bad(body: bytes) -> None:
    if body == b"bad":
        raise ValueError("bad")


class Connection:
    """A client's socket, and the connection at the processor, with a task or without."""

    def __init__(self, running: RunningSelector, *, has_task: bool = True) -> None:
        self._running = running
        self.socket, accepted = connected_sockets()
        stream = SocketStream(accepted)
        number = len(running.connections)
        self.client = ClientConnection(
            AcceptedConnection("PLAINTEXT", stream.local, stream.peer, number), stream, 0
        )
        self.client.reader = RequestReader(
            *(stream, running.part, REQUEST_BYTES_MAX, running.scratch, trio.current_time),
            number=number,
            address="127.0.0.1",
        )
        self.returned: list[Awaitable[None] | Exception | None] = []
        """What the selector returned to the connection's task."""
        running.connections.append(self)
        if has_task:
            running.nursery.start_soon(self.run)
        else:
            running.selector.attend(self.client)

    async def run(self, *, is_started_now: bool = False) -> None:
        selector = self._running.selector
        with self.client.scope:
            while True:
                try:
                    if is_started_now:
                        is_started_now = False
                        rest = selector.taken_over(self.client)
                    else:
                        rest = await selector.wait(self.client)
                except Exception as error:  # noqa: BLE001 - what a test expects
                    self.returned.append(error)
                    return
                self.returned.append(rest)
                if rest is not None:
                    await rest
                elif await self._read() is None:
                    return

    async def _read(self) -> bytes | None:
        assert self.client.reader is not None
        block = await self.client.reader.next()
        if block is None:
            return None
        body = bytes(block.view)
        block.release()
        self._running.read.append(body)
        return body

    def send(self, *bodies: bytes) -> None:
        self.socket.sendall(framed(*bodies))

    def close(self) -> None:
        self._running.selector.forget(self.client)
        self.client.stream.close()
        self.socket.close()


class RunningSelector:
    """A selector whose requests are served by the test."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.part = Arena.create(max(PART_BYTES_MIN, 2 * REQUEST_BYTES_MAX), 1).open_part(0)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self.work_time = WorkTime()
        self.delayed = DelayedRequests(trio.current_time, self.work_time)
        self.pacer = NewConnectionPacer(lambda: self.work_time.turns)
        poller = edge_triggered_poller()
        assert poller is not None
        self.selector = Selector(
            poller,
            self._start,
            self._respond,
            self.delayed,
            self.pacer,
            scratch=self.scratch,
            work_time=self.work_time,
            start_task=self._start_task,
            on_end=self._end,
        )
        self.purgatory: Purgatory[bytes] = Purgatory()
        self.connections: list[Connection] = []
        self.started: list[int] = []
        """Connections that had no task and got one."""
        self.ended: list[int] = []
        """Connections without a task whose client has disconnected."""
        self.served: list[tuple[int, bytes]] = []
        """Requests that the selector served, with the number of their connection."""
        self.read: list[bytes] = []
        """Requests that a connection's task read."""
        self.on_serve: Callable[[bytes], Awaitable[None] | None] = lambda _: None
        self.completed: list[int] = []
        """Connections whose delayed request was completed."""
        self.responded: list[tuple[int, bytes]] = []
        """Requests whose response the selector sent, with the number of their connection."""
        self.on_respond: Callable[[bytes], Awaitable[None] | None] = lambda _: None

    def _start_task(self, client: ClientConnection) -> None:
        self.started.append(client.number)
        connection = self.connections[client.number]
        self.nursery.start_soon(partial(connection.run, is_started_now=True))

    def _end(self, client: ClientConnection) -> None:
        self.ended.append(client.number)
        self.selector.forget(client)

    def _start(self, client: ClientConnection, body: bytes) -> RequestCost | Awaitable[None]:
        self.served.append((client.number, body))
        if body.startswith(b"wait "):
            return self._delay(client, body.removeprefix(b"wait "))
        rest = self.on_serve(body)
        if rest is not None:
            return rest
        cost = RequestCost(client, len(body), 0, 0)
        cost.request = body
        return cost

    def _respond(self, cost: RequestCost) -> Awaitable[None] | None:
        self.responded.append((cost.client.number, cost.request))
        return self.on_respond(cost.request)

    def _delay(self, client: ClientConnection, key: bytes) -> Awaitable[None]:
        """Delay a request until the test wakes its key, or the clock shows 1000."""

        def respond(_: object) -> Awaitable[None] | None:
            self.completed.append(client.number)
            return self.on_serve(b"completed")

        return self.delayed.start(cast("Any", PlayedDelay(self, client, key)), respond)

    async def settle(self, requests: int) -> None:
        """Wait until this number of requests was served or read."""
        with trio.fail_after(PATIENCE_S):
            while len(self.served) + len(self.read) < requests:
                await trio.lowlevel.checkpoint()
        await wait_all_tasks_blocked()


class PlayedDelay:
    """Waits until its key was woken often enough."""

    def __init__(self, running: RunningSelector, client: ClientConnection, key: bytes) -> None:
        self.cost = SimpleNamespace(client=client)
        self.deadline = math.inf
        self._running = running
        self._key = key
        self.attempts = 0

    def watch(self, waiter: Any) -> None:
        self._running.purgatory.add([self._key], waiter)

    def unwatch(self, waiter: Any) -> None:
        self._running.purgatory.remove([self._key], waiter)

    def attempt(self, *, is_over: bool) -> PlayedDelay | None:
        self.attempts += 1
        if self._key == b"broken":
            raise ValueError("broken")
        return None if self.attempts == 2 or is_over else self


@asynccontextmanager
async def running_selector() -> AsyncIterator[RunningSelector]:
    """Run a selector; nothing may wait at it in the end."""
    async with trio.open_nursery() as nursery:
        made = RunningSelector(nursery)
        nursery.start_soon(made.selector.run)
        nursery.start_soon(made.delayed.run)
        yield made
        nursery.cancel_scope.cancel()
    for connection in made.connections:
        connection.close()
    assert len(made.purgatory) == len(made.delayed) == 0
