"""A rebalance is held in PreparingRebalance, while members join, leave and expire."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.groups.events import JoinResult
from minibroker.broker.groups.group import GroupLimits
from minibroker.broker.groups.hooks import REBALANCE
from tests.broker.groups.held import TestHoldPoints
from tests.broker.groups.test_service import Worker

if TYPE_CHECKING:
    from tests.broker.groups.conftest import Disk, Words


@pytest.fixture
def points() -> TestHoldPoints:
    return TestHoldPoints(REBALANCE)


@pytest.fixture
async def worker(
    autojump_clock: MockClock, disk: Disk, say: type[Words], points: TestHoldPoints
) -> Worker:
    made = Worker(disk, say, GroupLimits())
    made.groups._hold_points = points
    return made


def state_of(worker: Worker) -> str:
    return worker.groups.list_groups()[0].state


async def test_held_rebalance_waits_although_its_time_has_passed(
    autojump_clock: MockClock, worker: Worker, points: TestHoldPoints
) -> None:
    joined: list[JoinResult] = []

    async def join(client_id: str) -> None:
        joined.append(await worker.join(client_id=client_id))

    async with worker.running(), trio.open_nursery() as nursery:
        nursery.start_soon(join, "a")
        await trio.sleep(250)
        assert points.held == [(REBALANCE, "g")]
        nursery.start_soon(join, "b")
        await wait_all_tasks_blocked()
        assert (joined, state_of(worker)) == ([], "PreparingRebalance")
        points.release()
        await wait_all_tasks_blocked()
        assert [each.generation for each in joined] == [1, 1]
        assert state_of(worker) == "CompletingRebalance"


async def test_member_expires_during_a_held_rebalance(
    autojump_clock: MockClock, worker: Worker, points: TestHoldPoints
) -> None:
    points.points = ()
    async with worker.running(), trio.open_nursery() as nursery:
        leader, _ = await worker.pair()
        points.points = (REBALANCE,)
        rejoined: list[JoinResult] = []

        async def rejoin() -> None:
            rejoined.append(await worker.join(leader.member_id))

        nursery.start_soon(rejoin)
        await trio.sleep(60)
        description = worker.groups.describe("g", full=True)
        assert description is not None
        assert [each.member_id for each in description.members] == [leader.member_id]
        assert state_of(worker) == "PreparingRebalance"
        points.release()
        await wait_all_tasks_blocked()
        assert [each.generation for each in rejoined] == [leader.generation + 1]


async def test_rebalance_released_early_completes_as_usual(
    autojump_clock: MockClock, worker: Worker, points: TestHoldPoints
) -> None:
    points.points = ()
    async with worker.running(), trio.open_nursery() as nursery:
        leader, other = await worker.pair()
        points.points = (REBALANCE,)
        nursery.start_soon(worker.join, leader.member_id)
        await wait_all_tasks_blocked()
        points.release()
        assert state_of(worker) == "PreparingRebalance"
        await worker.join(other.member_id)
        assert state_of(worker) == "CompletingRebalance"


async def test_release_of_a_deleted_group_changes_nothing(
    autojump_clock: MockClock, worker: Worker, points: TestHoldPoints
) -> None:
    async with worker.running(), trio.open_nursery() as nursery:
        nursery.start_soon(worker.join)
        await wait_all_tasks_blocked()
        worker.groups.reset()
        points.release()
        await wait_all_tasks_blocked()
        assert worker.groups.list_groups() == []
