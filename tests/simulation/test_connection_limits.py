"""Limits of connections of a complete broker with kills: counts are never wrong.

Clients connect and disconnect while acceptor, processors and controller are killed; at the end
exactly the open connections are counted, and there were never too many.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metrics.definitions import COUNTED, OPEN
from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from tests.simulation.client import SimulatedClient
from tests.simulation.lag import LaggingTransport
from tests.simulation.reconnecting_clients import HELLO, HOSTS, ReconnectingClients
from tests.simulation.surroundings import LISTENER, TWO_OF_EACH
from tests.simulation.world import logged_errors, scheduled_by

RUNS = 6
CLIENTS = 30
TOTAL, PER_IP = 12, 3
VICTIMS = ("acceptor", "processor-0", "processor-1", "controller", "worker-0")
ROUNDS = 40
SETTINGS = (*TWO_OF_EACH, f"max.connections={TOTAL}", f"max.connections.per.ip={PER_IP}")


class LimitedClients(ReconnectingClients):
    """Clients, and an actor that kills roles."""

    async def killer(self) -> None:
        for _ in range(ROUNDS):
            await trio.sleep(self.random.random())
            assert self.open() <= TOTAL
            self.broker.kill(self.random.choice(VICTIMS))
        self.over = True

    def open(self) -> int:
        """Connections that processors have, which is how the limit may be judged."""
        return sum(self._gauge(name, OPEN.name) for name in ("processor-0", "processor-1"))

    def counted(self) -> int:
        return self._gauge("acceptor", COUNTED.name)

    def _gauge(self, role: str, name: str) -> int:
        gauges = self.broker.environment(role).metrics.snapshot().gauges
        return int(gauges.get((name, (LISTENER,)), 0))


def play(seed: int, directory: Path) -> LimitedClients:
    mock = MockClock(autojump_threshold=0)

    async def main() -> LimitedClients:
        broker = TaskBroker(
            Settings.from_sources(pairs=SETTINGS),
            directory,
            clock=SimulatedClock(mock),
            seed=seed,
            transport=LaggingTransport(Random(f"{seed} lag")),
        )
        crowd = LimitedClients(broker, seed)
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            async with trio.open_nursery() as acting:
                acting.start_soon(crowd.killer)
                for _ in range(CLIENTS):
                    acting.start_soon(crowd.client)
            await broker.wait_ready()
            await trio.sleep(10)
            assert (crowd.counted(), crowd.open()) == (0, 0)
            staying = [await _come(broker, host) for host in HOSTS for _ in range(2)]
            assert crowd.counted() == crowd.open() == TOTAL
            broker.kill("acceptor")
            await broker.wait_ready()
            late = await broker.sources[LISTENER].connect("10.0.1.1")
            await trio.sleep(10)
            assert crowd.counted() == crowd.open() == TOTAL
            staying[0].close()
            await SimulatedClient(late).ask(HELLO, 4)
            await broker.stop()
        return crowd

    async def _come(broker: TaskBroker, host: str) -> SimulatedClient:
        client = SimulatedClient(await broker.sources[LISTENER].connect(host))
        await client.ask(HELLO, 4)
        return client

    with scheduled_by(seed), logged_errors() as errors:
        crowd = trio.run(main, clock=mock)
    assert errors == []
    return crowd


@pytest.mark.parametrize("run", range(RUNS))
def test_counts_are_exact_after_any_kill(seed: int, run: int, tmp_path: Path) -> None:
    assert play(seed + run, tmp_path).served > 100, f"seed {seed + run}"
