"""A broker returns to a snapshot: everything that clients see is as it was.

Whole brokers on a mock clock with random changes before and after a snapshot; roles are killed
after the return, so that what is stored is compared as well.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.settings import Settings
from minibroker.lab.control.snapshots import (
    SnapshotCreation,
    restore_snapshot,
    take_snapshot,
)
from minibroker.lab.errors import Unavailable
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from tests.simulation.client import SimulatedClient
from tests.simulation.lag import LaggingTransport
from tests.simulation.random_changes import RandomChanges
from tests.simulation.surroundings import LISTENER, TWO_OF_EACH
from tests.simulation.whole_state import State, whole_state
from tests.simulation.world import scheduled_by

SETTINGS = (
    "authorizer.class.name=kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found=true",
    "log.segment.bytes=2048",
    "offsets.topic.segment.bytes=2048",
    "offsets.topic.num.partitions=3",
    "transaction.state.log.num.partitions=3",
    "group.initial.rebalance.delay.ms=0",
    "log.cleaner.enable=false",
)
LAYOUTS = {
    "one process": (),
    "two of each": TWO_OF_EACH,
    "separate": (*TWO_OF_EACH, "process.mode=separate"),
}
CHANGES = 40


class SnapshotBroker(TaskBroker):
    """A broker with a client that reads its whole state."""

    async def dial(self) -> SimulatedClient:
        return SimulatedClient(await self.sources[LISTENER].connect())

    async def state(self) -> State:
        """The state as a new client sees it once all transactions are completed."""
        client = await self.dial()
        while True:
            state = await whole_state(client)
            listed = state["transactions"]["transaction_states"]
            if not any(each["transaction_state"].startswith("Prepare") for each in listed):
                client.close()
                return state
            await trio.sleep(0.1)


@asynccontextmanager
async def running(
    directory: Path, clock: MockClock, seed: int, *pairs: str
) -> AsyncIterator[SnapshotBroker]:
    simulated = SimulatedClock(clock)
    broker = SnapshotBroker(
        Settings.from_sources(pairs=(*SETTINGS, *pairs)),
        directory,
        clock=simulated,
        seed=seed,
        transport=LaggingTransport(Random(f"{seed} lag")),
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        yield broker
        await broker.stop()


def differing(before: State, after: State) -> dict[str, tuple[Any, Any]]:
    return {
        what: (before.get(what), after.get(what))
        for what in before.keys() | after.keys()
        if before.get(what) != after.get(what)
    }


def play(seed: int, scenario: Callable[[MockClock], Any]) -> None:
    mock = MockClock(autojump_threshold=0)

    async def main() -> None:
        await scenario(mock)

    with scheduled_by(seed):
        trio.run(main, clock=mock)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("run", range(3))
def test_restore_returns_to_everything_that_clients_see(
    tmp_path: Path, seed: int, run: int, layout: str
) -> None:
    random = Random(f"{seed} {run}")

    async def scenario(mock: MockClock) -> None:
        async with running(tmp_path, mock, seed + run, *LAYOUTS[layout]) as broker:
            states: dict[str, State] = {}
            for name in ("first", "second"):
                await change(broker, random)
                states[name] = await broker.state()
                await take_snapshot(broker.control, SnapshotCreation(name))
            for name in random.choices(tuple(states), k=4):
                await change(broker, random)
                await restore_snapshot(broker.control, name)
                found = await broker.state()
                assert differing(states[name], found) == {}, f"seed {seed + run}, {name}"
            killed = random.choice(broker.role_names)
            broker.kill(killed)
            await broker.wait_ready()
            await trio.sleep(1)
            found = await broker.state()
            assert differing(states[name], found) == {}, f"seed {seed + run}, {killed} was killed"

    play(seed + run, scenario)


async def change(broker: SnapshotBroker, random: Random) -> None:
    client = await broker.dial()
    for key_type in (0, 1):
        await client.ask(FindCoordinatorRequest(key="x", key_type=key_type), 2)
    await RandomChanges(client, random, broker._clock.wall_ms).make(CHANGES)
    client.close()


async def test_waiting_fetch_is_closed_and_an_idle_connection_is_kept(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with running(tmp_path, autojump_clock, 1) as broker:
        idle, waiting = await broker.dial(), await broker.dial()
        topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        await idle.ask(CreateTopicsRequest(topics=[topic]), 7)
        await take_snapshot(broker.control, SnapshotCreation("s"))
        partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
        fetch = FetchRequest(
            max_wait_ms=600_000,
            min_bytes=1,
            topics=[FetchTopic(topic="t", partitions=[partition])],
            session_epoch=-1,
        )
        await waiting.send_request(fetch, 12)
        await trio.sleep(1)
        await restore_snapshot(broker.control, "s")
        assert await waiting.wait_closed() == b""
        assert [each.name for each in (await idle.ask(MetadataRequest(topics=None), 9)).topics]


async def test_restore_while_a_worker_is_down_fails_and_can_be_repeated(
    tmp_path: Path, autojump_clock: MockClock, seed: int
) -> None:
    random = Random(seed)
    async with running(tmp_path, autojump_clock, seed, *LAYOUTS["separate"]) as broker:
        await change(broker, random)
        before = await broker.state()
        await take_snapshot(broker.control, SnapshotCreation("s"))
        await change(broker, random)
        broker.kill("worker-1")
        await trio.lowlevel.checkpoint()
        with pytest.raises(Unavailable, match="worker-1"):
            await restore_snapshot(broker.control, "s")
        await broker.wait_ready()
        client = await broker.dial()
        assert (await client.ask(MetadataRequest(topics=None), 9)).brokers
        await restore_snapshot(broker.control, "s")
        assert differing(before, await broker.state()) == {}
