"""Requests wait during a pause; those in flight are waited for, or their connections are closed."""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import ChannelEvent, ClientConnection
from minibroker.broker.network.request_pause import RequestPause
from minibroker.runtime.stream import memory_stream_pair


class Handler:
    """Serves requests at once, or leaves a rest."""

    def __init__(self) -> None:
        self.served: list[bytes] = []
        self.start: Any = self.start_now
        self.fetch_sessions = SimpleNamespace(clear=lambda: self.served.append(b"sessions"))

    def serve(self, client: ClientConnection, body: bytes) -> Any:
        return self.start(client, body)

    def start_now(self, client: ClientConnection, body: bytes) -> Awaitable[None] | None:
        self.served.append(body)
        return self._rest(body) if body == b"slow" else None

    async def _rest(self, body: bytes) -> None:
        self.served.append(b"rest")


class Paused:
    """A pause with one connection."""

    def __init__(self) -> None:
        accepted = AcceptedConnection("PLAINTEXT", ("::1", 1), ("::1", 2), 1)
        stream, _ = memory_stream_pair()
        self.client = ClientConnection(accepted, stream, 0.0)
        self.handler = Handler()
        self.clients = {1: self.client}
        env: Any = SimpleNamespace(clock=SimpleNamespace(sleep_real=self._sleep_real))
        handler: Any = self.handler
        self.pause = RequestPause(env, self.clients, handler)
        self.waits = 0

    async def _sleep_real(self, seconds: float) -> None:
        self.waits += 1
        await trio.lowlevel.checkpoint()
        if self.waits == 3:
            self.client.interruptible = True

    async def serve_all_closed(self) -> None:
        """Remove the connection when it is closed."""
        with self.client.scope:
            await trio.sleep_forever()
        self.client.state.on(ChannelEvent.CLOSE)
        self.clients.clear()


@pytest.fixture
def paused() -> Paused:
    return Paused()


async def test_request_is_served_after_the_pause(paused: Paused) -> None:
    await paused.pause.start(disconnect=False)
    async with trio.open_nursery() as nursery:
        for body in (b"quick", b"slow"):
            nursery.start_soon(paused.handler.serve, paused.client, body)
        await wait_all_tasks_blocked()
        assert paused.handler.served == []
        paused.pause.end()
    assert sorted(paused.handler.served) == [b"quick", b"rest", b"slow"]
    assert paused.handler.serve(paused.client, b"later") is None


async def test_pause_waits_until_no_request_is_executed(paused: Paused) -> None:
    paused.client.state.on(ChannelEvent.REQUEST_RECEIVED)
    paused.client.interruptible = False
    await paused.pause.start(disconnect=False)
    assert paused.waits == 3
    assert not paused.client.scope.cancel_called


async def test_waiting_request_and_its_connection_outlast_a_pause(paused: Paused) -> None:
    paused.client.state.on(ChannelEvent.REQUEST_RECEIVED)
    await paused.pause.start(disconnect=False)
    assert not paused.client.scope.cancel_called
    assert paused.handler.served == []


async def test_disconnecting_pause_closes_a_connection_with_a_request(paused: Paused) -> None:
    paused.client.state.on(ChannelEvent.REQUEST_RECEIVED)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(paused.serve_all_closed)
        await wait_all_tasks_blocked()
        await paused.pause.start(disconnect=True)
    assert paused.client.close_reason is CloseReason.SNAPSHOT_RESTORED
    assert paused.handler.served == [b"sessions"]


async def test_disconnecting_pause_keeps_an_idle_connection(paused: Paused) -> None:
    await paused.pause.start(disconnect=True)
    assert not paused.client.scope.cancel_called


async def test_second_pause_does_not_lose_requests_of_the_first(paused: Paused) -> None:
    await paused.pause.start(disconnect=False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(paused.handler.serve, paused.client, b"early")
        await wait_all_tasks_blocked()
        await paused.pause.start(disconnect=False)
        nursery.start_soon(paused.handler.serve, paused.client, b"late")
        await wait_all_tasks_blocked()
        paused.pause.end()
    assert sorted(paused.handler.served) == [b"early", b"late"]
