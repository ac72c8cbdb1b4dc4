"""A stopped broker ends at once, even if clients wait for responses."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.schema import Message
from minibroker_protocol.types import ZERO_UUID
from tests.simulation.actors import fetch_request
from tests.simulation.client import SimulatedClient
from tests.simulation.surroundings import LISTENER

WAIT_MS = 60_000
JOIN = JoinGroupRequest(
    group_id="g",
    session_timeout_ms=30_000,
    rebalance_timeout_ms=WAIT_MS,
    protocol_type="consumer",
    protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
)
FETCH = fetch_request(
    {("t", index): 0 for index in range(4)}, {"t": ZERO_UUID}, wait_ms=WAIT_MS, bytes_min=1
)


async def expect_disconnect(client: SimulatedClient, request: Message, version: int) -> None:
    with pytest.raises(StreamClosed):
        await client.ask(request, version)


@pytest.mark.parametrize(("request_", "version"), [(JOIN, 2), (FETCH, 4)], ids=["join", "fetch"])
async def test_request_that_waits_does_not_hold_a_stop_up(
    request_: Message, version: int, tmp_path: Path, mock_clock: MockClock
) -> None:
    settings = Settings.from_sources(pairs=[f"group.initial.rebalance.delay.ms={WAIT_MS}"])
    broker = TaskBroker(settings, tmp_path, clock=SimulatedClock(mock_clock), seed=1)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        client = SimulatedClient(await broker.sources[LISTENER].connect())
        topic = CreatableTopic(name="t", num_partitions=4, replication_factor=1)
        await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1_000), 5)
        nursery.start_soon(expect_disconnect, client, request_, version)
        await wait_all_tasks_blocked()
        await broker.stop()
    assert trio.current_time() == began  # not a moment of the minute that was waited for
