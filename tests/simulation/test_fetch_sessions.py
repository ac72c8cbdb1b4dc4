"""Fetch sessions of whole brokers, with reconnects, killed roles, and any ids and epochs.

Each client must end at the end of all partitions, with the offsets that a full fetch returns.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.fetch import FetchRequest
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from tests.broker.apis.session_client import SessionClient, forgotten_of, partitions_of, topics_of
from tests.simulation.client import SimulatedClient
from tests.simulation.surroundings import LISTENER, TWO_OF_EACH

VERSIONS = [7, 12, 13, 18]
PARTITIONS = [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
SESSION_ERRORS = {
    ErrorCode.NONE,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
}
RUN_S = 20.0


class Run:
    """One broker with producers, consumers with sessions, and clients that send anything."""

    def __init__(self, broker: TaskBroker, seed: int) -> None:
        self.broker = broker
        self.random = Random(seed)
        self.ids: dict[str, bytes] = {}
        self.sessions: list[int] = [0]
        self.is_over = False
        self.ended = trio.Event()
        """Set when the last record was produced and no process is killed any more."""

    async def connect(self) -> SimulatedClient:
        return SimulatedClient(await self.broker.sources[LISTENER].connect())

    async def ask(self, request: Any, version: int) -> Any:
        """Ask on a new connection until the broker responds."""
        while True:
            with suppress(StreamClosed):
                return await (await self.connect()).ask(request, version)
            await trio.sleep(0.1)

    async def create_topics(self) -> None:
        topics = [
            CreatableTopic(name=name, num_partitions=count, replication_factor=1)
            for name, count in (("a", 3), ("b", 2))
        ]
        await self.ask(CreateTopicsRequest(topics=topics, timeout_ms=9000), 5)
        found = await self.ask(MetadataRequest(topics=None), 12)
        self.ids = {topic.name: topic.topic_id for topic in found.topics}

    async def produce(self) -> None:
        while not self.is_over:
            topic, index = self.random.choice(PARTITIONS)
            data = PartitionProduceData(
                index=index, records=build_batch([Record(0, 1, None, b"x")])
            )
            topics = [TopicProduceData(name=topic, partition_data=[data])]
            await self.ask(ProduceRequest(acks=1, timeout_ms=1000, topic_data=topics), 9)
            await trio.sleep(self.random.random())

    async def consume(self) -> None:
        """Fetch with a session, on a new connection now and then."""
        consumer = SessionClient(self.ids)
        consumer.offsets = dict.fromkeys(PARTITIONS, 0)
        version = self.random.choice(VERSIONS)
        connection = await self.connect()
        while not self.is_over:
            if self.random.random() < 0.1:
                connection.close()
                connection = await self.connect()
            wait_ms = self.random.choice([0, 300])
            request = consumer.request(max_wait_ms=wait_ms, min_bytes=1)
            try:
                response = await connection.ask(request, version)
            except StreamClosed:
                await trio.sleep(0.1)
                connection = await self.connect()
                consumer.restart()
                continue
            if response.error_code:
                assert response.error_code in SESSION_ERRORS
                consumer.restart()
                continue
            consumer.receive(response)
            self.sessions.append(consumer.session_id)
            await trio.sleep(self.random.random() / 10)
        await self.ended.wait()
        await self.compare(consumer, connection, version)

    async def compare(
        self, consumer: SessionClient, connection: SimulatedClient, version: int
    ) -> None:
        """After two more fetches, the client must know all records and offsets."""
        for _ in range(2):
            connection, response = await self.fetch(consumer, connection, version)
            consumer.receive(response)
        topics = topics_of(consumer.offsets, self.ids)
        full = FetchRequest(session_epoch=-1, max_bytes=1 << 20, topics=topics)
        expected = partitions_of(await self.ask(full, version), self.ids)
        assert {name: data.records for name, data in expected.items() if data.records} == {}
        assert consumer.view == {
            name: (data.error_code, data.high_watermark, data.log_start_offset)
            for name, data in expected.items()
        }

    async def fetch(
        self, consumer: SessionClient, connection: SimulatedClient, version: int
    ) -> tuple[SimulatedClient, Any]:
        """Fetch until there is a response without an error, with a new session if need be."""
        while True:
            with suppress(StreamClosed):
                response = await connection.ask(consumer.request(), version)
                if not response.error_code:
                    return connection, response
            consumer.restart()
            await trio.sleep(0.1)
            connection = await self.connect()

    async def send_anything(self) -> None:
        """Send ids of other clients, ids that do not exist, and any epochs and partitions."""
        random = self.random
        while not self.is_over:
            names = [random.choice([*PARTITIONS, ("a", 9), ("z", 0)]) for _ in range(3)]
            request = FetchRequest(
                session_id=random.choice([random.choice(self.sessions), random.getrandbits(31)]),
                session_epoch=random.choice([-1, 0, 1, 2, -7, random.getrandbits(31)]),
                topics=topics_of(dict.fromkeys(names, random.choice([0, -1, 3])), self.ids),
                forgotten_topics_data=forgotten_of(random.sample(names, 2), self.ids),
                max_bytes=random.choice([-1, 1, 1 << 20]),
                isolation_level=random.choice([0, 1]),
            )
            response = await self.ask(request, random.choice(VERSIONS))
            assert response.error_code in SESSION_ERRORS
            await trio.sleep(random.random())

    async def kill(self, names: list[str]) -> None:
        while not self.is_over:
            await trio.sleep(2 + 3 * self.random.random())
            self.broker.kill(self.random.choice(names))


@pytest.mark.parametrize("slots", [1, 1000])
@pytest.mark.parametrize("mode", ["combined", "separate"])
@pytest.mark.parametrize("seed", range(3))
async def test_consumers_with_sessions_read_all_records(
    tmp_path: Path, autojump_clock: MockClock, mode: str, slots: int, seed: int
) -> None:
    pairs = [
        *TWO_OF_EACH,
        f"process.mode={mode}",
        f"max.incremental.fetch.session.cache.slots={slots}",
    ]
    settings = Settings.from_sources(pairs=pairs)
    broker = TaskBroker(settings, tmp_path, clock=SimulatedClock(autojump_clock), seed=seed)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        run = Run(broker, seed)
        await run.create_topics()
        async with trio.open_nursery() as actors:
            for actor in (run.consume, run.consume, run.consume, run.send_anything):
                actors.start_soon(actor)
            async with trio.open_nursery() as changes:
                changes.start_soon(run.produce)
                if mode == "separate":
                    changes.start_soon(run.kill, ["worker-0", "worker-1", "processor-0"])
                await trio.sleep(RUN_S)
                run.is_over = True
            run.ended.set()
        await broker.stop()
