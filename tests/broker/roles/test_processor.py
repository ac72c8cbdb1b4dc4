"""A processor between an acceptor, workers and a controller."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.rejected_connections import ProcessorConnections
from minibroker.broker.apis.partition_fetch import FetchReply, FetchResult
from minibroker.broker.log.log import FileSlice
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.process.environment import (
    handoff_name,
)
from minibroker.broker.process.messages import (
    DetailsRequest,
    RegisterRole,
)
from minibroker.broker.roles import processor as processor_module
from minibroker.broker.roles.processor import (
    DRAIN_S,
    ROUTES_KEPT_S,
    ConnectedAddresses,
    Route,
    is_direct,
)
from minibroker.runtime.clock import SimulatedClock
from minibroker.runtime.stream import MemoryStream, StreamClosed
from minibroker_protocol.registry import ApiKey
from tests.broker.process.conftest import MakeEnvironment
from tests.broker.roles.running_processor import (
    HELLO,
    LOOK,
    RunningProcessor,
    connected_both_ways,
    running_processor,
)
from tests.simulation.actors import fetch_request
from tests.simulation.client import frame

# ----------------------- Which address a client of a listener that is advertised by connection gets


CONTAINER = "172.17.0.2"
ROUTES: list[Route] = [
    ("0.0.0.0/0.0.0.0", "172.17.0.1"),
    ("172.17.0.0/255.255.0.0", None),
    ("fd00::/64", None),
    ("::/0", "fd00::1"),
]
"""A container's, as `own_routes` returns them."""


@pytest.mark.parametrize(
    ("local", "client", "is_directly_connected"),
    [
        pytest.param(CONTAINER, "172.17.0.3", True, id="another container of the network"),
        pytest.param(CONTAINER, "172.17.0.1", False, id="the gateway, for a published port"),
        pytest.param(CONTAINER, CONTAINER, False, id="the container's own address"),
        pytest.param(CONTAINER, "192.168.65.1", False, id="Docker Desktop"),
        pytest.param(CONTAINER, "140.82.112.4", False, id="another host"),
        pytest.param("127.0.0.1", "127.0.0.1", True, id="inside of the container"),
        pytest.param("::1", "::1", True, id="inside of the container with IPv6"),
        pytest.param("fd00::2", "fd00::3", True, id="another container with IPv6"),
        pytest.param("fd00::2", "fd00::1", False, id="the gateway with IPv6"),
        pytest.param("fd00::2", "2001:db8::7", False, id="another host with IPv6"),
    ],
)
def test_client_connected_directly_if_it_is_in_a_network_of_the_broker(
    local: str, client: str, is_directly_connected: bool
) -> None:
    assert is_direct(local, client, ROUTES) == is_directly_connected


def test_default_route_without_gateway_is_no_network() -> None:
    assert not is_direct(CONTAINER, "8.8.8.8", [("0.0.0.0/0", None), ("172.17.0.0/16", None)])


def test_every_other_host_connects_directly_if_no_route_is_known() -> None:
    assert is_direct(CONTAINER, "10.0.0.7", [])
    assert not is_direct(CONTAINER, CONTAINER, [])


def test_address_of_direct_client_is_that_of_its_connection() -> None:
    addresses = ConnectedAddresses(lambda: ROUTES)
    assert addresses.find((CONTAINER, 9092), "172.17.0.3", 0.0) == (CONTAINER, 9092)
    assert addresses.find((CONTAINER, 9092), "172.17.0.1", 0.0) is None
    mapped = addresses.find((f"::ffff:{CONTAINER}", 9092), "::ffff:172.17.0.3", 0.0)
    assert mapped == (CONTAINER, 9092)


def test_routes_are_read_again_after_a_second() -> None:
    later: list[list[Route]] = [ROUTES, [*ROUTES, ("10.5.0.0/16", None)]]
    addresses = ConnectedAddresses(lambda: later.pop(0))
    local, client = ("10.5.0.2", 9092), "10.5.0.9"
    assert addresses.find(local, client, 7.0) is None
    assert addresses.find(local, client, 7.0 + ROUTES_KEPT_S / 2) is None
    assert addresses.find(local, client, 7.0 + ROUTES_KEPT_S) == local


@connected_both_ways
async def test_processor_receives_nothing_before_every_worker_has_answered(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env, ready=False, workers=2) as at:
        await wait_all_tasks_blocked()
        at.handoff = await at.env.transport.connect_handoff(handoff_name(0))
        with trio.move_on_after(0) as scope:
            await at.handoff.receive()
        await wait_all_tasks_blocked()
        assert scope.cancelled_caught
        assert (at.greeted, at.ready.is_set()) == (0, False)
        at.may_end.set()
        assert (await at.handoff.receive())[0] == ProcessorConnections((), more=False)
        assert (at.greeted, at.ready.is_set()) == (2, True)


@connected_both_ways
async def test_slot_is_freed_when_its_connection_is_taken(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        clients = [await at.connect() for _ in range(25)]
        for client in clients:
            assert (await client.ask(HELLO, 4)).error_code == 0
        assert at.still_open() == 25


@connected_both_ways
async def test_group_shows_its_connections(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        client = await at.connect()
        await client.ask(HELLO, 4)
        assert at.controller is not None
        await trio.sleep(2)
        report = await at.controller.request(DetailsRequest())
        (view,) = report.connections
        assert (view.host, view.port, view.software_name) == ("10.0.0.1", 1001, "me")
        assert trio.current_time() - view.used == 2
        client.close()
        await wait_all_tasks_blocked()
        report = await at.controller.request(DetailsRequest())
        assert (report.connections, report.connections_total) == ((), 0)
        (closed,) = report.recent.events
        assert (closed.kind, closed.number, closed.reason) == (
            "closed",
            view.number,
            "client_closed",
        )


@connected_both_ways
async def test_address_shows_oldest_connections_and_total(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_module, "CONNECTIONS_SHOWN_MAX", 2)
    async with running_processor(make_env) as at:
        for _ in range(3):
            await (await at.connect()).ask(HELLO, 4)
        assert at.controller is not None
        report = await at.controller.request(DetailsRequest())
        assert report.connections_total == 3
        assert [view.port for view in report.connections] == [1001, 1002]


@connected_both_ways
async def test_restarted_acceptor_is_joined_and_connections_stay_open(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        old = await at.connect()
        assert at.handoff is not None
        at.handoff.close()
        await at.accept()
        new = await at.connect()
        for client in (old, new):
            assert (await client.ask(HELLO, 4)).error_code == 0


@connected_both_ways
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", CloseReason.CLIENT_CLOSED),
        (frame(HELLO, 4), CloseReason.CLIENT_CLOSED),
        (b"\0\0", CloseReason.PARTIAL_REQUEST),
        (b"\x7f\xff\xff\xff", CloseReason.FRAME_TOO_LARGE),
        (b"GET / HTTP/1.1\r\n", CloseReason.BAD_FRAME),
        (b"\0\0\0\4\0\x12\0\0", CloseReason.BAD_REQUEST),
        (b"\0\0\0\x0a" + b"\0" * 10, CloseReason.UNSUPPORTED_VERSION),
    ],
    ids=lambda value: value.value if isinstance(value, CloseReason) else "",
)
async def test_each_connection_ends_with_one_reason(
    make_env: MakeEnvironment, autojump_clock: MockClock, data: bytes, reason: CloseReason
) -> None:
    async with running_processor(make_env) as at:
        other, client = await at.connect(), await at.connect()
        await client.stream.send_all(data)
        client.end_sending()
        await client.wait_closed()
        assert at.closed() == {reason: 1}
        assert at.still_open() == 1
        assert (await other.ask(HELLO, 4)).error_code == 0


async def test_reset_connection_is_counted_as_reset(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        at.answering = trio.Event()
        client = await at.connect()
        await client.send_request(LOOK, 1)
        await wait_all_tasks_blocked()
        client.close()
        at.answering.set()
        await wait_all_tasks_blocked()
        assert at.closed() == {CloseReason.CLIENT_RESET: 1}


@connected_both_ways
async def test_dead_worker_closes_the_connections_that_wait_for_it(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        at.answering = trio.Event()
        asking, other = await at.connect(), await at.connect()
        await asking.send_request(LOOK, 1)
        await wait_all_tasks_blocked()
        assert len(at.asked) == 1
        at.workers[0].close()
        await asking.wait_closed()
        assert at.closed() == {CloseReason.PEER_LOST: 1}
        at.answering.set()
        assert (await other.ask(LOOK, 1)).topics[0].name == "t"  # By its next life.


@connected_both_ways
async def test_failing_worker_closes_the_connection_that_waits_for_it(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(self: RunningProcessor, request: Any) -> Any:
        if isinstance(request, RegisterRole):
            return None
        raise ZeroDivisionError

    monkeypatch.setattr(RunningProcessor, "_answer", fail)
    async with running_processor(make_env) as at:
        client = await at.connect()
        await client.send_request(LOOK, 1)
        await client.wait_closed()
        assert at.closed() == {CloseReason.INTERNAL_ERROR: 1}


@connected_both_ways
async def test_records_that_are_deleted_before_they_are_sent_end_the_connection(
    make_env: MakeEnvironment, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with running_processor(make_env) as at:
        gone = FetchResult(0, FileSlice(str(tmp_path / "gone.log"), 0, 10), 1, 0)
        at.reply = FetchReply({("t", 0): gone}, 10, failed=False, due=True)
        client = await at.connect()
        positions = {("t", 0): 0}
        await client.send_request(fetch_request(positions, {"t": b""}, wait_ms=0, bytes_min=0), 12)
        assert await client.wait_closed() == b""
        assert at.closed() == {CloseReason.RECORDS_GONE: 1}


@connected_both_ways
async def test_silent_connections_are_closed_in_time(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env, "connections.max.idle.ms=10000") as at:
        silent, talking = await at.connect(), await at.connect()
        for _ in range(3):
            await trio.sleep(4)
            await talking.ask(HELLO, 4)
        assert at.closed() == {CloseReason.IDLE: 1}
        assert await silent.wait_closed() == b""
        await trio.sleep(9.9)
        assert at.still_open() == 1
        await trio.sleep(0.2)
        assert at.closed() == {CloseReason.IDLE: 2}


@connected_both_ways
async def test_sent_response_counts_as_use(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env, "connections.max.idle.ms=10000") as at:
        at.answering = trio.Event()
        client = await at.connect()
        await client.send_request(LOOK, 1)
        await trio.sleep(8)
        at.answering.set()
        await client.answer(ApiKey.LIST_OFFSETS, 1)
        await trio.sleep(9.9)
        assert at.still_open() == 1
        await trio.sleep(0.2)
        assert at.closed() == {CloseReason.IDLE: 1}


@connected_both_ways
async def test_connections_never_expire_with_idle_limit_disabled(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env, "connections.max.idle.ms=-1") as at:
        await at.connect()
        await trio.sleep(80_000)
        assert at.still_open() == 1


@connected_both_ways
async def test_long_polls_do_not_delay_other_requests(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env, "queued.max.requests=1") as at:
        at.answering = trio.Event()
        poll = fetch_request({("t", 0): 0}, {"t": b""}, wait_ms=1000, bytes_min=1)
        for _ in range(3):
            waiting = await at.connect()
            await waiting.send_request(poll, 12)
        await wait_all_tasks_blocked()
        assert len(at.asked) == 3
        other = await at.connect()
        await other.send_request(LOOK, 1)
        await wait_all_tasks_blocked()
        assert len(at.asked) == 4
        at.reply = FetchReply({}, 0, failed=False, due=True)


@connected_both_ways
async def test_at_the_end_idle_connections_close_and_requests_are_answered(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        at.answering = trio.Event()
        idle, asking = await at.connect(), await at.connect()
        await asking.send_request(LOOK, 1)
        await wait_all_tasks_blocked()
        at.env.stopping.set()
        assert await idle.wait_closed() == b""
        late = await at.hand_over()
        began = trio.current_time()
        assert await late.wait_closed() == b""
        assert trio.current_time() == began
        at.answering.set()
        assert (await asking.answer(2, 1)).topics[0].name == "t"
        assert await asking.wait_closed() == b""
        assert at.closed() == {CloseReason.STOPPING: 3}


async def test_at_the_end_a_client_that_does_not_read_is_not_waited_for_long(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        at.answering = trio.Event()
        client = await at.connect()
        # The pipe to the client is full, so the answer can't be sent.
        assert isinstance(client.stream, MemoryStream)
        pipe = client.stream._incoming
        pipe.buffer += bytes(64 * 1024)
        await client.send_request(LOOK, 1)
        await wait_all_tasks_blocked()
        at.env.stopping.set()
        at.answering.set()
        await trio.sleep(DRAIN_S - 0.1)
        assert at.still_open() == 1
        await trio.sleep(0.2)
        assert at.closed() == {CloseReason.STOPPING: 1}


async def test_shutdown_uses_real_time_on_frozen_clock(
    make_env: MakeEnvironment, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept, passed = list[float](), trio.Event()

    async def sleep_real(_clock: Any, seconds: float) -> None:
        slept.append(seconds)
        await passed.wait()

    monkeypatch.setattr(SimulatedClock, "sleep_real", sleep_real)
    async with running_processor(make_env) as at:
        client = await at.connect()
        assert isinstance(client.stream, MemoryStream)
        client.stream._incoming.buffer += bytes(64 * 1024)
        at.answering = trio.Event()
        await client.send_request(LOOK, 1)
        await wait_all_tasks_blocked()
        autojump_clock.autojump_threshold = float("inf")
        at.env.stopping.set()
        at.answering.set()
        await wait_all_tasks_blocked()
        assert (at.still_open(), slept) == (1, [DRAIN_S])
        passed.set()
        await wait_all_tasks_blocked()
        assert at.closed() == {CloseReason.STOPPING: 1}


@connected_both_ways
async def test_killed_processor_leaves_its_clients_hung_up(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    async with running_processor(make_env) as at:
        client, silent = await at.connect(), await at.connect()
        await client.ask(HELLO, 4)
        at.streams.clear()  # The client does not disconnect.
        at.nursery.cancel_scope.cancel()
    with pytest.raises(StreamClosed):
        await client.ask(HELLO, 4)
    for each in at.handed_over:
        assert not isinstance(each, socket.socket) or each.fileno() == -1
    client.close()
    silent.close()
