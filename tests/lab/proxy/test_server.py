"""Listeners of a proxy, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any

import pytest
import trio

from minibroker.broker.settings.setting import HostPort
from minibroker.lab.proxy import server as module
from minibroker.lab.proxy.connection import ListenFailed, ProxiedConnection, UpstreamLost
from minibroker.lab.proxy.server import (
    BROKERS_MAX,
    PORTS_TRIED_MAX,
    AddressTable,
    ProxyServer,
)

LOOPBACK = "127.0.0.1"


@asynccontextmanager
async def echo() -> AsyncIterator[HostPort]:
    """A broker that answers each frame with itself, so correlation ids don't matter."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            while data := await stream.receive_some():
                # Of a request, the correlation id is after four bytes; of a response, before all.
                await stream.send_all(data[:4] + data[8:12] + data[4:8] + data[12:])

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host=LOOPBACK))
        yield HostPort(*listener.socket.getsockname()[:2])
        nursery.cancel_scope.cancel()


def started(port: int = 0) -> ProxyServer:
    return ProxyServer(HostPort(LOOPBACK, port))


@asynccontextmanager
async def running(port: int = 0) -> AsyncIterator[ProxyServer]:
    server = started(port)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        await trio.testing.wait_all_tasks_blocked()
        yield server
        nursery.cancel_scope.cancel()


async def ask(address: HostPort) -> bytes:
    """Send a frame of an unknown API, and return what comes back, nothing if disconnected."""
    stream = await trio.open_tcp_stream(address.host, address.port)
    async with stream:
        await stream.send_all(b"\0\0\0\x08\x13\x88\0\0\0\0\0\7")
        try:
            return bytes(await stream.receive_some())
        except trio.BrokenResourceError:
            return b""


async def test_each_broker_has_a_listener_that_stays() -> None:
    async with echo() as first, echo() as second, running() as server:
        addresses = [server.listen_for(broker) for broker in (first, second, first)]
        assert addresses[0] == addresses[2] != addresses[1]
        for address in addresses:
            assert await ask(address) == b"\0\0\0\x08\0\0\0\7\x13\x88\0\0"
        assert server.local_address(second, "10.9.8.7") == HostPort("10.9.8.7", addresses[1].port)


async def test_listeners_before_the_start_are_served() -> None:
    async with echo() as broker:
        server = ProxyServer(HostPort("0.0.0.0", 0))
        address = server.listen_for(broker)
        assert address.host == LOOPBACK
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.run)
            assert await ask(address)
            nursery.cancel_scope.cancel()


async def test_taken_port_is_skipped_and_the_first_one_is_an_error() -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenFailed, match=f"{port}: Address already in use"):
            started(port).listen_for(HostPort("a", 1))
        with closing(started(port - 1)) as server:
            try:
                server.listen_for(HostPort("a", 1))
            except ListenFailed:
                return  # The port before it is taken as well.
            assert server.listen_for(HostPort("b", 1)).port != port


async def test_unreachable_brokers_are_named_with_reasons() -> None:
    with socket.socket() as unused:
        unused.bind((LOOPBACK, 0))
        lost = HostPort(LOOPBACK, unused.getsockname()[1])
        async with echo() as broker, running() as server:
            failures = await server.unreachable([broker, lost])
            assert list(failures) == [lost]
            assert "Connection refused" in failures[lost]
            assert await ask(server.listen_for(lost)) == b""


async def test_connection_to_a_broker_has_a_limit_of_time(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    async def never(host: str, port: int) -> trio.SocketStream:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr(trio, "open_tcp_stream", never)
    with pytest.raises(UpstreamLost, match="no connection within 10 s"):
        await started().connect(HostPort("a", 1))


async def test_connections_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONNECTIONS_MAX", 1)
    async with echo() as broker, running() as server:
        address = server.listen_for(broker)
        async with await trio.open_tcp_stream(address.host, address.port) as first:
            await first.send_all(b"\0\0\0\x08\x13\x88\0\0\0\0\0\7")
            assert await first.receive_some()
            assert await ask(address) == b""
        while not await ask(address):  # Until the first connection is forgotten.
            await trio.testing.wait_all_tasks_blocked()


async def test_failure_of_one_connection_does_not_end_the_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with echo() as broker, running() as server:
        address = server.listen_for(broker)
        with monkeypatch.context() as patched:
            patched.setattr(ProxiedConnection, "run", fail)
            assert await ask(address) == b""
        assert await ask(address)


async def fail(connection: Any) -> None:
    raise ZeroDivisionError


FIRST, SECOND = HostPort("a", 9092), HostPort("b", 9092)


def test_first_listener_has_its_port_and_no_other() -> None:
    assert list(AddressTable(7000).candidates()) == [7000]
    assert list(AddressTable(0).candidates()) == [0]


def test_other_listeners_have_the_next_ports_or_any_free_one() -> None:
    table = AddressTable(7000)
    table.add(FIRST, 7000)
    table.add(SECOND, 7001)
    tried = list(table.candidates())
    assert tried == [*range(7002, 7001 + PORTS_TRIED_MAX), 0]
    assert (table.port_of(FIRST), table.port_of(SECOND)) == (7000, 7001)
    assert table.port_of(HostPort("a", 9093)) is None


def test_ports_end_at_the_highest() -> None:
    table = AddressTable(65534)
    table.add(FIRST, 65534)
    assert list(table.candidates()) == [65535, 0]


def test_brokers_are_limited() -> None:
    table = AddressTable(0)
    for number in range(BROKERS_MAX):
        table.add(HostPort(f"h{number}", 1), number + 1)
    with pytest.raises(ListenFailed, match="1000"):
        list(table.candidates())
