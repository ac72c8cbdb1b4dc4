"""Connections that the selector serves without a task, and when it starts one."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.client_connection import SCRATCH_BYTES
from minibroker.broker.network.request_loop import PER_TURN
from tests.broker.network.running_selector import (
    PATIENCE_S,
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


async def until(condition: Callable[[], object]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.lowlevel.checkpoint()


async def test_connection_without_a_task_is_served_until_its_client_disconnects(
    running: RunningSelector,
) -> None:
    connection = Connection(running, has_task=False)
    connection.send(b"1")
    await running.settle(1)
    connection.send(b"2", b"3")
    await running.settle(3)
    assert [body for _, body in running.responded] == [b"1", b"2", b"3"]
    connection.socket.shutdown(socket.SHUT_WR)
    await until(lambda: running.ended)
    connection.client.close(CloseReason.IDLE)  # Too late.
    assert (running.ended, running.started) == ([0], [])


async def test_last_request_before_the_end_of_a_stream_needs_no_task(
    running: RunningSelector,
) -> None:
    connection = Connection(running, has_task=False)
    connection.send(b"last")
    connection.socket.shutdown(socket.SHUT_WR)
    await until(lambda: running.ended)
    assert running.responded == [(0, b"last")]
    assert running.started == []


async def test_connection_that_fills_the_scratch_memory_still_needs_no_task(
    running: RunningSelector,
) -> None:
    connection = Connection(running, has_task=False)
    connection.send(os.urandom(SCRATCH_BYTES - 4))
    await running.settle(1)
    connection.send(b"next")
    await running.settle(2)
    assert (len(running.responded), running.started) == (2, [])
    [registration] = running.selector._registered.values()
    assert not registration.is_ready, "or each request would cost a further attempt to read"


async def test_task_is_started_for_what_remains_of_a_request(running: RunningSelector) -> None:
    finished: list[bytes] = []

    async def finish(body: bytes) -> None:
        await trio.lowlevel.checkpoint()
        finished.append(body)

    running.on_serve = lambda body: finish(body) if body == b"slow" else None
    connection = Connection(running, has_task=False)
    connection.send(b"slow", b"next")
    await running.settle(2)
    assert (running.started, finished) == ([0], [b"slow"])
    assert running.read == [b"next"]
    connection.send(b"third")
    await running.settle(3)
    assert running.responded[-1] == (0, b"third")
    assert running.started == [0]


async def test_task_is_started_to_raise_the_error_of_a_request(running: RunningSelector) -> None:
    running.on_serve = fail_if_bad
    connection, other = (Connection(running, has_task=False) for _ in range(2))
    connection.send(b"bad")
    other.send(b"good")
    await until(lambda: connection.returned and running.responded)
    assert str(connection.returned[0]) == "bad"
    assert running.started == [0]
    assert running.responded == [(1, b"good")]


async def test_task_is_started_to_read_a_request_that_is_incomplete(
    running: RunningSelector,
) -> None:
    connection = Connection(running, has_task=False)
    data = framed(b"long request")
    for start in range(len(data)):
        connection.socket.send(data[start : start + 1])
        await wait_all_tasks_blocked()
    await running.settle(1)
    assert (running.read, running.started) == ([b"long request"], [0])


async def test_task_is_started_to_close_a_connection_for_a_reason_of_the_broker(
    running: RunningSelector,
) -> None:
    connection = Connection(running, has_task=False)
    connection.send(b"wait forever")
    await running.settle(1)
    assert len(running.delayed) == 1
    connection.client.close(CloseReason.IDLE)
    assert len(running.delayed) == 0
    connection.client.close(CloseReason.STOPPING)
    await wait_all_tasks_blocked()
    assert running.started == [0]
    assert connection.client.scope.cancelled_caught


async def test_request_of_a_connection_that_was_closed_without_a_task_is_not_served(
    running: RunningSelector,
) -> None:
    connection, other = (Connection(running, has_task=False) for _ in range(2))
    connection.send(b"too late")
    other.send(b"fine")
    connection.client.close(CloseReason.IDLE)
    await running.settle(1)
    assert running.served == [(1, b"fine")]


async def test_few_connections_start_or_end_in_a_round_if_others_are_served(
    running: RunningSelector,
) -> None:
    order: list[bytes] = []
    ended: list[int] = []
    old = Connection(running)
    await wait_all_tasks_blocked()
    running.pacer.note_served()
    running.on_serve = order.append
    new = [Connection(running, has_task=False) for _ in range(4 * PER_TURN)]
    for connection in new:
        connection.send(b"new")
    old.send(*[b"old"] * len(new))
    await running.settle(2 * len(new))
    rounds = b",".join(order).split(b"old")
    assert max(part.count(b"new") for part in rounds) == PER_TURN
    for connection in new:
        connection.client.is_new = False
        connection.socket.shutdown(socket.SHUT_WR)
    old.send(*[b"old"] * len(new))
    running.on_serve = lambda _: ended.append(len(running.ended))
    await until(lambda: len(running.ended) == len(new))
    steps = {later - earlier for earlier, later in pairwise(ended[: len(new) // PER_TURN])}
    assert steps == {PER_TURN}
    assert running.started == []


async def test_connection_that_ends_while_it_waits_to_start_ends_once(
    running: RunningSelector,
) -> None:
    running.pacer.note_served()
    new = [Connection(running, has_task=False) for _ in range(4 * PER_TURN)]
    shut: list[Connection] = []

    def disconnect_all(_: bytes) -> None:
        while len(shut) < len(new):
            shut.append(new[len(shut)])
            shut[-1].socket.shutdown(socket.SHUT_WR)

    running.on_serve = disconnect_all
    for connection in new:
        connection.send(b"new")
    await until(lambda: len(running.ended) == len(new))
    await wait_all_tasks_blocked()
    assert (len(running.responded), len(running.ended)) == (len(new), len(new))
    assert running.started == []


async def test_all_connections_start_in_a_round_if_no_others_are_served(
    running: RunningSelector,
) -> None:
    new = [Connection(running, has_task=False) for _ in range(4 * PER_TURN)]
    open_now: list[int] = []
    running.on_serve = lambda _: open_now.append(len(running.responded))
    for connection in new:
        connection.send(b"new")
    await running.settle(len(new))
    assert open_now == [0] * len(new)
