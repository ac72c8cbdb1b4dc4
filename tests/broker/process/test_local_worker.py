"""Work of direct calls is charged to the worker, once."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis.base import WorkerScope
from minibroker.broker.process.local_worker import LocalWorker
from minibroker.broker.process.messages import ApiPart, ApiReply
from minibroker.runtime.worktime import Account, WorkTime

SCOPE = cast("WorkerScope", object())
PART = ApiPart(0, None)


class Timer:
    """Nanoseconds that pass only during work."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


@pytest.fixture
def timer() -> Timer:
    return Timer()


@pytest.fixture
def worker(timer: Timer) -> LocalWorker:
    return LocalWorker(WorkTime(timer))


def run(worker: LocalWorker, main: Any) -> None:
    trio.run(main, instruments=[worker.work_time], clock=MockClock(autojump_threshold=0))


def test_direct_call_is_charged_to_the_worker_and_not_to_the_connection(
    worker: LocalWorker, timer: Timer
) -> None:
    connection = Account()

    def execute(_part: ApiPart) -> ApiReply:
        timer.ns += 100
        return ApiReply("done", 100)

    async def main() -> None:
        worker.serve(SCOPE, execute)
        with worker.work_time.charge(connection):
            timer.ns += 1
            assert worker.execute(PART) == ApiReply("done", 100)
            timer.ns += 10

    run(worker, main)
    assert (connection.worked_ns, worker.worker_busy_ns()) == (11, 100)
    assert worker.processor_busy_ns() == 11


def test_call_that_waits_is_charged_to_the_worker_without_the_wait(
    worker: LocalWorker, timer: Timer
) -> None:
    connection = Account()

    async def finish() -> ApiReply:
        account = Account()
        with worker.work_time.charge(account):
            await trio.sleep(60)
            timer.ns += 100
        return ApiReply("done", account.worked_ns)

    def execute(_part: ApiPart) -> Awaitable[ApiReply]:
        return finish()

    async def main() -> None:
        worker.serve(SCOPE, execute)
        with worker.work_time.charge(connection):
            answer = worker.execute(PART)
            assert not isinstance(answer, ApiReply)
            assert await answer == ApiReply("done", 100)
            timer.ns += 1

    run(worker, main)
    assert (connection.worked_ns, worker.worker_busy_ns()) == (1, 100)


async def test_processor_waits_until_the_worker_serves(worker: LocalWorker) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.wait_serving)
        await trio.testing.wait_all_tasks_blocked()
        assert len(nursery.child_tasks) == 1
        worker.serve(SCOPE, lambda _: ApiReply(None, 0))
    assert worker.scope is SCOPE
