"""A broker in one event loop, for comparing the bytes of its responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import trio
from trio.testing import MockClock

from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tests.simulation.client import SimulatedClient

Answer = TypeVar("Answer")

CREATE_TOPICS = 2  # A version that every persona has.


class _Client(SimulatedClient):
    """A client that knows its broker."""

    broker: TaskBroker


async def another(client: SimulatedClient) -> SimulatedClient:
    """Another client of the same broker."""
    assert isinstance(client, _Client)
    return SimulatedClient(await client.broker.sources["PLAINTEXT"].connect())


@asynccontextmanager
async def running(
    folder: Path, clock: MockClock, mode: str, *pairs: str
) -> AsyncIterator[SimulatedClient]:
    """A client of a broker whose worker has a process of its own or not, with these settings."""
    settings = Settings.from_sources(pairs=[f"process.mode={mode}", *pairs])
    broker = TaskBroker(settings, folder, clock=SimulatedClock(clock), seed=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        client = _Client(await broker.sources["PLAINTEXT"].connect())
        client.broker = broker
        topics = [CreatableTopic(name="t", num_partitions=2, replication_factor=1)]
        await client.ask(CreateTopicsRequest(topics=topics), CREATE_TOPICS)
        yield client
        await broker.stop()


async def assert_single_step_changes_nothing(
    folder: Path, clock: MockClock, play: Callable[[SimulatedClient], Awaitable[list[Answer]]]
) -> None:
    """Play against a broker that executes requests in a single step, and one that cannot."""
    answers: dict[str, list[Answer]] = {}
    for mode in ("combined", "separate"):
        (folder / mode).mkdir()
        async with running(folder / mode, clock, mode) as client:
            answers[mode] = await play(client)
    assert answers["combined"] == answers["separate"]
