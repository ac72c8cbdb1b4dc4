"""Connections of one processor take turns, however far ahead a client sends."""

from __future__ import annotations

from pathlib import Path

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.settings import Settings
from minibroker.launch.tasks import TaskBroker
from minibroker.runtime.clock import SimulatedClock
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from tests.simulation.client import SimulatedClient, frame
from tests.simulation.surroundings import LISTENER

AHEAD = 100


async def test_pipelining_client_does_not_starve_others(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    settings = Settings.from_sources(pairs=["num.network.threads=1"])
    broker = TaskBroker(settings, tmp_path, clock=SimulatedClock(mock_clock), seed=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(broker.run)
        greedy = await broker.sources[LISTENER].connect()
        patient = SimulatedClient(await broker.sources[LISTENER].connect())
        request = ApiVersionsRequest()
        await patient.ask(request, 0)
        await greedy.send_all(frame(request, 0) * AHEAD)
        await patient.ask(request, 0)
        answered = len(greedy._incoming.buffer)
        await wait_all_tasks_blocked()
        assert answered < len(greedy._incoming.buffer) / 2
        await broker.stop()
