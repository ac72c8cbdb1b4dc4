from __future__ import annotations

import math
import threading

import pytest
import trio

from minibroker.runtime.alarms import Alarms


class Real:
    """The machine's clock, in the test's hands."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def _turns(number: int = 3) -> None:
    for _ in range(number):
        await trio.lowlevel.checkpoint()


async def test_wait_ends_at_its_deadline() -> None:
    real = Real()
    alarms = Alarms(real)
    over: list[int] = []

    async def wait(seconds: int) -> None:
        await alarms.sleep(seconds)
        over.append(seconds)

    async with trio.open_nursery() as nursery:
        for seconds in (3, 1, 2, 2):
            nursery.start_soon(wait, seconds)
        await _turns()
        assert alarms.seconds_to_next() == 1
        real.now += 0.999
        await _turns()
        assert not over
        real.now += 1.001
        await _turns()
        assert sorted(over) == [1, 2, 2]
        assert alarms.seconds_to_next() == 1
        real.now += 10
        assert alarms.seconds_to_next() == 0
        await _turns()
    assert over[-1] == 3
    assert alarms.seconds_to_next() == math.inf


async def test_loop_that_always_has_work_rings_all_the_same() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_for_ever)
        await Alarms().sleep(0.001)
        nursery.cancel_scope.cancel()


async def _for_ever() -> None:
    while True:
        await trio.lowlevel.checkpoint()


async def test_cancelled_wait_is_removed() -> None:
    real = Real()
    alarms = Alarms(real)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.sleep, 2)
        await _turns()
        with trio.move_on_after(0) as scope:
            await alarms.sleep(1)
        assert scope.cancelled_caught
        assert alarms.seconds_to_next() == 2
        real.now += 2
        await _turns()
    assert alarms.seconds_to_next() == math.inf


async def test_wait_may_start_when_another_ends() -> None:
    real = Real()
    alarms = Alarms(real)

    async def twice() -> None:
        await alarms.sleep(1)
        await alarms.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(twice)
        nursery.start_soon(alarms.sleep, 1)
        for _ in range(2):
            await _turns()
            real.now += 1
        await _turns()


async def test_waiting_takes_no_thread() -> None:
    alarms = Alarms()
    others = set(threading.enumerate())  # Other tests leave some that wait for work.
    async with trio.open_nursery() as nursery:
        for _ in range(len(others) + 1):
            nursery.start_soon(alarms.sleep, 3600)
        await _turns()
        assert not set(threading.enumerate()) - others
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seconds", [0, -1])
async def test_no_time_is_over_at_once(seconds: float) -> None:
    await Alarms().sleep(seconds)
