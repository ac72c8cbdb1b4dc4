"""A waiting fetch of a whole broker is answered as soon as a record arrives."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from tests.simulation.actors import fetch_request
from tests.simulation.client import SimulatedClient
from tests.simulation.history import Partition
from tests.simulation.surroundings import LISTENER
from tests.simulation.world import scheduled_by

WAIT_MS = 60_000


@pytest.mark.parametrize("partitions", [1, 2], ids=["one owner", "several owners"])
@pytest.mark.parametrize("run", range(5))
def test_records_wake_a_waiting_fetch_at_once(
    seed: int, run: int, partitions: int, tmp_path: Path
) -> None:
    mock = MockClock(autojump_threshold=0)

    async def main() -> float:
        broker = TaskBroker(
            Settings.from_sources(), tmp_path, clock=SimulatedClock(mock), seed=seed
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(broker.run)
            clients = [SimulatedClient(await broker.sources[LISTENER].connect()) for _ in range(2)]
            topic = CreatableTopic(name="t", num_partitions=partitions, replication_factor=1)
            created = await clients[0].ask(CreateTopicsRequest(topics=[topic]), 7)
            ids = {"t": created.topics[0].topic_id}
            positions: dict[Partition, int] = {("t", index): 0 for index in range(partitions)}
            waiting = fetch_request(positions, ids, wait_ms=WAIT_MS, bytes_min=1)

            async def produce() -> None:
                # Somewhere between before the fetch and long after it, by the scheduler's chance.
                await clients[1].ask(_one_record(ids["t"], partitions - 1), 13)

            async with trio.open_nursery() as both:
                both.start_soon(produce)
                response = await clients[0].ask(waiting, 13)
            assert any(found.records for found in response.responses[0].partitions)
            await broker.stop()
        return trio.current_time()

    with scheduled_by(seed + run):
        assert trio.run(main, clock=mock) == 0.0, f"seed {seed + run}"


def _one_record(topic_id: bytes, partition: int) -> ProduceRequest:
    data = PartitionProduceData(
        index=partition, records=build_batch([Record(0, 0, None, b"value")])
    )
    return ProduceRequest(
        acks=1, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=[data])]
    )
