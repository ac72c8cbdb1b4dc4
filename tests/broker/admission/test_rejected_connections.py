"""Rejected connections are closed, recorded and counted; in a storm they are closed later."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission import rejected_connections
from minibroker.broker.admission.acceptor_messages import AcceptedConnection
from minibroker.broker.admission.connection_events import ConnectionEvents, ExceededLimit
from minibroker.broker.admission.rejected_connections import (
    ADMIT_INTERVAL_S,
    PER_S,
    QUEUE,
    TICK_S,
    RejectedConnections,
)
from minibroker.broker.metrics.definitions import CLOSED, QUEUE_PEAK, QUEUE_USED, CloseReason
from minibroker.broker.metrics.log import ConnectionCloses, EventLog
from minibroker.broker.process.environment import ACCEPTOR, Environment
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import MemoryStream, memory_stream_pair
from tests.broker.process.conftest import MakeEnvironment

LISTENER = "PLAINTEXT"
REASON = CloseReason.DROPPED
LIMIT = ExceededLimit("kafka_connections_max", 1)
AT_ONCE = 3


class Rejecter:
    """Rejects clients, and counts those that were disconnected."""

    def __init__(self, env: Environment) -> None:
        self.env = env
        self.events = ConnectionEvents(1, env.clock.now)
        closes = ConnectionCloses(env.metrics, EventLog("test"))
        self.rejected = RejectedConnections(env, self.events, closes, processor=2)
        self.clients: list[MemoryStream] = []

    def reject(self, count: int) -> None:
        for _ in range(count):
            client, connection = memory_stream_pair()
            self.clients.append(client)
            accepted = AcceptedConnection(
                LISTENER, connection.local, connection.peer, len(self.clients)
            )
            self.rejected.reject(accepted, connection, REASON, LIMIT)

    def disconnected(self) -> int:
        return sum(client._incoming.ended for client in self.clients)

    def counted(self) -> int:
        counters = self.env.metrics.snapshot().counters
        return counters.get((CLOSED.name, (LISTENER, REASON.value)), 0)

    def queue(self) -> tuple[float, float]:
        gauges = self.env.metrics.snapshot().gauges
        return gauges[QUEUE_USED.name, (QUEUE,)], gauges[QUEUE_PEAK.name, (QUEUE,)]


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejected_connections, "AT_ONCE", AT_ONCE)


@asynccontextmanager
async def running_rejecter(make_env: MakeEnvironment) -> AsyncIterator[Rejecter]:
    rejecter = Rejecter(make_env(ACCEPTOR))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(rejecter.rejected.run)
        await wait_all_tasks_blocked()
        yield rejecter
        nursery.cancel_scope.cancel()


async def test_first_rejected_connections_are_closed_at_once_and_counted(
    make_env: MakeEnvironment,
) -> None:
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE)
        assert rejecter.disconnected() == rejecter.counted() == AT_ONCE
        refusal = rejecter.events.recent().rejections[-1]
        assert (refusal.limit, refusal.event.reason) == (LIMIT, REASON.value)
        assert (refusal.event.kind, refusal.event.processor) == ("refused", 2)


async def test_delayed_rejections_are_recorded_at_once_and_counted_when_closed(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    held = round(PER_S * TICK_S)
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE + held + 1)
        assert rejecter.disconnected() == rejecter.counted() == AT_ONCE
        assert rejecter.events.recent().rejections_total == AT_ONCE + held + 1
        assert rejecter.queue() == (held + 1, held + 1)
        await trio.sleep(TICK_S * 1.5)
        left = rejecter.queue()[0]
        assert rejecter.disconnected() == rejecter.counted() == AT_ONCE + held + 1 - left
        assert 0 < left < held + 1
        await trio.sleep(1)
        assert rejecter.disconnected() == rejecter.counted() == AT_ONCE + held + 1
        assert rejecter.queue() == (0, held + 1)


async def test_second_storm_is_reported_after_quiet_time(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_rejecter(make_env) as rejecter:
        for _ in range(3):
            before = rejecter.disconnected()
            rejecter.reject(AT_ONCE + 1)
            assert rejecter.disconnected() == before + AT_ONCE
            await trio.sleep(1)
            assert rejecter.disconnected() == len(rejecter.clients)


async def test_frozen_clock_does_not_delay_closes(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed = trio.Event()

    async def sleep_real(_clock: object, _seconds: float) -> None:
        await passed.wait()

    monkeypatch.setattr(SimulatedClock, "sleep_real", sleep_real)
    autojump_clock.autojump_threshold = math.inf
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE + 1)
        await wait_all_tasks_blocked()
        assert rejecter.disconnected() == AT_ONCE
        passed.set()
        await wait_all_tasks_blocked()
        assert rejecter.disconnected() == AT_ONCE + 1


async def test_delayed_connections_are_closed_at_the_end(make_env: MakeEnvironment) -> None:
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE + 4)
    assert rejecter.disconnected() == rejecter.counted() == AT_ONCE + 4


async def test_all_are_closed_where_their_descriptors_are_needed(make_env: MakeEnvironment) -> None:
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE + 4)
        rejecter.rejected.close_all()
        assert rejecter.disconnected() == AT_ONCE + 4
        assert rejecter.queue()[0] == 0


async def test_acceptor_pauses_after_admission_during_a_storm(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_rejecter(make_env) as rejecter:
        rejecter.reject(AT_ONCE)
        await rejecter.rejected.pause()
        assert (rejecter.rejected.is_storm, trio.current_time()) == (False, 0)
        rejecter.reject(1)
        await rejecter.rejected.pause()
        assert (rejecter.rejected.is_storm, trio.current_time()) == (True, ADMIT_INTERVAL_S)
