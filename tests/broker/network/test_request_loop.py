"""Requests of one connection, over a real socket and in memory, are answered in order."""

from __future__ import annotations

import socket

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.broker.admission.rejected_connections import AcceptedConnection
from minibroker.broker.metrics.definitions import CloseReason
from minibroker.broker.network.quota_stage import RequestCost
from minibroker.broker.network.request_handler import RequestHandler
from minibroker.broker.network.request_loop import Selector
from minibroker.runtime.stream import SocketStream
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.registry import ApiKey
from tests.broker.process.conftest import MakeEnvironment
from tests.broker.roles.running_processor import (
    HELLO,
    LISTENER,
    LOOK,
    RunningProcessor,
    running_processor,
)
from tests.simulation.client import SimulatedClient, frame
from tests.tcp import connected_sockets

PATIENCE_S = 60.0
METADATA = MetadataRequest(topics=None)
METADATA_VERSION = 12
LOOK_VERSION = 7
REQUESTS_IN_A_ROW = 5000
SOCKET_BYTES = 32 * 1024


async def connect(at: RunningProcessor, number: int = 7) -> SimulatedClient:
    """A client on a real socket, which the acceptor hands over to the processor."""
    theirs, ours = connected_sockets()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
    accepted = AcceptedConnection(LISTENER, ours.getsockname()[:2], ours.getpeername()[:2], number)
    assert at.handoff is not None
    await at.handoff.send(accepted, ours)
    return SimulatedClient(SocketStream(theirs))


async def test_requests_on_a_socket_that_need_steps_are_answered(
    make_env: MakeEnvironment,
) -> None:
    async with running_processor(make_env) as at:
        client = await connect(at)
        with trio.fail_after(PATIENCE_S):
            for _ in range(3):
                assert (await client.ask(HELLO, 4)).error_code == 0
                await client.ask(LOOK, LOOK_VERSION)
        assert len(at.asked) == 3
        client.stream.close()


async def test_pipelined_requests_on_a_socket_are_answered_in_order(
    make_env: MakeEnvironment,
) -> None:
    async with running_processor(make_env) as at:
        client = await connect(at)
        with trio.fail_after(PATIENCE_S):
            await client.ask(HELLO, 4)
            requests = [METADATA, LOOK, METADATA, METADATA, LOOK] * 5
            await client.stream.send_all(
                b"".join(
                    frame(request, LOOK_VERSION if request is LOOK else METADATA_VERSION)
                    for request in requests
                )
            )
            client._correlation_id = 1
            for request in requests:
                if request is LOOK:
                    await client.answer(ApiKey.LIST_OFFSETS, LOOK_VERSION)
                else:
                    await client.answer(ApiKey.METADATA, METADATA_VERSION)
        client.stream.close()


async def test_known_response_on_a_socket_is_sent_without_the_connections_task(
    make_env: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_processor(make_env) as at:
        client = await connect(at)
        returned: list[object] = []
        wait = Selector.wait

        async def noting(self: Selector, connection: object) -> object:
            rest = await wait(self, connection)  # type: ignore[arg-type]
            returned.append(rest)
            return rest

        monkeypatch.setattr(Selector, "wait", noting)
        with trio.fail_after(PATIENCE_S):
            await client.ask(HELLO, 4)
            first = await client.ask(METADATA, METADATA_VERSION)  # It is kept.
            await wait_all_tasks_blocked()
            before = len(returned)
            for _ in range(5):
                assert await client.ask(METADATA, METADATA_VERSION) == first
            assert len(returned) == before
        client.stream.close()


async def test_client_that_disconnects_is_counted_once(make_env: MakeEnvironment) -> None:
    async with running_processor(make_env) as at:
        client = await connect(at)
        with trio.fail_after(PATIENCE_S):
            await client.ask(HELLO, 4)
            client.stream.close()
            while at.still_open():
                await trio.lowlevel.checkpoint()
        assert at.closed() == {CloseReason.CLIENT_CLOSED: 1}


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n"])
async def test_invalid_bytes_after_a_request_close_the_connection(
    make_env: MakeEnvironment, data: bytes
) -> None:
    async with running_processor(make_env) as at:
        client = await connect(at)
        with trio.fail_after(PATIENCE_S):
            await client.ask(HELLO, 4)
            await client.stream.send_all(data)
            assert await client.stream.receive_into(memoryview(bytearray(1))) == 0
        assert at.closed() == {CloseReason.BAD_FRAME: 1}
        client.stream.close()


async def test_stop_closes_connections_that_wait_for_a_request(make_env: MakeEnvironment) -> None:
    async with running_processor(make_env) as at:
        client = await connect(at)
        with trio.fail_after(PATIENCE_S):
            await client.ask(HELLO, 4)
            at.env.stopping.set()
            assert await client.stream.receive_into(memoryview(bytearray(1))) == 0
        assert at.closed() == {CloseReason.STOPPING: 1}
        client.stream.close()


async def test_responses_that_do_not_fit_are_sent_when_the_client_reads(
    make_env: MakeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[int] = []
    send_rest = RequestHandler._send_rest

    def noting(self: RequestHandler, cost: RequestCost, encoded: bytes, sent: int) -> object:
        rests.append(sent)
        return send_rest(self, cost, encoded, sent)

    monkeypatch.setattr(RequestHandler, "_send_rest", noting)
    async with running_processor(make_env) as at, trio.open_nursery() as nursery:
        client = await connect(at)
        with trio.fail_after(PATIENCE_S):
            await client.ask(HELLO, 4)
            requests = frame(METADATA, METADATA_VERSION) * REQUESTS_IN_A_ROW
            nursery.start_soon(client.stream.send_all, requests)
            await wait_all_tasks_blocked()
            client._correlation_id = 1
            for _ in range(REQUESTS_IN_A_ROW):
                await client.answer(ApiKey.METADATA, METADATA_VERSION)
        assert rests
        client.stream.close()
