"""An I/O worker with a controller and processors that the test plays."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.apis import produce
from minibroker.broker.apis.fetch import FetchPart
from minibroker.broker.apis.group_offsets import CommitPosition, OffsetCommitPart
from minibroker.broker.apis.partition_fetch import FetchQuery
from minibroker.broker.groups.events import CommitRequested
from minibroker.broker.metadata.image import (
    OFFSETS_TOPIC,
    Image,
    PartitionRegistration,
    Topic,
    TopicCreated,
    TopicDeleted,
    Update,
    apply,
    apply_update,
    offsets_partition,
    partition_owner,
)
from minibroker.broker.metrics.conditions import ConditionKind
from minibroker.broker.metrics.definitions import PURGATORY
from minibroker.broker.process.environment import (
    CONTROLLER,
    PROCESSOR,
    WORKER,
    Environment,
)
from minibroker.broker.process.messages import (
    ApiPart,
    ApiReply,
    ConditionsRequest,
    GroupsRequest,
    ImageApplied,
    LogsRequest,
    LogView,
    MetricsRequest,
    ProducerIdsRequest,
    RegisterRole,
    RoleRegistered,
)
from minibroker.broker.process.storage_watch import PROBE_S
from minibroker.broker.roles.io_worker import io_worker
from minibroker.broker.settings import Settings
from minibroker.runtime.arena import ArenaPart, Block
from minibroker.runtime.rpc import PeerFailed, PeerLost, RpcConnection
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.records import Record, build_batch
from minibroker_protocol.registry import ApiKey
from tests.broker.process.conftest import MakeEnvironment, make_env

__all__ = ["make_env"]

WORKERS = 2
PRODUCER_IDS = 3


def topic(name: str, mark: bytes, partitions: int = 2) -> Topic:
    return Topic(
        name,
        mark * 16,
        tuple(PartitionRegistration(index, 1, 0, (1,), (1,)) for index in range(partitions)),
    )


def mine(name: str) -> int:
    """A partition of a topic that worker 0 owns."""
    return next(index for index in range(WORKERS) if partition_owner(name, index, WORKERS) == 0)


class RunningWorker:
    """The worker's neighbours."""

    def __init__(self, env: Environment, nursery: trio.Nursery) -> None:
        self.env = env
        self.nursery = nursery
        self.image = Image(controller_epoch=1)
        for made in (topic("t", b"t"), topic(OFFSETS_TOPIC, b"o", 4)):
            self.image = apply(self.image, TopicCreated(made))
        self.ready = trio.Event()
        self.ended = trio.Event()
        self.scope = trio.CancelScope()
        env.ready = self.ready.set
        self.controller: RpcConnection | None = None
        self.blocks = 0
        self.has_ids = True
        self.disconnects = False
        self.part: ArenaPart = env.arena.open_part(0)

    async def live(self) -> None:
        with self.scope:
            await io_worker(self.env)
        self.ended.set()

    async def be_controller(self) -> None:
        listener = self.env.transport.listen(CONTROLLER)
        while True:
            self.controller = RpcConnection(await listener.accept(), self._answer)
            self.nursery.start_soon(self.controller.run)

    def _answer(self, request: Any) -> Any:
        if isinstance(request, RegisterRole):
            return RoleRegistered(self.image)
        if isinstance(request, ImageApplied):
            return None
        assert isinstance(request, ProducerIdsRequest)
        if self.disconnects:
            assert self.controller is not None
            self.controller.close()
            return None
        if not self.has_ids:
            return None
        self.blocks += 1
        return (self.blocks * 1000, PRODUCER_IDS)

    async def processor(self, number: int = 0, incarnation: int = 1) -> RpcConnection:
        """A life of a processor that has greeted."""
        rpc = await self.dial()
        await rpc.request(RegisterRole(PROCESSOR, number, incarnation))
        return rpc

    async def dial(self) -> RpcConnection:
        rpc = RpcConnection(await self.env.transport.connect(self.env.name))
        self.nursery.start_soon(rpc.run)
        return rpc

    async def change(self, change: Any) -> None:
        update = Update(1, self.image.number + 1, (change,))
        self.image = apply_update(self.image, update)
        assert self.controller is not None
        await self.controller.request(update)

    async def ask(self, request: Any) -> Any:
        assert self.controller is not None
        return await self.controller.request(request)

    async def block(self, value: bytes = b"v") -> Block:
        records = build_batch([Record(0, 0, None, value)])
        block = self.part.allocate_nowait(len(records))
        assert block is not None
        block.view[:] = records
        return block

    def append(self, block: Block, name: str = "t", partition: int | None = None) -> ApiPart:
        index = mine(name) if partition is None else partition
        batch = produce.ProduceBatch(name, index, block.ref(0, len(block.view)))
        return ApiPart(ApiKey.PRODUCE, produce.ProducePart((batch,), zstd_allowed=True))


@asynccontextmanager
async def running_worker(make_env: MakeEnvironment, *pairs: str) -> AsyncIterator[RunningWorker]:
    settings = Settings.from_sources(pairs=["offsets.topic.num.partitions=4", *pairs])
    async with trio.open_nursery() as nursery:
        at = RunningWorker(make_env(WORKER, 0, workers=WORKERS, settings=settings), nursery)
        nursery.start_soon(at.be_controller)
        nursery.start_soon(at.live)
        await at.ready.wait()
        yield at
        at.env.stopping.set()
        await at.ended.wait()
        nursery.cancel_scope.cancel()


def outcome(reply: ApiReply) -> produce.ProduceOutcome:
    (found,) = reply.reply.values()
    assert isinstance(found, produce.ProduceOutcome)
    return found


def wait_for(offset: int, deadline: float) -> ApiPart:
    wanted = FetchQuery("t", mine("t"), offset, 1000, -1, -1)
    return ApiPart(ApiKey.FETCH, FetchPart((wanted,), 1000, 1, deadline))


async def test_parts_are_executed_and_their_work_is_measured(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        processor = await at.processor()
        with await_block(await at.block()) as block:
            reply = await processor.request(at.append(block))
        assert isinstance(reply, ApiReply)
        assert outcome(reply).base_offset == 0
        assert reply.worked_ns > 0
        assert at.env.metrics.snapshot().logs[0].end_offset == 1


async def test_unavailable_producer_ids_are_requested_again(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        processor = await at.processor()
        at.has_ids = False
        reply = (await processor.request(ApiPart(ApiKey.INIT_PRODUCER_ID, None))).reply
        assert reply == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
        at.has_ids = True
        reply = (await processor.request(ApiPart(ApiKey.INIT_PRODUCER_ID, None))).reply
        assert reply == (ErrorCode.NONE, 1000, 0)


async def test_producer_id_while_the_controller_restarts_is_refused_until_it_is_back(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        processor = await at.processor()
        at.disconnects = True
        reply = (await processor.request(ApiPart(ApiKey.INIT_PRODUCER_ID, None))).reply
        assert reply == (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1, -1)
        at.disconnects = False
        reply = (await processor.request(ApiPart(ApiKey.INIT_PRODUCER_ID, None))).reply
        assert reply == (ErrorCode.NONE, 1000, 0)


async def test_log_that_cannot_be_opened_is_reported_until_it_can(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with running_worker(make_env) as at:
        processor = await at.processor()
        monkeypatch.setattr(os, "replace", full)
        with await_block(await at.block()) as block:
            reply = await processor.request(at.append(block))
        assert outcome(reply).error == ErrorCode.KAFKA_STORAGE_ERROR
        assert await at.ask(LogsRequest("t")) == {}
        (condition,) = await at.ask(ConditionsRequest())
        assert condition.kind is ConditionKind.STORAGE_FAILED
        assert "No space left on device" in condition.text
        monkeypatch.undo()
        await trio.sleep(PROBE_S)
        await wait_all_tasks_blocked()
        assert await at.ask(ConditionsRequest()) == ()
        with await_block(await at.block()) as block:
            assert outcome(await processor.request(at.append(block))).base_offset == 0


class await_block:  # noqa: N801 - reads as what it does
    """A block that is released when the answer is there."""

    def __init__(self, block: Block) -> None:
        self._block = block

    def __enter__(self) -> Block:
        return self._block

    def __exit__(self, *_: object) -> None:
        self._block.release()


async def test_other_workers_partitions_are_not_served(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        processor = await at.processor()
        for name, index in (("t", 1 - mine("t")), ("t", 9), ("no", 0)):
            with await_block(await at.block()) as block:
                reply = await processor.request(at.append(block, name, index))
            assert outcome(reply).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_waiting_part_does_not_block_others(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        processor, other = await at.processor(0), await at.processor(1)
        answers: list[Any] = []

        async def wait() -> None:
            answers.append((await processor.request(wait_for(0, 50)), trio.current_time()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            gauges = at.env.metrics.snapshot().gauges
            assert gauges[PURGATORY.name, ("fetch",)] == 1
            await trio.sleep(3)
            with await_block(await at.block()) as block:
                await other.request(at.append(block))
        ((reply, when),) = answers
        assert when == 3
        assert reply.reply.size > 0


async def test_cancelled_request_stops_waiting(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        processor = await at.processor()
        with trio.move_on_after(1):
            await processor.request(wait_for(0, 50))
        await wait_all_tasks_blocked()
        assert at.env.metrics.snapshot().gauges[PURGATORY.name, ("fetch",)] == 0


async def test_restarted_processor_is_answered_when_its_former_requests_ended(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        previous, other = await at.processor(0), await at.processor(1)
        lost: list[str] = []

        async def wait() -> None:
            try:
                await previous.request(wait_for(0, 50))
            except PeerLost:
                lost.append("former")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            reborn = await at.processor(0, 2)
            assert at.env.metrics.snapshot().gauges[PURGATORY.name, ("fetch",)] == 0
        assert lost == ["former"]
        for processor in (reborn, other):
            with await_block(await at.block()) as block:
                assert outcome(await processor.request(at.append(block))).error == 0


async def test_reference_of_previous_incarnation_is_not_read(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        previous = await at.processor()
        with await_block(await at.block()) as block:
            part = at.append(block)
        at.part = at.env.arena.open_part(0)
        with pytest.raises(PeerFailed, match="StaleReferenceError"):
            await previous.request(part)
        assert at.env.metrics.snapshot().logs[0].end_offset == 0


async def test_deleting_topic_deletes_its_logs(
    make_env: MakeEnvironment, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running_worker(make_env) as at:
        processor = await at.processor()
        with await_block(await at.block()) as block:
            await processor.request(at.append(block))
        answers: list[Any] = []

        async def wait() -> None:
            answers.append((await processor.request(wait_for(1, 50)), trio.current_time()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(2)
            await at.change(TopicDeleted("t", b"t" * 16))
        ((reply, when),) = answers
        assert when == 2
        assert [found.error for found in reply.reply.found.values()] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        ]
        assert not (tmp_path / f"t-{mine('t')}").exists()
        await at.change(TopicCreated(topic("t", b"n")))
        with await_block(await at.block()) as block:
            assert outcome(await processor.request(at.append(block))).base_offset == 0


@pytest.mark.parametrize("killed", [False, True])
async def test_restarted_worker_continues_from_its_logs(
    make_env: MakeEnvironment, autojump_clock: MockClock, killed: bool
) -> None:
    async with running_worker(make_env) as at:
        processor = await at.processor()
        with await_block(await at.block()) as block:
            await processor.request(at.append(block))
        if killed:
            at.scope.cancel()
            await at.ended.wait()
    async with running_worker(make_env) as at:
        views = await at.ask(LogsRequest("t"))
        assert views[mine("t")].log_end_offset == 1
        processor = await at.processor()
        with await_block(await at.block()) as block:
            assert outcome(await processor.request(at.append(block))).base_offset == 1


async def test_groups_of_unavailable_log_are_loaded_after_recovery(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    number = next(n for n in range(4) if partition_owner(OFFSETS_TOPIC, n, WORKERS) == 0)
    group_id = next(name for name in "abcdefgh" if offsets_partition(name, 4) == number)
    simple = CommitRequested(member_id="", generation=-1)
    offsets = {("t", 0): CommitPosition(7, -1, "")}
    part = OffsetCommitPart(group_id, simple, offsets, None)
    commit = ApiPart(ApiKey.OFFSET_COMMIT, part)
    async with running_worker(make_env) as at:
        directory = at.env.data_dir / f"{OFFSETS_TOPIC}-{number}"
        processor = await at.processor()
        assert (await processor.request(commit)).reply == {("t", 0): ErrorCode.NONE}
    in_the_way = directory / f"{0:020}.log"
    kept = in_the_way.rename(directory / "kept")
    in_the_way.mkdir()
    async with running_worker(make_env) as at:
        await wait_all_tasks_blocked()
        (condition,) = at.env.conditions.all()
        assert (condition.kind, condition.subject) == ("groups_not_loaded", OFFSETS_TOPIC)
        assert str(directory) in condition.text
        assert await at.ask(GroupsRequest()) == []
        await trio.sleep(20)
        assert len(at.env.conditions.all()) == 1
        in_the_way.rmdir()
        kept.rename(in_the_way)
        await trio.sleep(20)
        assert at.env.conditions.all() == ()
        assert [group.group_id for group in await at.ask(GroupsRequest())] == [group_id]


async def test_controller_gets_logs_and_groups(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        assert await at.ask(LogsRequest("t")) == {mine("t"): LogView(0, 0, 0, 0)}
        assert await at.ask(LogsRequest("no")) == {}
        assert await at.ask(GroupsRequest()) == []
        assert await at.ask(GroupsRequest("g")) is None
        assert (await at.ask(MetricsRequest())).process == "worker-0"


async def test_producer_ids_come_from_blocks(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        processor = await at.processor()
        given = []
        for _ in range(PRODUCER_IDS + 1):
            reply = await processor.request(ApiPart(ApiKey.INIT_PRODUCER_ID, None))
            given.append(reply.reply)
        assert len(set(given)) == len(given)
        assert at.blocks == 2


async def test_producer_ids_are_unique_under_concurrency(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        processor = await at.processor()
        given: list[Any] = []

        async def ask() -> None:
            reply = await processor.request(ApiPart(ApiKey.INIT_PRODUCER_ID, None))
            given.append(reply.reply)

        async with trio.open_nursery() as nursery:
            for _ in range(4 * PRODUCER_IDS):
                nursery.start_soon(ask)
        assert len(set(given)) == 4 * PRODUCER_IDS


async def test_old_records_expire_in_time(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    settings = ("log.retention.ms=60000", "log.retention.check.interval.ms=10000")
    async with running_worker(make_env, *settings) as at:
        processor = await at.processor()
        with await_block(await at.block()) as block:
            await processor.request(at.append(block))
        await trio.sleep(100)
        assert (await at.ask(LogsRequest("t")))[mine("t")].log_start_offset == 1


async def test_unknown_request_is_an_error(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_worker(make_env) as at:
        processor = await at.processor()
        with pytest.raises(PeerFailed, match="cannot handle str"):
            await processor.request("what?")
        with pytest.raises(PeerFailed, match="cannot handle str"):
            await at.ask("what?")
