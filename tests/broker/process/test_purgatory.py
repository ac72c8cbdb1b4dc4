"""Waiters of logs are woken by growth or by time, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Collection

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.roles.io_worker import Purgatory

FAR = 1000.0


class Waiters:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.purgatory: Purgatory[str] = Purgatory()
        self.woken: dict[str, float] = {}
        self._nursery = nursery

    async def start(self, name: str, keys: Collection[str], deadline: float = FAR) -> None:
        async def wait() -> None:
            await self.purgatory.wait(keys, deadline)
            self.woken[name] = trio.current_time()

        self._nursery.start_soon(wait)
        await wait_all_tasks_blocked()

    def left_behind(self) -> int:
        return len(self.purgatory._waiting) + len(self.purgatory)


async def test_growth_wakes_waiters_of_the_partition(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        waiters = Waiters(nursery)
        await waiters.start("both", ["a", "b"])
        await waiters.start("b", ["b"])
        await waiters.start("c", ["c"])
        assert len(waiters.purgatory) == 3
        waiters.purgatory.wake("nobody waits for this")
        waiters.purgatory.wake("a")
        waiters.purgatory.wake("a")
        await wait_all_tasks_blocked()
        assert list(waiters.woken) == ["both"]
        waiters.purgatory.wake("b")
        await wait_all_tasks_blocked()
        assert list(waiters.woken) == ["both", "b"]
        waiters.purgatory.wake_all()
    assert list(waiters.woken) == ["both", "b", "c"]
    assert trio.current_time() < FAR
    assert waiters.left_behind() == 0


async def test_waiter_is_woken_at_its_deadline(autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        waiters = Waiters(nursery)
        await waiters.start("late", ["a"], 9)
        await waiters.start("soon", ["a"], 5)
    assert waiters.woken == {"soon": 5, "late": 9}
    assert waiters.left_behind() == 0


async def test_cancelled_waiter_is_removed(autojump_clock: MockClock) -> None:
    purgatory: Purgatory[str] = Purgatory()
    with trio.move_on_after(1):
        await purgatory.wait(["a", "b"], FAR)
    assert len(purgatory) == 0
    assert purgatory._waiting == {}
