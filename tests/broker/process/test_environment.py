"""Names of roles, and notes of a process."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.apis.base import WorkerScope
from minibroker.broker.process.environment import (
    ACCEPTOR,
    CONTROLLER,
    PROCESSOR,
    WORKER,
    Environment,
    LocalWorker,
    handoff_name,
    note,
    note_clock,
    note_state,
    note_topics,
    role_name,
)
from minibroker.broker.process.messages import ApiPart, ApiReply
from minibroker.runtime.worktime import Account, WorkTime
from tests.broker.process.conftest import MakeEnvironment


@pytest.mark.parametrize(
    ("role", "name"),
    [
        (ACCEPTOR, "acceptor"),
        (CONTROLLER, "controller"),
        (PROCESSOR, "processor-1"),
        (WORKER, "worker-1"),
    ],
)
def test_repeated_roles_are_numbered(make_env: MakeEnvironment, role: str, name: str) -> None:
    assert role_name(role, 1) == name
    assert make_env(role, 1).name == name


def test_socket_channel_has_its_own_name() -> None:
    assert handoff_name(1) not in (role_name(PROCESSOR, 1), handoff_name(0))


def test_each_incarnation_has_its_own_stop_event(make_env: MakeEnvironment) -> None:
    first, second = make_env(WORKER), make_env(WORKER)
    first.stopping.set()
    assert not second.stopping.is_set()


def listen(env: Environment) -> list[tuple[str, dict[str, Any]]]:
    """Return the kinds and details of the notes from now on."""
    heard: list[tuple[str, dict[str, Any]]] = []
    env.on_note = lambda kind, details, *_: heard.append((kind, details))
    return heard


async def test_notes_without_a_listener_are_lost(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    note(env, "clock", {})
    note_topics(env, [], ["t"])
    assert listen(env) == []


async def test_note_has_its_connection_and_request(make_env: MakeEnvironment) -> None:
    env, heard = make_env(WORKER), []
    env.on_note = lambda *note: heard.append(note)
    note(env, "fault", {"rule": "1"}, (7, "10.0.0.1", 5000), (0, 9, 1, "etl"))
    assert heard == [("fault", {"rule": "1"}, (7, "10.0.0.1", 5000), (0, 9, 1, "etl"))]


async def test_changed_state_is_noted(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    heard = listen(env)
    note_state(env, "group", "g", "Empty", "Stable")
    assert heard == [("state", {"what": "group", "name": "g", "from": "Empty", "to": "Stable"})]


async def test_changed_clock_is_noted_with_both_times(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    env = make_env(WORKER)
    heard = listen(env)
    before = env.clock.wall_ms()
    env.clock.advance(5000)
    note_clock(env, before)
    ((kind, details),) = heard
    assert (kind, details["to"]) == ("clock", before + 5000)
    assert (details["from"], details["frozen"]) == (before, False)


async def test_created_and_deleted_topics_are_noted(make_env: MakeEnvironment) -> None:
    env = make_env(WORKER)
    heard = listen(env)
    note_topics(env, ["a", "b"], ["b", "c"])
    changes = [(details["name"], details["to"]) for _, details in heard]
    assert changes == [("a", None), ("c", "exists")]


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
