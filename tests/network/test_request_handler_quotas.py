"""A request that is counted once it is answered, whatever comes, and before anything else is."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.apis.fetch import FetchReply
from minibroker.cluster.image import ConfigChanged, Image, apply
from minibroker.process.environment import PROCESSOR
from minibroker.quotas.entity import Tags
from minibroker.quotas.types import QuotaType
from minibroker.runtime.clock import whole_ms
from minibroker.runtime.stream import MEMORY_STREAM_BYTES_MAX, StreamClosed
from tests.network.test_request_handler import WORKED_NS, Desk, accept, fetch, nothing, produce
from tests.process.conftest import MakeEnvironment
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
async def desk(make_env: MakeEnvironment, nursery: trio.Nursery) -> Desk:
    """A handler whose client has quotas and has sent a request before."""
    desk = Desk(make_env(PROCESSOR, workers=2), nursery)
    quotas = desk.exchanges.quota_stage.quotas
    desk.exchanges.quota_stage.follow(apply(Image(), ConfigChanged("clients", CLIENT_ID, PLENTY)))
    quotas.worked(("ANONYMOUS", CLIENT_ID), 0, 0)
    desk.ours.stream.before_waiting = quotas.complete_deferred
    for worker in desk.workers:
        worker.handler = accept
    return desk


def counted(desk: Desk, kind: QuotaType) -> float:
    found = desk.env.ledger.entry(kind, Tags("", CLIENT_ID), whole_ms(desk.env.clock.now()))
    return 0.0 if found is None else sum(sample.total for sample in found.samples)


def worked_ns(desk: Desk) -> int:
    return round(counted(desk, QuotaType.REQUEST) * NS_PER_PERCENT_SECOND)


BYTES = len(frame(produce(0), 9)) - 4


class Watched:
    """Notes what is sent, and what was recorded just before."""

    def __init__(self, desk: Desk, kind: QuotaType, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[float] = []
        self.sent: list[int] = []
        send_all = desk.ours.stream.send_all

        async def watched(data: bytes | memoryview, *, more: bool = False) -> None:
            self.seen.append(counted(desk, kind))
            self.sent.append(len(data))
            await send_all(data, more=more)

        monkeypatch.setattr(desk.ours.stream, "send_all", watched)


async def test_produced_bytes_are_recorded_after_the_response(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(desk, QuotaType.PRODUCE, monkeypatch)
    for number in range(3):
        response = await desk.ask(produce(0), 9)
        assert response.throttle_time_ms == 0
        assert watched.seen[number] == number * BYTES
        assert counted(desk, QuotaType.PRODUCE) == (number + 1) * BYTES
        assert worked_ns(desk) == (number + 1) * WORKED_NS


async def test_records_of_several_owners_round_trip(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(desk, QuotaType.PRODUCE, monkeypatch)
    await desk.ask(produce(0, 1), 9)
    assert watched.seen == [0]
    assert worked_ns(desk) == 2 * WORKED_NS


async def test_fetched_records_round_trip(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.workers[0].handler = give_nothing
    watched = Watched(desk, QuotaType.FETCH, monkeypatch)
    await desk.ask(fetch(0, min_bytes=0), 11)
    assert watched.seen == [0]
    # As Kafka counts it: with its length, without the header, which has a number then.
    assert counted(desk, QuotaType.FETCH) == sum(watched.sent) - 4


async def test_deferred_request_is_recorded_before_a_wait(desk: Desk) -> None:
    await desk.ours.stream.send_all(bytes(MEMORY_STREAM_BYTES_MAX))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(desk.take, frame(produce(0), 9)[4:])
        await wait_all_tasks_blocked()
        assert counted(desk, QuotaType.PRODUCE) == BYTES
        before = worked_ns(desk)
        desk.ours.account.worked_ns += 500
        await desk.theirs.stream.receive_into(memoryview(bytearray(MEMORY_STREAM_BYTES_MAX)))
    assert counted(desk, QuotaType.PRODUCE) == BYTES
    assert worked_ns(desk) - before == 500


async def test_request_of_disconnected_client_is_recorded(desk: Desk) -> None:
    desk.theirs.stream.close()
    with pytest.raises(StreamClosed):
        await desk.take(frame(produce(0), 9)[4:])
    assert counted(desk, QuotaType.PRODUCE) == BYTES
    assert worked_ns(desk) == WORKED_NS


async def test_client_near_its_quota_is_recorded_first_and_throttled(
    desk: Desk, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    quotas = {**PLENTY, "producer_byte_rate": "10"}
    desk.exchanges.quota_stage.follow(apply(Image(), ConfigChanged("clients", CLIENT_ID, quotas)))
    watched = Watched(desk, QuotaType.PRODUCE, monkeypatch)
    responses = [await desk.ask(produce(0), 9) for _ in range(3)]
    assert watched.seen == [BYTES, 2 * BYTES, 3 * BYTES]
    assert [each.throttle_time_ms for each in responses] == [0, 0, (3 * BYTES - 100) * 100]
