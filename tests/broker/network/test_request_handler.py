"""What a request is answered, what is recorded of it, and the pause of all requests."""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.apis.produce import ProduceOutcome, ProducePart
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.metrics.metrics import ERRORS_AT, HISTOGRAMS, OK_AT
from minibroker.broker.network.client_connection import ChannelEvent, ChannelState, ClientConnection
from minibroker.broker.network.request_handler import RequestPause
from minibroker.broker.shares.sessions import ShareSessionCache
from minibroker.runtime.stream import memory_stream_pair
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.registry import ApiKey
from tests.broker.network.running_handler import WORKED_NS, RunningHandler, accept, produce
from tests.simulation.client import frame


async def test_connection_is_used_before_its_answer_is_sent(running: RunningHandler) -> None:
    await running.ask(ApiVersionsRequest(), 0)
    assert running.used == [(1, ChannelState.RESPONSE_PENDING)]


async def test_error_of_a_single_partition_counts_as_an_error(running: RunningHandler) -> None:
    async def reject_one(part: ProducePart) -> dict[tuple[str, int], ProduceOutcome]:
        return {
            (batch.topic, batch.partition): ProduceOutcome(87 if batch.partition else 0)
            for batch in part.batches
        }

    def counted() -> tuple[int, int]:
        row = running.env.metrics.snapshot().rows[ApiKey.PRODUCE]
        return row[OK_AT], row[ERRORS_AT]

    for worker in running.workers:
        worker.handler = accept
    await running.ask(produce(0, 1), 9)
    assert counted() == (1, 0)
    for worker in running.workers:
        worker.handler = reject_one
    await running.ask(produce(0, 1), 9)
    assert counted() == (1, 1)


async def test_acks_zero_gets_no_response(running: RunningHandler) -> None:
    for worker in running.workers:
        worker.handler = accept
    await running.take(frame(produce(0, acks=0), 9)[4:])
    assert running.ours.state.state is ChannelState.NOT_MUTED
    response = await running.ask(ApiVersionsRequest(), 0)
    assert response.error_code == 0


async def test_acks_zero_error_closes_the_connection(running: RunningHandler) -> None:
    async def refuse(part: ProducePart) -> Any:
        refused = ProduceOutcome(ErrorCode.CORRUPT_MESSAGE)
        return {(batch.topic, batch.partition): refused for batch in part.batches}

    for worker in running.workers:
        worker.handler = refuse
    with pytest.raises(CloseConnection, match="CORRUPT_MESSAGE"):
        await running.take(frame(produce(0, acks=0), 9)[4:])
    assert running.memory_used == 0


async def test_each_request_is_counted(running: RunningHandler, autojump_clock: MockClock) -> None:
    for worker in running.workers:
        worker.handler = accept
    await running.ask(produce(0, 1), 9)
    await running.ask(ApiVersionsRequest(client_software_name="!"), 3)
    rows = running.env.metrics.snapshot().rows
    assert (rows[ApiKey.PRODUCE][OK_AT], rows[ApiKey.PRODUCE][ERRORS_AT]) == (1, 0)
    assert (rows[ApiKey.API_VERSIONS][OK_AT], rows[ApiKey.API_VERSIONS][ERRORS_AT]) == (0, 1)
    row = rows[ApiKey.PRODUCE]
    assert row[HISTOGRAMS["request_bytes"].sum_at] == len(frame(produce(0, 1), 9)) - 4
    assert row[HISTOGRAMS["response_bytes"].sum_at] > 20
    assert row[HISTOGRAMS["io"].sum_at] == 2 * WORKED_NS


class Handler:
    """Serves requests at once, or leaves a rest."""

    def __init__(self) -> None:
        self.served: list[bytes] = []
        self.start: Any = self.start_now
        self.fetch_sessions = SimpleNamespace(clear=lambda: self.served.append(b"sessions"))
        self.share_sessions = ShareSessionCache(1, 0)

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
