"""Requests of many connections served by one task, and what is left to their own tasks."""

from __future__ import annotations

import gc
import os
import socket
import weakref
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.network.client_connection import ClientConnection, InvalidRequestSize
from minibroker.broker.network.request_loop import RESPONSES_MAX, ROUND_REQUESTS_MAX
from minibroker.runtime.stream import memory_stream_pair
from minibroker.runtime.worktime import WorkTime
from tests.broker.network.running_selector import (
    PATIENCE_S,
    REQUEST_BYTES_MAX,
    Connection,
    RunningSelector,
    fail_if_bad,
    framed,
    running_selector,
)


@pytest.fixture
async def running() -> AsyncIterator[RunningSelector]:
    async with running_selector() as made:
        yield made


async def test_complete_requests_are_served_without_the_connections_task(
    running: RunningSelector,
) -> None:
    connection = Connection(running)
    for number in range(3):
        connection.send(b"%d" % number)
        await running.settle(number + 1)
    assert running.served == [(0, b"0"), (0, b"1"), (0, b"2")]
    assert connection.returned == []


async def test_pipelined_requests_of_connections_take_turns(running: RunningSelector) -> None:
    first, second = Connection(running), Connection(running)
    await wait_all_tasks_blocked()
    first.send(b"a", b"b", b"c")
    second.send(b"x", b"y", b"z")
    await running.settle(6)
    assert [number for number, _ in running.served] == [0, 1, 0, 1, 0, 1]
    assert [body for number, body in running.served if number == 0] == [b"a", b"b", b"c"]
    assert first.returned == second.returned == []


async def test_responses_are_sent_after_the_requests_of_a_round(running: RunningSelector) -> None:
    events: list[str] = []
    running.on_serve = lambda body: events.append(f"start {body.decode()}")
    running.on_respond = lambda body: events.append(f"respond {body.decode()}")
    connections = [Connection(running) for _ in range(2)]
    await wait_all_tasks_blocked()
    connections[0].send(b"a", b"c")
    connections[1].send(b"b")
    await running.settle(3)
    assert events == ["start a", "start b", "respond a", "respond b", "start c", "respond c"]


async def test_responses_of_a_long_round_are_sent_in_parts(running: RunningSelector) -> None:
    waiting: list[int] = []
    running.on_serve = lambda _: waiting.append(len(running.served) - len(running.responded))
    connections = [Connection(running) for _ in range(2 * RESPONSES_MAX)]
    await wait_all_tasks_blocked()
    for connection in connections:
        connection.send(b"x")
    await running.settle(len(connections))
    assert waiting == [*range(1, RESPONSES_MAX + 1)] * 2
    assert running.responded == running.served


async def test_task_awaits_what_remains_of_a_response(running: RunningSelector) -> None:
    finished = trio.Event()

    async def finish() -> None:
        finished.set()

    running.on_respond = lambda _: finish()
    connection = Connection(running)
    connection.send(b"large")
    with trio.fail_after(PATIENCE_S):
        await finished.wait()
    assert running.served == running.responded == [(0, b"large")]


async def test_error_of_a_response_is_raised_in_its_task_only(running: RunningSelector) -> None:
    running.on_respond = fail_if_bad
    connection, other = Connection(running), Connection(running)
    await wait_all_tasks_blocked()
    connection.send(b"bad")
    other.send(b"good")
    await running.settle(2)
    assert str(connection.returned[0]) == "bad"
    assert running.responded[-1] == (1, b"good")
    assert other.returned == []


async def test_connection_closed_by_another_request_of_the_round_gets_no_response(
    running: RunningSelector,
) -> None:
    closed, other = Connection(running), Connection(running)
    await wait_all_tasks_blocked()

    def close(body: bytes) -> None:
        if body == b"close":
            closed.client.scope.cancel()

    running.on_serve = close
    closed.send(b"first")
    other.send(b"close")
    await running.settle(2)
    assert running.responded == [(1, b"close")]


async def test_request_that_arrives_before_the_response_to_the_previous_one_waits(
    running: RunningSelector,
) -> None:
    connection, other = Connection(running), Connection(running)
    await wait_all_tasks_blocked()

    def serve(body: bytes) -> None:
        if body == b"b":  # The next round finds a request in the buffer, and one in the socket.
            connection.send(b"third")

    running.on_serve = serve
    connection.send(b"first", b"second")
    other.send(b"b")
    await running.settle(4)
    assert running.responded == running.served == [(0, b"first"), (1, b"b"), (0, b"second")]
    assert running.read == [b"third"]


async def test_task_awaits_what_remains_of_a_request(running: RunningSelector) -> None:
    finished = trio.Event()

    async def finish() -> None:
        finished.set()

    running.on_serve = lambda _: finish()
    connection = Connection(running)
    connection.send(b"slow")
    with trio.fail_after(PATIENCE_S):
        await finished.wait()
    running.on_serve = lambda _: None
    connection.send(b"next")
    await running.settle(2)
    assert [body for _, body in running.served] == [b"slow", b"next"]


async def test_task_reads_a_request_that_arrives_in_parts(running: RunningSelector) -> None:
    connection = Connection(running)
    data = framed(b"long request")
    for start in range(len(data)):
        connection.socket.send(data[start : start + 1])
        await wait_all_tasks_blocked()
    await running.settle(1)
    assert running.read == [b"long request"]
    connection.send(b"next")
    await running.settle(2)
    assert running.served == [(0, b"next")]


async def test_request_larger_than_scratch_memory_is_read_by_the_task(
    running: RunningSelector,
) -> None:
    connection = Connection(running)
    large = os.urandom(REQUEST_BYTES_MAX)
    await wait_all_tasks_blocked()
    running.nursery.start_soon(trio.to_thread.run_sync, connection.send, large, b"small")
    await running.settle(2)
    bodies = running.read + [body for _, body in running.served]
    assert bodies == [large, b"small"]


async def test_request_before_the_end_of_the_stream_is_served_and_the_task_ends(
    running: RunningSelector,
) -> None:
    connection = Connection(running)
    await wait_all_tasks_blocked()
    connection.send(b"last")
    connection.socket.shutdown(socket.SHUT_WR)
    await running.settle(1)
    with trio.fail_after(PATIENCE_S):
        while not connection.returned:
            await trio.lowlevel.checkpoint()
    assert running.served == [(0, b"last")]
    assert connection.returned == [None]


async def test_request_of_invalid_size_is_raised_in_the_task(running: RunningSelector) -> None:
    connection = Connection(running)
    other = Connection(running)
    connection.socket.sendall(b"\xff" * 8)
    other.send(b"fine")
    await running.settle(1)
    with trio.fail_after(PATIENCE_S):
        while not connection.returned:
            await trio.lowlevel.checkpoint()
    assert isinstance(connection.returned[0], InvalidRequestSize)
    assert running.served == [(1, b"fine")]


async def test_error_of_a_request_is_raised_in_its_task_only(running: RunningSelector) -> None:
    running.on_serve = fail_if_bad
    connection, other = Connection(running), Connection(running)
    await wait_all_tasks_blocked()
    connection.send(b"bad")
    other.send(b"good")
    await running.settle(2)
    assert str(connection.returned[0]) == "bad"
    assert other.returned == []


async def test_request_of_a_closed_connection_is_not_served(running: RunningSelector) -> None:
    connection, other = Connection(running), Connection(running)
    await wait_all_tasks_blocked()
    connection.send(b"too late")
    other.send(b"fine")
    connection.client.scope.cancel()
    await running.settle(1)
    assert running.served == [(1, b"fine")]


async def test_request_that_arrives_while_the_task_is_busy_is_read_by_it(
    running: RunningSelector,
) -> None:
    may_finish = trio.Event()
    running.on_serve = lambda _: may_finish.wait()
    connection = Connection(running)
    connection.send(b"slow")
    await running.settle(1)
    running.on_serve = lambda _: None
    connection.send(b"next")
    other = Connection(running)
    other.send(b"other")
    await running.settle(2)  # The selector has seen both requests.
    assert running.served == [(0, b"slow"), (1, b"other")]
    may_finish.set()
    await running.settle(3)
    assert running.read == [b"next"]
    connection.send(b"third")
    await running.settle(4)
    assert running.served[-1] == (0, b"third")


async def test_other_tasks_run_after_a_number_of_requests(running: RunningSelector) -> None:
    connection = Connection(running)
    await wait_all_tasks_blocked()
    connection.send(*[b"x"] * (4 * ROUND_REQUESTS_MAX))
    seen: list[int] = []
    with trio.fail_after(PATIENCE_S):
        while len(running.served) < 4 * ROUND_REQUESTS_MAX:
            seen.append(len(running.served))
            await trio.lowlevel.checkpoint()
    steps = [later - earlier for earlier, later in pairwise(seen)]
    assert max(steps) <= 2 * ROUND_REQUESTS_MAX  # trio may reverse the order of two tasks.


async def test_work_is_charged_to_the_connection_that_sent_the_request() -> None:
    now = 0

    def work(body: bytes) -> None:
        nonlocal now
        now += len(body)

    work_time = WorkTime(lambda: now)

    async def main() -> list[int]:
        async with trio.open_nursery() as nursery:
            running = RunningSelector(nursery)
            running.selector._work_time = work_time
            running.on_serve = work
            nursery.start_soon(running.selector.run)
            first, second = Connection(running), Connection(running)
            await wait_all_tasks_blocked()
            first.send(b"x" * 5)
            second.send(b"x" * 70)
            await running.settle(2)
            nursery.cancel_scope.cancel()
        worked = [connection.client.account.worked_ns for connection in running.connections]
        for connection in running.connections:
            connection.close()
        return worked

    worked = await trio.to_thread.run_sync(lambda: trio.run(main, instruments=[work_time]))
    assert worked == [5, 70]


async def test_stream_without_socket_is_read_by_its_task(running: RunningSelector) -> None:
    _, stream = memory_stream_pair()
    client = ClientConnection(
        AcceptedConnection("PLAINTEXT", stream.local, stream.peer, 1), stream, 0
    )
    client.reader = cast("Any", object())
    assert await running.selector.wait(client) is None
    running.selector.forget(client)


async def test_delayed_request_is_completed_after_the_request_that_wakes_it(
    running: RunningSelector,
) -> None:
    consumer, producer = Connection(running), Connection(running)
    order: list[str] = []

    def serve(body: bytes) -> None:
        if body == b"append":
            running.purgatory.wake(b"t")
        order.append(body.decode())

    running.on_serve = serve
    consumer.send(b"wait t")
    await running.settle(1)
    for number in range(2):  # The first attempt fails.
        producer.send(b"append")
        await running.settle(2 + number)
    assert order == ["append", "append", "completed"]
    assert running.completed == [0]
    assert consumer.returned == []
    consumer.send(b"next")
    await running.settle(4)
    assert running.served[-1] == (0, b"next")


async def test_delayed_request_is_completed_by_other_tasks_of_the_process(
    running: RunningSelector,
) -> None:
    consumer = Connection(running)
    consumer.send(b"wait t")
    await running.settle(1)
    for _ in range(2):
        running.purgatory.wake(b"t")
        await wait_all_tasks_blocked()
    assert running.completed == [0]


async def test_completed_delayed_request_is_freed_without_garbage_collection(
    running: RunningSelector,
) -> None:
    consumer = Connection(running)
    consumer.send(b"wait t")
    await running.settle(1)
    [request] = map(weakref.ref, running.delayed._deadlines._numbers)
    gc.disable()
    try:
        for _ in range(2):
            running.purgatory.wake(b"t")
            await wait_all_tasks_blocked()
        assert running.completed == [0]
        assert request() is None
    finally:
        gc.enable()


async def test_request_behind_a_delayed_one_waits_for_it(running: RunningSelector) -> None:
    consumer, other = Connection(running), Connection(running)
    consumer.send(b"wait t", b"second")
    await running.settle(1)
    consumer.send(b"third")
    other.send(b"other")
    await running.settle(2)
    assert [body for _, body in running.served] == [b"wait t", b"other"]
    for _ in range(2):
        running.purgatory.wake(b"t")
        await wait_all_tasks_blocked()
    await running.settle(4)
    bodies = [body for number, body in running.served if number == 0] + running.read
    assert bodies == [b"wait t", b"second", b"third"]


async def test_task_awaits_what_remains_of_a_delayed_request(running: RunningSelector) -> None:
    finished = trio.Event()

    async def finish() -> None:
        finished.set()

    consumer = Connection(running)
    consumer.send(b"wait t")
    await running.settle(1)
    running.on_serve = lambda _: finish()
    for _ in range(2):
        running.purgatory.wake(b"t")
        await wait_all_tasks_blocked()
    assert finished.is_set()
    assert len(consumer.returned) == 1


async def test_error_of_a_delayed_request_is_raised_in_its_task(running: RunningSelector) -> None:
    consumer = Connection(running)
    consumer.send(b"wait broken")
    await running.settle(1)
    running.purgatory.wake(b"broken")
    await wait_all_tasks_blocked()
    assert str(consumer.returned[0]) == "broken"
    assert running.completed == []


async def test_delayed_request_of_a_closed_connection_is_cancelled(
    running: RunningSelector,
) -> None:
    consumer = Connection(running)
    consumer.send(b"wait t")
    await running.settle(1)
    assert len(running.delayed) == 1
    consumer.client.scope.cancel()
    await wait_all_tasks_blocked()
    assert len(running.delayed) == 0
    running.purgatory.wake(b"t")
    assert running.completed == []


async def test_delayed_request_that_is_due_with_the_one_that_closes_it_gets_no_response(
    running: RunningSelector,
) -> None:
    first, second = Connection(running), Connection(running)
    for number, connection in enumerate((first, second)):
        connection.send(b"wait t")
        await running.settle(number + 1)
    running.on_serve = lambda _: second.client.scope.cancel()
    due = list(running.delayed._deadlines._numbers)
    for request in due:
        running.delayed.forget(request)
        request.attempt(is_over=True)
    for request in due:
        request.on_due()
    await wait_all_tasks_blocked()
    assert running.completed == [0]
