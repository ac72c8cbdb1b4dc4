"""Requests that wait are attempted when they are woken, and answered in time."""

from __future__ import annotations

from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.network.direct_requests import DelayedRequest, DelayedRequests
from minibroker.broker.roles.io_worker import Purgatory
from minibroker.runtime.worktime import Account, WorkTime


class Delay:
    """A request that waits until ``is_due``, at most until a deadline."""

    def __init__(self, purgatory: Purgatory[str], deadline: float) -> None:
        self.cost = SimpleNamespace(client=SimpleNamespace(account=Account()))
        self.deadline = deadline
        self.is_due = False
        self.error: Exception | None = None
        self.attempts: list[bool] = []
        self._purgatory = purgatory

    def watch(self, waiter: Any) -> None:
        self._purgatory.add(["t"], waiter)

    def unwatch(self, waiter: Any) -> None:
        self._purgatory.remove(["t"], waiter)

    def attempt(self, *, is_over: bool) -> Delay | None:
        self.attempts.append(is_over)
        if self.error is not None:
            raise self.error
        return None if self.is_due or is_over else self


class Running:
    """Waiting requests, each awaited by a task."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.purgatory: Purgatory[str] = Purgatory()
        self.requests = DelayedRequests(trio.current_time, WorkTime())
        self.answered: list[float] = []
        self.errors: list[Exception] = []
        nursery.start_soon(self.requests.run)

    def _respond(self, _: object) -> Awaitable[None] | None:
        self.answered.append(trio.current_time())
        return None

    def start(self, deadline: float) -> tuple[Delay, trio.CancelScope]:
        delay, scope = Delay(self.purgatory, deadline), trio.CancelScope()
        request = self.requests.start(cast("Any", delay), self._respond)

        async def wait() -> None:
            with scope:
                try:
                    await request
                except ValueError as error:
                    self.errors.append(error)

        self.nursery.start_soon(wait)
        return delay, scope


@pytest.fixture
def at(nursery: trio.Nursery) -> Running:
    return Running(nursery)


async def test_requests_are_answered_at_their_deadlines(
    at: Running, autojump_clock: MockClock
) -> None:
    for deadline in (3, 1, 2, 2):
        at.start(deadline)
    await trio.sleep(10)
    assert at.answered == [1, 2, 2, 3]
    assert len(at.requests) == len(at.purgatory) == 0


async def test_woken_request_is_attempted_and_answered_once(
    at: Running, autojump_clock: MockClock
) -> None:
    delay, _ = at.start(5)
    await trio.sleep(1)
    at.purgatory.wake("t")
    at.purgatory.wake("t")
    await wait_all_tasks_blocked()
    assert (delay.attempts, at.answered) == ([False], [])
    delay.is_due = True
    at.purgatory.wake("t")
    await trio.sleep(10)
    assert (delay.attempts, at.answered) == ([False, False], [1])
    assert len(at.requests) == len(at.purgatory) == 0


async def test_attended_requests_are_attempted_by_the_attendant(
    at: Running, autojump_clock: MockClock
) -> None:
    delay, _ = at.start(5)
    delay.is_due = True
    await wait_all_tasks_blocked()
    at.requests.is_attended = True
    at.purgatory.wake("t")
    await wait_all_tasks_blocked()
    assert delay.attempts == []
    at.requests.attempt_noted()
    await wait_all_tasks_blocked()
    assert (delay.attempts, at.answered) == ([False], [0])


async def test_cancelled_request_is_neither_attempted_nor_watched(
    at: Running, autojump_clock: MockClock
) -> None:
    delay, scope = at.start(5)
    await wait_all_tasks_blocked()
    at.purgatory.wake("t")
    scope.cancel()
    await trio.sleep(10)
    assert at.answered == []
    assert delay.attempts in ([], [False])
    assert len(at.requests) == len(at.purgatory) == 0


async def test_error_of_an_attempt_is_raised_where_the_request_is_awaited(
    at: Running, autojump_clock: MockClock
) -> None:
    delay, _ = at.start(5)
    other, _ = at.start(5)
    delay.error = ValueError("broken")
    await wait_all_tasks_blocked()
    at.purgatory.wake("t")
    await wait_all_tasks_blocked()
    assert at.errors == [delay.error]
    assert other.attempts == [False]
    assert len(at.requests) == len(at.purgatory) == 1


async def test_attempts_are_charged_to_the_connection() -> None:
    now = 0

    async def main() -> int:
        nonlocal now

        class Working(Delay):
            def attempt(self, *, is_over: bool) -> Delay | None:
                nonlocal now
                now += 40
                return super().attempt(is_over=is_over)

        async with trio.open_nursery() as nursery:
            requests = DelayedRequests(trio.current_time, work_time)
            nursery.start_soon(requests.run)
            purgatory: Purgatory[str] = Purgatory()
            delay = Working(purgatory, trio.current_time() + 1000)
            request: DelayedRequest = requests.start(cast("Any", delay), lambda _: None)
            purgatory.wake("t")
            await wait_all_tasks_blocked()
            request.cancel()
            nursery.cancel_scope.cancel()
        return int(delay.cost.client.account.worked_ns)

    work_time = WorkTime(lambda: now)
    assert await trio.to_thread.run_sync(lambda: trio.run(main, instruments=[work_time])) == 40
