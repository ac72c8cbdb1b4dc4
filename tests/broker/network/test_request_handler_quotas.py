"""A request that is counted once it is answered, whatever comes, and before anything else is."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.apis.partition_fetch import FetchReply
from minibroker.broker.metadata.image import ConfigChanged, Image, apply
from minibroker.broker.process.environment import PROCESSOR
from minibroker.broker.quotas.types import QuotaType, Tags
from minibroker.runtime.clock import whole_ms
from minibroker.runtime.stream import MEMORY_STREAM_BYTES_MAX, StreamClosed
from tests.broker.network.running_handler import (
    WORKED_NS,
    RunningHandler,
    accept,
    fetch,
    nothing,
    produce,
)
from tests.broker.process.conftest import MakeEnvironment
from tests.simulation.client import frame

CLIENT_ID = "t"
NS_PER_PERCENT_SECOND = 10_000_000
PLENTY = {
    "producer_byte_rate": "1000000000",
    "consumer_byte_rate": "1000000000",
    "request_percentage": "1000000",
}


async def give_nothing(part: Any) -> FetchReply:
    return nothing(part)


@pytest.fixture
async def running(make_env: MakeEnvironment, nursery: trio.Nursery) -> RunningHandler:
    """A handler whose client has quotas and has sent a request before."""
    running = RunningHandler(make_env(PROCESSOR, workers=2), nursery)
    quotas = running.request_handler.quota_stage.quotas
    running.request_handler.quota_stage.follow(
        apply(Image(), ConfigChanged("clients", CLIENT_ID, PLENTY))
    )
    quotas.worked(("ANONYMOUS", CLIENT_ID), 0, 0)
    running.ours.stream.before_waiting = quotas.complete_deferred
    for worker in running.workers:
        worker.handler = accept
    return running


def counted(running: RunningHandler, kind: QuotaType) -> float:
    found = running.env.ledger.entry(kind, Tags("", CLIENT_ID), whole_ms(running.env.clock.now()))
    return 0.0 if found is None else sum(sample.total for sample in found.samples)


def worked_ns(running: RunningHandler) -> int:
    return round(counted(running, QuotaType.REQUEST) * NS_PER_PERCENT_SECOND)


BYTES = len(frame(produce(0), 9)) - 4


class Watched:
    """Notes what is sent, and what was recorded just before."""

    def __init__(
        self, running: RunningHandler, kind: QuotaType, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.seen: list[float] = []
        self.sent: list[int] = []
        send_all = running.ours.stream.send_all

        async def watched(data: bytes | memoryview, *, more: bool = False) -> None:
            self.seen.append(counted(running, kind))
            self.sent.append(len(data))
            await send_all(data, more=more)

        monkeypatch.setattr(running.ours.stream, "send_all", watched)


async def test_produced_bytes_are_recorded_after_the_response(
    running: RunningHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(running, QuotaType.PRODUCE, monkeypatch)
    for number in range(3):
        response = await running.ask(produce(0), 9)
        assert response.throttle_time_ms == 0
        assert watched.seen[number] == number * BYTES
        assert counted(running, QuotaType.PRODUCE) == (number + 1) * BYTES
        assert worked_ns(running) == (number + 1) * WORKED_NS


async def test_records_of_several_owners_round_trip(
    running: RunningHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(running, QuotaType.PRODUCE, monkeypatch)
    await running.ask(produce(0, 1), 9)
    assert watched.seen == [0]
    assert worked_ns(running) == 2 * WORKED_NS


async def test_fetched_records_round_trip(
    running: RunningHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    running.workers[0].handler = give_nothing
    watched = Watched(running, QuotaType.FETCH, monkeypatch)
    await running.ask(fetch(0, min_bytes=0), 11)
    assert watched.seen == [0]
    # As Kafka counts it: with its length, without the header, which has a number then.
    assert counted(running, QuotaType.FETCH) == sum(watched.sent) - 4


async def test_deferred_request_is_recorded_before_a_wait(running: RunningHandler) -> None:
    await running.ours.stream.send_all(bytes(MEMORY_STREAM_BYTES_MAX))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(running.take, frame(produce(0), 9)[4:])
        await wait_all_tasks_blocked()
        assert counted(running, QuotaType.PRODUCE) == BYTES
        before = worked_ns(running)
        running.ours.account.worked_ns += 500
        await running.theirs.stream.receive_into(memoryview(bytearray(MEMORY_STREAM_BYTES_MAX)))
    assert counted(running, QuotaType.PRODUCE) == BYTES
    assert worked_ns(running) - before == 500


async def test_request_of_disconnected_client_is_recorded(running: RunningHandler) -> None:
    running.theirs.stream.close()
    with pytest.raises(StreamClosed):
        await running.take(frame(produce(0), 9)[4:])
    assert counted(running, QuotaType.PRODUCE) == BYTES
    assert worked_ns(running) == WORKED_NS


async def test_client_near_its_quota_is_recorded_first_and_throttled(
    running: RunningHandler, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas = {**PLENTY, "producer_byte_rate": "10"}
    running.request_handler.quota_stage.follow(
        apply(Image(), ConfigChanged("clients", CLIENT_ID, quotas))
    )
    watched = Watched(running, QuotaType.PRODUCE, monkeypatch)
    responses = [await running.ask(produce(0), 9) for _ in range(3)]
    assert watched.seen == [BYTES, 2 * BYTES, 3 * BYTES]
    assert [each.throttle_time_ms for each in responses] == [0, 0, (3 * BYTES - 100) * 100]
