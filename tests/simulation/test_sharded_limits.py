"""Limits shared by processors that accept connections themselves, with kills and changes.

Clients connect to all of them and disconnect, limits change and roles are killed, on channels with
delays. There are never more open connections than the highest limit that was set; and when nothing
is in flight, exactly as many are admitted as the limit allows, through any processor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metrics.definitions import COUNTED, OPEN
from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.simulation.client import SimulatedClient
from tests.simulation.lag import LaggingTransport
from tests.simulation.reconnecting_clients import HELLO, HOSTS, ReconnectingClients
from tests.simulation.surroundings import LISTENER
from tests.simulation.world import logged_errors, scheduled_by

RUNS = 6
CLIENTS = 30
PROCESSORS = 3
TOTAL, PER_IP, SPECIAL = 12, 3, "10.0.0.0"
NAMES = tuple(f"processor-{number}" for number in range(PROCESSORS))
VICTIMS = (*NAMES, *NAMES, "controller", "worker-0")
ROUNDS = 40
MODE = ("acceptor.mode=sharded", f"num.network.threads={PROCESSORS}")
SETTINGS = (
    *MODE,
    f"kafka_connections_max={TOTAL}",
    f"kafka_connections_max_per_ip={PER_IP}",
    f"kafka_connections_max_overrides={SPECIAL}:5",
)
BROKER, SET = 4, 0


@asynccontextmanager
async def running(
    directory: Path, seed: int, clock: MockClock, *settings: str
) -> AsyncIterator[TaskBroker]:
    broker = TaskBroker(
        Settings.from_sources(pairs=settings),
        directory,
        clock=SimulatedClock(clock),
        seed=seed,
        transport=LaggingTransport(Random(f"{seed} lag")),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        yield broker
        await broker.stop()


def gauge(broker: TaskBroker, name: str) -> int:
    """A metric of the listener's, over all processors."""
    gauges = [broker.environment(role).metrics.snapshot().gauges for role in NAMES]
    return int(sum(each.get((name, (LISTENER,)), 0) for each in gauges))


async def come(broker: TaskBroker, host: str, part: int | None = None) -> SimulatedClient | None:
    """Return a client that was served, or None if the broker disconnected it."""
    client = SimulatedClient(await broker.sources[LISTENER].connect(host, part))
    try:
        await client.ask(HELLO, 4)
    except StreamClosed:
        return None
    return client


async def alter(client: SimulatedClient, **configs: str) -> list[int]:
    resource = AlterConfigsResource(
        resource_type=BROKER,
        resource_name="",
        configs=[
            AlterableConfig(name=name.replace("__", "."), config_operation=SET, value=value)
            for name, value in configs.items()
        ],
    )
    response = await client.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1)
    return [each.error_code for each in response.responses]


class LimitedClients(ReconnectingClients):
    """Clients, and actors that kill roles and change limits."""

    async def changer(self) -> None:
        while not self.over:
            await trio.sleep(self.random.random() * 3)
            client = SimulatedClient(await self.broker.sources[LISTENER].connect("10.1.0.1"))
            with trio.move_on_after(2):
                try:
                    total = self.random.choice((4, 8, TOTAL))
                    await alter(client, kafka_connections_max=str(total))
                except StreamClosed:
                    pass
            client.close()

    async def killer(self) -> None:
        for _ in range(ROUNDS):
            await trio.sleep(self.random.random())
            assert gauge(self.broker, OPEN.name) <= TOTAL
            self.broker.kill(self.random.choice(VICTIMS))
        self.over = True


async def check_exact(broker: TaskBroker) -> None:
    """Every limit is exact, independent of the processor that accepts a connection."""
    everywhere = range(PROCESSORS)
    assert (gauge(broker, COUNTED.name), gauge(broker, OPEN.name)) == (0, 0)
    first = await come(broker, HOSTS[1], 1)
    assert first is not None
    assert await alter(first, kafka_connections_max=str(TOTAL)) == [0]
    inside = [await come(broker, SPECIAL, at % PROCESSORS) for at in range(5)]
    inside += [await come(broker, HOSTS[1], at) for at in (0, 2)]
    for host in (SPECIAL, HOSTS[1]):
        assert [await come(broker, host, at) for at in everywhere] == [None] * PROCESSORS
    inside += [await come(broker, host, at) for host in HOSTS[2:4] for at in (0, 2)]
    assert None not in inside
    assert gauge(broker, COUNTED.name) == gauge(broker, OPEN.name) == TOTAL
    assert [await come(broker, HOSTS[5], at) for at in everywhere] == [None] * PROCESSORS
    first.close()
    await trio.sleep(1)
    assert await come(broker, HOSTS[5], 0) is not None
    assert [await come(broker, HOSTS[5], at) for at in everywhere] == [None] * PROCESSORS


def play(seed: int, directory: Path) -> LimitedClients:
    mock = MockClock(autojump_threshold=0)

    async def main() -> LimitedClients:
        async with running(directory, seed, mock, *SETTINGS) as broker:
            crowd = LimitedClients(broker, seed)
            async with trio.open_nursery() as acting:
                acting.start_soon(crowd.killer)
                acting.start_soon(crowd.changer)
                for _ in range(CLIENTS):
                    acting.start_soon(crowd.client)
            await broker.wait_ready()
            await trio.sleep(10)
            await check_exact(broker)
        return crowd

    with scheduled_by(seed), logged_errors() as errors:
        crowd = trio.run(main, clock=mock)
    assert errors == []
    return crowd


@pytest.mark.parametrize("run", range(RUNS))
def test_limits_are_exact_after_any_kill(seed: int, run: int, tmp_path: Path) -> None:
    assert play(seed + run, tmp_path).served > 100, f"seed {seed + run}"
