"""A storm of clients that reconnect as soon as they are disconnected, on a complete broker.

Rejected connections are closed with a delay, so these clients reconnect less often; admitted
clients are served at once, counts exclude delayed connections, and they are closed when the broker
ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.rejected_connections import AT_ONCE, PER_S, QUEUE, TICK_S
from minibroker.broker.metrics.definitions import COUNTED, QUEUE_USED
from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from tests.simulation.client import SimulatedClient
from tests.simulation.reconnecting_clients import HELLO
from tests.simulation.surroundings import LISTENER

SHUT_OUT, GUEST = "10.0.0.1", "10.0.0.2"
STORMING = 700
STORM_S = 2
SINGLE, SHARDED = "single", "sharded"

MODES = pytest.mark.parametrize("mode", [SINGLE, SHARDED])


class Storm:
    """Clients of an address whose connections every acceptor rejects."""

    def __init__(self, broker: TaskBroker, mode: str) -> None:
        self.broker = broker
        self.acceptors = ("acceptor",) if mode == SINGLE else ("processor-0", "processor-1")
        self.hung_up = 0

    async def dial(self, number: int, host: str = SHUT_OUT) -> SimulatedClient:
        part = number % len(self.acceptors)
        return SimulatedClient(await self.broker.sources[LISTENER].connect(host, part))

    async def blow(self, number: int) -> None:
        while True:
            client = await self.dial(number)
            assert await client.wait_closed() == b"", "nothing is said to who is turned away"
            self.hung_up += 1

    def sum(self, name: str, label: str) -> float:
        return sum(
            self.broker.environment(each).metrics.snapshot().gauges.get((name, (label,)), 0)
            for each in self.acceptors
        )


@asynccontextmanager
async def broker(directory: Path, clock: MockClock, mode: str) -> AsyncIterator[Storm]:
    limits = f"kafka_connections_max_overrides={SHUT_OUT}:0"
    pairs = (f"acceptor.mode={mode}", limits, "num.network.threads=2")
    settings = Settings.from_sources(pairs=pairs)
    broker = TaskBroker(settings, directory, clock=SimulatedClock(clock), seed=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        yield Storm(broker, mode)
        await broker.stop()


@MODES
async def test_endlessly_reconnecting_client_waits_and_others_do_not(
    autojump_clock: MockClock, tmp_path: Path, mode: str
) -> None:
    async with broker(tmp_path, autojump_clock, mode) as storm, trio.open_nursery() as blowing:
        for number in range(STORMING):
            blowing.start_soon(storm.blow, number)
        await trio.sleep(STORM_S)
        slack = 2 * PER_S * TICK_S
        most = len(storm.acceptors) * AT_ONCE + STORM_S * PER_S
        assert storm.hung_up == pytest.approx(most, abs=slack)
        assert storm.sum(QUEUE_USED.name, QUEUE) == pytest.approx(STORMING, abs=slack)
        for number in range(4):
            guest = await storm.dial(number, GUEST)
            began = trio.current_time()
            await guest.ask(HELLO, 4)
            assert trio.current_time() - began <= TICK_S
        assert storm.sum(COUNTED.name, LISTENER) == 4
        blowing.cancel_scope.cancel()


@MODES
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_end_of_acceptor_closes_delayed_connections(
    autojump_clock: MockClock, tmp_path: Path, mode: str, end: str
) -> None:
    async with broker(tmp_path, autojump_clock, mode) as storm:
        clients = [await storm.dial(number) for number in range(len(storm.acceptors) * AT_ONCE)]
        await wait_all_tasks_blocked()
        assert all([await client.wait_closed() == b"" for client in clients])
        clients = [await storm.dial(number) for number in range(8)]
        await wait_all_tasks_blocked()
        assert storm.sum(QUEUE_USED.name, QUEUE) == len(clients)
        for each in storm.acceptors:
            if end == "stop":
                storm.broker.environment(each).stopping.set()
            else:
                storm.broker.kill(each)
        with trio.fail_after(TICK_S / 2):
            assert all([await client.wait_closed() == b"" for client in clients])
