"""Configs of a group, transactions, retention and failures, at a whole broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.metadata.image import Image
from minibroker.broker.settings import Settings
from minibroker.broker.shares import service
from minibroker.broker.shares.service import (
    ShareEnvironment,
    SharePart,
    ShareService,
    _Cached,
)
from minibroker.broker.shares.sessions import MemberKey
from minibroker.broker.shares.share_partition import (
    Acknowledgement,
    Acquired,
    AcquireLimits,
    FetchedBatch,
    SharePartition,
    ShareSettings,
)
from minibroker.broker.shares.state import ShareKey, ShareState
from minibroker.broker.shares.state_store import StateOperation, StateReply
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages import delete_records as deleting
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.messages.end_txn import EndTxnRequest
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch
from tests.broker.apis.share_client import ShareWorld, acquired, errors, share_world

ACCEPT, RELEASE = 1, 2


class Transactions:
    """A transactional producer for partition 0."""

    def __init__(self, world: ShareWorld) -> None:
        self._world = world
        self._producer = (-1, -1)

    async def _begin(self) -> None:
        client = self._world.client
        await client.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]), 4)
        request = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
        answer = await client.ask(request, 5)
        while answer.error_code == ErrorCode.CONCURRENT_TRANSACTIONS:  # Markers are written.
            await trio.sleep(0.1)
            answer = await client.ask(request, 5)
        assert answer.error_code == ErrorCode.NONE
        self._producer = answer.producer_id, answer.producer_epoch

    async def write(self, count: int) -> None:
        await self._begin()
        producer_id, epoch = self._producer
        batch = build_batch(
            [Record(at, 1, None, b"v") for at in range(count)],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=0,
            transactional=True,
        )
        data = PartitionProduceData(index=0, records=batch)
        topics = [TopicProduceData(name="t", topic_id=self._world.topic_id, partition_data=[data])]
        request = ProduceRequest(transactional_id="x", acks=-1, timeout_ms=9000, topic_data=topics)
        answer = await self._world.client.ask(request, 13)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE

    async def end(self, *, committed: bool) -> None:
        producer_id, epoch = self._producer
        request = EndTxnRequest(
            transactional_id="x",
            producer_id=producer_id,
            producer_epoch=epoch,
            committed=committed,
        )
        assert (await self._world.client.ask(request, 5)).error_code == ErrorCode.NONE


async def test_read_committed_group_gets_committed_records_only(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.configure(isolation_level="read_committed")
        member = await world.member("m")
        await member.join()
        producer = Transactions(world)
        await producer.write(3)
        assert acquired(await member.fetch(0)) == {}
        await producer.end(committed=False)
        await producer.write(2)
        await producer.end(committed=True)
        offsets: set[int] = set()
        while not offsets >= {4, 5}:  # The marker may come after the first of them.
            found = acquired(await member.fetch(max_wait_ms=2000)).get(0, [])
            offsets |= {at for first, last, _ in found for at in range(first, last + 1)}
        assert {0, 1, 2}.isdisjoint(offsets)


async def test_read_uncommitted_group_gets_all_records(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        member = await world.member("m")
        await member.join()
        await Transactions(world).write(3)
        assert acquired(await member.fetch(0)) == {0: [(0, 2, 1)]}


@pytest.mark.parametrize("load_bytes", [1, 100, 1 << 20])
async def test_records_are_looked_at_until_there_are_enough(
    load_bytes: int, tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "FIRST_LOAD_BYTES", load_bytes)
    async with share_world(tmp_path, autojump_clock) as world:
        await world.produce(0, 5, batches=6)
        member = await world.member("m")
        await member.join()
        assert acquired(await member.fetch(0, max_records=12)) == {0: [(0, 14, 1)]}
        released = [(0, 5, 9, (RELEASE,))]
        again = await member.fetch(acks=released, max_records=7)
        assert acquired(again) == {0: [(5, 9, 2), (15, 19, 1)]}
        assert acquired(await member.fetch()) == {0: [(20, 29, 1)]}


async def test_deleted_records_are_skipped(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.produce(0, 5, batches=2)
        member = await world.member("m")
        await member.join()
        assert acquired(await member.fetch(0, max_records=2)) == {0: [(0, 4, 1)]}
        partition = deleting.DeleteRecordsPartition(partition_index=0, offset=7)
        topic = deleting.DeleteRecordsTopic(name="t", partitions=[partition])
        await world.client.ask(deleting.DeleteRecordsRequest(topics=[topic], timeout_ms=9000), 2)
        late = await member.fetch(acks=[(0, 0, 4, (ACCEPT,))])
        assert errors(late) == {0: 0}
        assert acquired(late) == {0: [(7, 9, 1)]}


async def test_group_can_start_some_time_ago(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.configure(auto_offset_reset="by_duration:PT1H")
        await world.produce(0, 2)
        member = await world.member("m")
        await member.join()
        assert acquired(await member.fetch(0)) == {}


async def test_deleted_topic_is_unknown_to_members(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with share_world(tmp_path, autojump_clock) as world:
        await world.produce(0, 1)
        member = await world.member("m")
        await member.join()
        await member.fetch(0)
        topics = [DeleteTopicState(name="t")]
        await world.client.ask(DeleteTopicsRequest(topics=topics, timeout_ms=9000), 6)
        unknown = ErrorCode.UNKNOWN_TOPIC_ID
        response = await member.fetch(acks=[(0, 0, 0, (ACCEPT,))])
        (data,) = [each for topic in response.responses for each in topic.partitions]
        assert (data.error_code, data.acknowledge_error_code) == (unknown, unknown)


class SlowStates:
    """The owner of states, which stores the next change when a test lets it."""

    def __init__(self) -> None:
        self.may_store = trio.Event()

    async def request(self, _: StateOperation) -> StateReply:
        await self.may_store.wait()
        return StateReply(ErrorCode.NONE)


def share_partitions(states: SlowStates, count: int) -> tuple[ShareService, list[SharePartition]]:
    """A service with share partitions of a new group, of topic ``t``."""
    unused: Any = None
    environment = ShareEnvironment(
        settings=Settings.from_sources(),
        image=Image,
        now=trio.current_time,
        wall_ms=lambda: 0,
        partition=lambda *_: None,
        request_state=states.request,
        watch=lambda *_: None,
        unwatch=lambda *_: None,
        sleep_real=trio.sleep,
        queues=unused,
    )
    service = ShareService(environment)
    shares = [SharePartition(ShareState(0, 0, 0, 0, 0, 0, 0), 0) for _ in range(count)]
    for index, share in enumerate(shares):
        key = ShareKey("g", bytes(16), index)
        service._cache["g", "t", index] = _Cached(share, key, 0)
    return service, shares


def acquire(share: SharePartition) -> list[Acquired]:
    batch = FetchedBatch(0, 2)
    return share.acquire("m", [batch], AcquireLimits(9), ShareSettings(), trio.current_time())


async def test_end_of_a_session_leaves_the_records_of_the_next_one(
    autojump_clock: MockClock,
) -> None:
    states = SlowStates()
    service, (first, second) = share_partitions(states, 2)
    member = MemberKey("g", "m")
    await service.execute(SharePart(member, "one", 0))
    acquire(first)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.end_session, member, "one")
        await wait_all_tasks_blocked()
        await service.execute(SharePart(member, "two", 0))
        acquire(second)
        states.may_store.set()
    assert (first.acquired_count, second.acquired_count) == (0, 3)


async def test_late_end_of_a_session_leaves_the_records_of_the_next_one(
    autojump_clock: MockClock,
) -> None:
    states = SlowStates()
    states.may_store.set()
    service, [share] = share_partitions(states, 1)
    member = MemberKey("g", "m")
    await service.execute(SharePart(member, "one", 0))
    await service.execute(SharePart(member, "two", 1))
    acquire(share)
    await service.execute(SharePart(member, "one", 0, ends=True))
    assert share.acquired_count == 3
    await service.execute(SharePart(member, "two", 1, ends=True))
    assert share.acquired_count == 0


async def test_share_partition_is_kept_while_a_change_is_stored(autojump_clock: MockClock) -> None:
    """Otherwise the next session loads the state, and the late write overwrites its changes."""
    states = SlowStates()
    service, [share] = share_partitions(states, 1)
    member = MemberKey("g", "m")
    await service.execute(SharePart(member, "one", 0))
    acquire(share)
    released = (("t", 0), (Acknowledgement(0, 2, (RELEASE,)),))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.execute, SharePart(member, "one", 0, (released,)))
        await wait_all_tasks_blocked()
        await service.end_session(member, "one")
        assert [each.topic for each in service.views()] == ["t"]
        states.may_store.set()
    assert list(service.views()) == []
