"""The recorder, with an owner of the topic, a controller and processors that the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.metadata.image import Image
from minibroker.broker.metrics.definitions import (
    ACTIVITY_BYTES,
    ACTIVITY_DROPPED,
    ACTIVITY_EVENTS,
)
from minibroker.broker.process.environment import CONTROLLER, RECORDER, WORKER, role_name
from minibroker.broker.process.messages import (
    ActivityAppend,
    ActivityBatch,
    ActivityWritten,
    ImageApplied,
    ProducerIdsRequest,
    RegisterRole,
    RoleRegistered,
    TailRequest,
)
from minibroker.broker.settings import FORMAT_ARROW, FORMAT_JSON, Settings
from minibroker.lab.activity.arrow_format import ArrowWriter
from minibroker.lab.activity.events import TOPIC, ConnectionActivity, pack
from minibroker.lab.observers import recorder as recorder_module
from minibroker.lab.observers.recorder import (
    BATCH_BYTES,
    BATCH_EVENTS,
    INTERVAL_S,
    MERGE_DELAY_S,
    SEQUENCE_MAX,
    recorder,
)
from minibroker.runtime.clock import SIMULATED_WALL_MS
from minibroker.runtime.rpc import Channel, RpcConnection
from minibroker_protocol.records import (
    BatchHeader,
    Record,
    build_batch,
    iter_records,
    parse_batch_header,
)
from tests.broker.process.conftest import MakeEnvironment, make_env
from tests.lab.activity.decoding import events_in

__all__ = ["make_env"]

BEGAN_US = SIMULATED_WALL_MS * 1000


def event(at_ms: float, mark: int = 0) -> ConnectionActivity:
    at_us = BEGAN_US + round(at_ms * 1000)
    return at_us, round(at_ms), ("PLAINTEXT", mark, "10.0.0.1"), "accepted", None, None


@pytest.fixture(params=[FORMAT_ARROW, FORMAT_JSON])
def make_recorder(make_env: MakeEnvironment, request: pytest.FixtureRequest) -> MakeEnvironment:
    """As ``make_env``, for each format."""
    settings = Settings.from_sources(pairs=[f"activity.format={request.param}"])
    return partial(make_env, settings=settings)


class RunningRecorder:
    """The recorder's neighbours."""

    def __init__(self, make_recorder: MakeEnvironment, nursery: trio.Nursery) -> None:
        self.env = make_recorder(RECORDER)
        self.nursery = nursery
        self.ready = trio.Event()
        self.ended = trio.Event()
        self.env.ready = self.ready.set
        self.tail = b""
        self.refusal = ""
        self.headers: list[BatchHeader] = []
        self.batches: list[int] = []
        """Numbers of their events."""
        self.events: list[dict[str, Any]] = []
        self.owner: RpcConnection | None = None
        self.dies_of_it = False
        self.ids_from = 0.0
        self.ids_given = 0

    async def live(self) -> None:
        await recorder(self.env)
        self.ended.set()

    async def be(self, name: str) -> None:
        listener = self.env.transport.listen(name)
        while True:
            rpc = RpcConnection(await listener.accept(), self._answer)
            if name != CONTROLLER:
                self.owner = rpc
            self.nursery.start_soon(rpc.run)

    def _answer(self, request: Any) -> Any:
        match request:
            case RegisterRole(role):
                assert role == RECORDER
                return RoleRegistered(Image(controller_epoch=1))
            case ImageApplied():
                return None
            case ProducerIdsRequest():
                if trio.current_time() < self.ids_from:
                    return None
                self.ids_given += 1
                return (3990 + 10 * self.ids_given, 10)
            case TailRequest(topic, partition):
                assert (topic, partition) == (TOPIC, 0)
                return self.tail
            case ActivityAppend(topic, partition, batch):
                assert (topic, partition) == (TOPIC, 0)
                return self._append(batch)
        raise AssertionError(request)

    def _append(self, batch: bytes) -> str:
        if self.refusal:
            return self.refusal
        if self.dies_of_it:
            self.dies_of_it = False
            assert self.owner is not None
            self.owner.close()
        self.headers.append(parse_batch_header(batch))
        found = [each for record in iter_records(batch) for each in events_in(record.value or b"")]
        self.batches.append(len(found))
        self.events += found
        return ""

    async def processor(self) -> Channel:
        return await self.env.transport.connect(RECORDER)

    def marks(self) -> list[int]:
        return [one["connection"] for one in self.events if one["kind"] == "connection"]

    def dropped(self) -> list[int]:
        return [one["dropped"] for one in self.events if one["kind"] == "dropped"]

    def counter(self, name: str) -> int:
        return self.env.metrics.snapshot().counters.get((name, ()), 0)


@asynccontextmanager
async def running_recorder(
    make_recorder: MakeEnvironment, tail: bytes = b"", ids_from: float = 0
) -> AsyncIterator[RunningRecorder]:
    async with trio.open_nursery() as nursery:
        at = RunningRecorder(make_recorder, nursery)
        at.tail, at.ids_from = tail, ids_from
        nursery.start_soon(at.be, CONTROLLER)
        nursery.start_soon(at.be, role_name(WORKER, 0))
        nursery.start_soon(at.live)
        await at.ready.wait()
        yield at
        at.env.stopping.set()
        await at.ended.wait()
        nursery.cancel_scope.cancel()


async def test_events_of_several_processes_are_put_in_order(
    make_recorder: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_recorder(make_recorder) as at:
        one, two = await at.processor(), await at.processor()
        await one.send(ActivityBatch(pack([event(1, 1), event(3, 3)]), 0))
        await two.send(ActivityBatch(pack([event(2, 2), event(4, 4)]), 0))
        assert await one.receive() == await two.receive() == ActivityWritten(2, 0)
        assert at.marks() == [1, 2, 3, 4]
        sequences = [one["sequence"] for one in at.events]
        assert sequences == list(range(sequences[0], sequences[0] + 4))
        assert sequences[0] > BEGAN_US
        assert at.counter(ACTIVITY_EVENTS.name) == 4
        assert at.counter(ACTIVITY_BYTES.name) == at.headers[0].size


async def test_event_waits_for_earlier_ones_of_other_processes(
    make_recorder: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_recorder(make_recorder) as at:
        one, two = await at.processor(), await at.processor()
        await one.send(ActivityBatch(pack([event(150, 2)]), 0))
        await trio.sleep(0.2)
        await two.send(ActivityBatch(pack([event(140, 1)]), 0))
        await one.receive()
        assert at.marks() == [1, 2]
        assert trio.current_time() == pytest.approx(0.150 + MERGE_DELAY_S, abs=INTERVAL_S)


async def test_batches_are_bounded(
    make_recorder: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_recorder(make_recorder) as at:
        channel = await at.processor()
        many = [event(0, mark) for mark in range(BATCH_EVENTS + 1)]
        await channel.send(ActivityBatch(pack(many), 0))
        assert await channel.receive() == ActivityWritten(len(many), 0)
        assert at.batches == [BATCH_EVENTS, 1]
        assert [header.base_sequence for header in at.headers] == [0, at.headers[0].record_count]
        names = ["x" * (BATCH_BYTES // 3) + str(number) for number in range(3)]
        large = [(BEGAN_US, 0, ("L", 1, name), "accepted", None, None) for name in names]
        await channel.send(ActivityBatch(pack(large), 0))
        await channel.receive()
        assert at.batches[2:] == [1, 2]
        sequences = [each["sequence"] for each in at.events]
        assert sequences == list(range(sequences[0], sequences[0] + len(many) + len(large)))


async def test_dropped_events_are_recorded(
    make_recorder: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_recorder(make_recorder) as at:
        one, two = await at.processor(), await at.processor()
        await one.send(ActivityBatch(pack([event(0, 1)]), 3))
        await two.send(ActivityBatch(pack([]), 4))
        assert await one.receive() == ActivityWritten(0, 3)
        assert await two.receive() == ActivityWritten(0, 4)
        assert await one.receive() == ActivityWritten(1, 0)
        assert at.dropped() == [7]
        await one.send(ActivityBatch(pack([]), 2))
        one.close()  # It dies before it hears that this is written.
        await trio.sleep(1)
        assert at.dropped() == [7, 2]


async def test_batch_is_resent_to_restarted_owner(
    make_recorder: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_recorder(make_recorder) as at:
        at.dies_of_it = True
        channel = await at.processor()
        await channel.send(ActivityBatch(pack([event(0, 1)]), 0))
        assert await channel.receive() == ActivityWritten(1, 0)
        # The owner knows by these that it has it already.
        assert at.headers[0] == at.headers[1]
        assert at.headers[0].producer_id == 4000


async def test_events_rejected_by_the_owner_are_counted(
    make_recorder: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_recorder(make_recorder) as at:
        at.refusal = "it is not here"
        channel = await at.processor()
        await channel.send(ActivityBatch(pack([event(0, 1), event(0, 2)]), 5))
        assert await channel.receive() == ActivityWritten(0, 5)
        assert await channel.receive() == ActivityWritten(2, 0)
        at.refusal = ""
        await channel.send(ActivityBatch(pack([event(1000, 3)]), 0))
        await channel.receive()
        assert at.dropped() == [7]
        assert at.marks() == [3]
        assert at.counter(ACTIVITY_DROPPED.name) == 2
        assert (at.headers[0].producer_epoch > 0, at.headers[0].base_sequence) == (True, 0)


LAST = BEGAN_US + 10**15


@pytest.mark.parametrize(
    ("tail", "least"),
    [
        (build_batch([Record(value=b'{"sequence":%d}' % number) for number in (5, LAST)]), LAST),
        (build_batch(ArrowWriter(1, 5, 1.0).records([event(1), event(2)], LAST - 1)), LAST),
        (build_batch([Record(value=b"something else")]), BEGAN_US),
        (build_batch([Record(value=None)]), BEGAN_US),
        (build_batch([Record(value=b"[]")]), BEGAN_US),
        (build_batch([Record(value=b"[" * 100_000)]), BEGAN_US),
        (build_batch([Record(value=b'{"sequence":%d}' % SEQUENCE_MAX)]), BEGAN_US),
        (build_batch([Record(value=b'{"sequence":"x"}')]), BEGAN_US),
        (build_batch([Record(value=b'{"sequence":1e999}')]), BEGAN_US),
        (b"", BEGAN_US),
    ],
)
async def test_sequence_continues_after_restart(
    make_recorder: MakeEnvironment, autojump_clock: MockClock, tail: bytes, least: int
) -> None:
    async with running_recorder(make_recorder, tail) as at:
        channel = await at.processor()
        await channel.send(ActivityBatch(pack([event(0)]), 0))
        await channel.receive()
        assert least < at.events[0]["sequence"] <= least + 2


async def test_last_events_are_written_when_the_broker_stops(
    make_recorder: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_recorder(make_recorder) as at:
        channel = await at.processor()
        await channel.send(ActivityBatch(pack([event(60_000, 1)]), 1))
        channel.close()
    assert at.marks() == [1]
    assert at.dropped() == [1]


async def test_recorder_waits_for_a_producer_id_while_none_can_be_stored(
    make_recorder: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_recorder(make_recorder, ids_from=20) as at:
        assert trio.current_time() >= 20
        channel = await at.processor()
        await channel.send(ActivityBatch(pack([event(trio.current_time(), 1)]), 0))
        await channel.receive()
        assert at.marks() == [1]


async def test_recorder_takes_a_new_producer_id_when_its_epochs_are_used_up(
    make_recorder: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "EPOCH_MAX", 3)
    async with running_recorder(make_recorder) as at:
        at.refusal = "the disk is full"
        channel = await at.processor()
        for number in range(8):
            await channel.send(ActivityBatch(pack([event(number, number)]), 0))
            await channel.receive()
        at.refusal = ""
        await channel.send(ActivityBatch(pack([event(9, 9)]), 0))
        await channel.receive()
        assert at.marks()[-1] == 9
        assert at.headers[-1].producer_id > 4000
        assert at.headers[-1].producer_epoch < 3
