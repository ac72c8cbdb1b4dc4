"""What a request is answered, and what is recorded of it."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from minibroker.broker.apis.base import CloseConnection
from minibroker.broker.apis.produce import ProduceOutcome, ProducePart
from minibroker.broker.metrics.metrics import ERRORS_AT, HISTOGRAMS, OK_AT
from minibroker.broker.network.client_connection import ChannelState
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.api_versions import ApiVersionsRequest
from minibroker_protocol.registry import ApiKey
from tests.broker.network.running_handler import WORKED_NS, RunningHandler, accept, produce
from tests.simulation.client import frame


async def test_connection_is_used_before_its_answer_is_sent(running: RunningHandler) -> None:
    await running.ask(ApiVersionsRequest(), 0)
    assert running.used == [(1, ChannelState.RESPONSE_PENDING)]


async def test_error_of_a_single_partition_counts_as_an_error(running: RunningHandler) -> None:
    async def reject_one(part: ProducePart) -> dict[tuple[str, int], ProduceOutcome]:
        return {
            (batch.topic, batch.partition): ProduceOutcome(87 if batch.partition else 0)
            for batch in part.batches
        }

    def counted() -> tuple[int, int]:
        row = running.env.metrics.snapshot().rows[ApiKey.PRODUCE]
        return row[OK_AT], row[ERRORS_AT]

    for worker in running.workers:
        worker.handler = accept
    await running.ask(produce(0, 1), 9)
    assert counted() == (1, 0)
    for worker in running.workers:
        worker.handler = reject_one
    await running.ask(produce(0, 1), 9)
    assert counted() == (1, 1)


async def test_acks_zero_gets_no_response(running: RunningHandler) -> None:
    for worker in running.workers:
        worker.handler = accept
    await running.take(frame(produce(0, acks=0), 9)[4:])
    assert running.ours.state.state is ChannelState.NOT_MUTED
    response = await running.ask(ApiVersionsRequest(), 0)
    assert response.error_code == 0


async def test_acks_zero_error_closes_the_connection(running: RunningHandler) -> None:
    async def refuse(part: ProducePart) -> Any:
        refused = ProduceOutcome(ErrorCode.CORRUPT_MESSAGE)
        return {(batch.topic, batch.partition): refused for batch in part.batches}

    for worker in running.workers:
        worker.handler = refuse
    with pytest.raises(CloseConnection, match="CORRUPT_MESSAGE"):
        await running.take(frame(produce(0, acks=0), 9)[4:])
    assert running.memory_used == 0


async def test_each_request_is_counted(running: RunningHandler, autojump_clock: MockClock) -> None:
    for worker in running.workers:
        worker.handler = accept
    await running.ask(produce(0, 1), 9)
    await running.ask(ApiVersionsRequest(client_software_name="!"), 3)
    rows = running.env.metrics.snapshot().rows
    assert (rows[ApiKey.PRODUCE][OK_AT], rows[ApiKey.PRODUCE][ERRORS_AT]) == (1, 0)
    assert (rows[ApiKey.API_VERSIONS][OK_AT], rows[ApiKey.API_VERSIONS][ERRORS_AT]) == (0, 1)
    row = rows[ApiKey.PRODUCE]
    assert row[HISTOGRAMS["request_bytes"].sum_at] == len(frame(produce(0, 1), 9)) - 4
    assert row[HISTOGRAMS["response_bytes"].sum_at] > 20
    assert row[HISTOGRAMS["io"].sum_at] == 2 * WORKED_NS
