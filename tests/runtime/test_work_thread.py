"""The thread for long work: its time is measured, and it runs one function at a time."""

from __future__ import annotations

import gc
import threading
import time
import traceback
import weakref
from collections.abc import Iterator

import pytest
import trio

from minibroker.runtime.work_thread import WorkThread
from minibroker.runtime.worktime import Account, WorkTime


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Buffer:
    """Represents decompressed bytes."""


def decompress(made: list[weakref.ref[Buffer]]) -> None:
    buffer = Buffer()
    made.append(weakref.ref(buffer))
    raise ValueError("damaged")


def fail(made: list[weakref.ref[Buffer]]) -> None:
    try:
        decompress(made)
    except ValueError as error:
        raise KeyError("rejected") from error


async def test_work_thread_returns_the_result_and_adds_its_time() -> None:
    work_time = WorkTime()
    account = Account()
    with work_time.charge(account):
        assert await WorkThread(work_time).run(lambda: sum(range(100_000))) == 4_999_950_000
    assert account.worked_ns > 0


async def test_work_thread_runs_one_function_at_a_time() -> None:
    thread, running = WorkThread(WorkTime()), threading.Lock()

    def work() -> None:
        assert running.acquire(blocking=False)
        running.release()

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(thread.run, work)


async def test_steps_while_the_thread_works_are_charged_by_cpu_time() -> None:
    work_time, working, done = WorkTime(), threading.Event(), threading.Event()
    real_timer = work_time.step_timer

    def work() -> None:
        working.set()
        assert done.wait(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(WorkThread(work_time).run, work)
        while not working.is_set():
            await trio.lowlevel.checkpoint()
        assert work_time.step_timer is time.thread_time_ns
        done.set()
    assert work_time.step_timer is real_timer


async def test_work_thread_with_error_releases_buffers(without_collector: None) -> None:
    made: list[weakref.ref[Buffer]] = []
    with pytest.raises(KeyError) as caught:
        await WorkThread(WorkTime()).run(lambda: fail(made))
    assert [each() for each in made] == [None]
    assert "in decompress" in "".join(traceback.format_exception(caught.value))
