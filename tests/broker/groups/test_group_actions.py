"""Tests rebalance groups, expire and fence members, and set assignments."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.groups.events import (
    ActionTaken,
    AssignmentPlanned,
    GroupAction,
    HeartbeatReceived,
    JoinResult,
    MemberExpired,
    MemberFenced,
    RebalanceRequested,
    SyncResult,
)
from minibroker.broker.groups.group import GroupLimits
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.test_service import Worker, gather, settled

if TYPE_CHECKING:
    from tests.broker.groups.conftest import Disk, Words

OK = ErrorCode.NONE


@pytest.fixture
async def worker(autojump_clock: MockClock, disk: Disk, say: type[Words]) -> Worker:
    return Worker(disk, say, GroupLimits(initial_rebalance_delay_s=1.0))


def act(worker: Worker, event: GroupAction) -> ActionTaken:
    return worker.groups.act("g", event)


async def static_member(worker: Worker) -> JoinResult:
    """A stable group with one static member."""
    joined = await worker.join(group_instance_id="i")
    await worker.sync(joined, group_instance_id="i", assignments=((joined.member_id, b"all"),))
    return joined


async def test_members_rejoin_by_request(autojump_clock: MockClock, worker: Worker) -> None:
    async with worker.running():
        leader, other = await worker.pair()
        assert act(worker, RebalanceRequested()) == (OK, "", 2)
        assert worker.beat(leader) is worker.beat(other) is ErrorCode.REBALANCE_IN_PROGRESS
        again = await gather(
            lambda: worker.join(leader.member_id), lambda: worker.join(other.member_id)
        )
        assert [each.generation for each in again] == [leader.generation + 1] * 2


async def test_expired_member_is_unknown_and_the_others_rejoin(
    autojump_clock: MockClock, worker: Worker
) -> None:
    async with worker.running():
        leader, other = await worker.pair()
        assert act(worker, MemberExpired(other.member_id)).affected == 1
        assert worker.beat(other) is ErrorCode.UNKNOWN_MEMBER_ID
        assert worker.beat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


async def test_waiting_join_of_an_expired_member_is_answered(
    autojump_clock: MockClock, worker: Worker
) -> None:
    async with worker.running(), trio.open_nursery() as nursery:
        leader, _ = await worker.pair()
        results: list[JoinResult] = []

        async def rejoin() -> None:
            results.append(await worker.join(leader.member_id))

        nursery.start_soon(rejoin)
        await wait_all_tasks_blocked()
        act(worker, MemberExpired(leader.member_id))
        await wait_all_tasks_blocked()
        assert [each.error for each in results] == [ErrorCode.UNKNOWN_MEMBER_ID]


async def test_planned_assignment_replaces_that_of_the_leader_once(
    autojump_clock: MockClock, worker: Worker
) -> None:
    async with worker.running():
        leader, other = await worker.pair()
        planned = AssignmentPlanned({other.member_id: b"by hand"})
        assert act(worker, planned) == (OK, "", 1)
        assert await assigned(worker, leader, other) == [b"by the leader", b"by hand"]
        act(worker, RebalanceRequested())
        assert await assigned(worker, leader, other) == [b"by the leader"] * 2


async def assigned(worker: Worker, leader: JoinResult, other: JoinResult) -> list[bytes]:
    """Let two members rejoin; return their assignments."""
    first, second = await gather(
        lambda: worker.join(leader.member_id), lambda: worker.join(other.member_id)
    )
    sent = tuple((each.member_id, b"by the leader") for each in (first, second))
    synced = await gather(lambda: worker.sync(first, assignments=sent), lambda: worker.sync(second))
    return [each.assignment for each in synced]


async def test_fenced_static_member_is_replaced_by_another_id(
    autojump_clock: MockClock, worker: Worker
) -> None:
    async with worker.running():
        joined = await static_member(worker)
        assert act(worker, MemberFenced(joined.member_id)).affected == 1
        fenced = HeartbeatReceived(joined.member_id, joined.generation, "i")
        for _ in range(2):
            assert worker.groups.heartbeat("g", fenced).error is ErrorCode.FENCED_INSTANCE_ID
            worker.groups = worker.start()  # The new id is in the log.
        described = worker.groups.describe("g", full=True)
        assert described is not None
        (member,) = described.members
        assert member.member_id != joined.member_id


async def test_static_member_is_fenced_while_it_waits(
    autojump_clock: MockClock, worker: Worker
) -> None:
    async with worker.running(), trio.open_nursery() as nursery:
        joined = await worker.join(group_instance_id="i")
        other = trio.Event()
        results: list[SyncResult | JoinResult] = []

        async def join_other() -> None:
            await worker.join(client_id="other")
            other.set()

        async def rejoin() -> None:
            event = worker.say.join(0, joined.member_id, group_instance_id="i")
            results.append(await settled(worker.groups.join("g", event)))

        nursery.start_soon(join_other)
        await wait_all_tasks_blocked()
        act(worker, RebalanceRequested())
        nursery.start_soon(rejoin)
        await other.wait()
        first = results.pop()
        assert isinstance(first, JoinResult)

        async def sync() -> None:
            event = worker.say.sync(0, first.member_id, first.generation, group_instance_id="i")
            results.append(await settled(worker.groups.sync("g", event)))

        if not first.members:  # As a follower it waits for the leader's assignment.
            nursery.start_soon(sync)
            await wait_all_tasks_blocked()
        act(worker, MemberFenced(first.member_id))
        await wait_all_tasks_blocked()
        assert {each.error for each in results} <= {ErrorCode.FENCED_INSTANCE_ID}
        assert worker.groups.list_groups()[0].state == "PreparingRebalance"
        worker.groups.reset()


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (MemberExpired("nobody"), ErrorCode.UNKNOWN_MEMBER_ID),
        (MemberFenced("nobody"), ErrorCode.UNKNOWN_MEMBER_ID),
        (AssignmentPlanned({"nobody": b""}), ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
async def test_unknown_member_is_rejected(
    autojump_clock: MockClock, worker: Worker, event: GroupAction, error: ErrorCode
) -> None:
    async with worker.running():
        await worker.pair()
        assert act(worker, event).error is error
        assert worker.groups.list_groups()[0].state == "Stable"


async def test_impossible_actions_are_rejected(autojump_clock: MockClock, worker: Worker) -> None:
    assert act(worker, RebalanceRequested()).error is ErrorCode.GROUP_ID_NOT_FOUND
    async with worker.running():
        joined = await worker.join(protocol_type="connect")
        assert act(worker, MemberFenced(joined.member_id)).error is ErrorCode.FENCED_INSTANCE_ID
        planned = AssignmentPlanned({joined.member_id: b""})
        assert act(worker, planned).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        act(worker, MemberExpired(joined.member_id))
        assert act(worker, RebalanceRequested()).error is ErrorCode.UNKNOWN_MEMBER_ID
