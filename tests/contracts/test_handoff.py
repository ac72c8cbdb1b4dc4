"""The contract of a handoff: messages in order, each connection with exactly one owner."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.runtime import system
from minibroker.runtime.handoff import (
    Connection,
    Handoff,
    StreamHandoff,
    addresses,
    as_stream,
    memory_handoff_pair,
    socket_handoff_pair,
)
from minibroker.runtime.rpc import ChannelClosed
from minibroker.runtime.stream import ByteStream, SocketStream, memory_stream_pair
from tests.tcp import connected_sockets

Pair = tuple[Handoff, Handoff]


@pytest.fixture(params=["memory", "socket", "portable socket"])
async def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(system, "is_portable", lambda: "portable" in request.param)
    return str(request.param)


async def receive_all(end: Handoff) -> None:
    """Receive, as a sender must to learn of acknowledgements and of the other side's end."""
    with suppress(ChannelClosed):
        while True:
            await end.receive()


@pytest.fixture
async def pair(kind: str) -> AsyncIterator[Pair]:
    here, there = memory_handoff_pair() if kind == "memory" else socket_handoff_pair()
    yield here, there
    here.close()
    there.close()


@pytest.fixture
async def connection(kind: str) -> AsyncIterator[tuple[Connection, ByteStream]]:
    """A connection to hand over, and the client's end of it."""
    if kind == "memory":
        near, far = memory_stream_pair()
        yield near, far
        far.close()
    else:
        theirs, accepted = connected_sockets()
        client = SocketStream(theirs)
        yield accepted, client
        client.close()


async def test_messages_arrive_in_order_in_both_directions(pair: Pair) -> None:
    here, there = pair
    await here.send("a")
    await here.send(("b", 2))
    await there.send("credit")
    assert await there.receive() == ("a", None)
    assert await there.receive() == (("b", 2), None)
    assert await here.receive() == ("credit", None)


async def test_receiver_gets_working_connection(
    pair: Pair, connection: tuple[Connection, ByteStream], nursery: trio.Nursery
) -> None:
    here, there = pair
    nursery.start_soon(receive_all, here)
    accepted, client = connection
    await here.send("yours", accepted)
    message, received = await there.receive()
    assert message == "yours"
    assert received is not None
    stream = as_stream(received)
    await stream.send_all(b"hello")
    buffer = bytearray(5)
    assert await client.receive_into(memoryview(buffer)) == 5
    assert buffer == b"hello"
    stream.close()
    assert await client.receive_into(memoryview(buffer)) == 0


async def test_stream_uses_given_addresses(
    connection: tuple[Connection, ByteStream],
) -> None:
    accepted, client = connection
    local, peer = addresses(accepted)
    assert (local, peer) == (client.peer, client.local)
    known = as_stream(accepted, local, peer)
    asked = as_stream(accepted)
    assert (known.local, known.peer) == (asked.local, asked.peer) == (local, peer)
    asked.close()


async def test_closing_receiver_closes_unreceived_connections(
    pair: Pair, connection: tuple[Connection, ByteStream], nursery: trio.Nursery
) -> None:
    here, there = pair
    nursery.start_soon(receive_all, here)
    accepted, client = connection
    await here.send("never taken", accepted)
    there.close()
    assert await client.receive_into(memoryview(bytearray(1))) == 0


async def test_connection_is_closed_if_handoff_fails(
    pair: Pair, connection: tuple[Connection, ByteStream]
) -> None:
    here, there = pair
    accepted, client = connection
    there.close()
    with pytest.raises(ChannelClosed):
        await here.send("nobody there", accepted)
    assert await client.receive_into(memoryview(bytearray(1))) == 0


async def test_close_raises_channel_closed_at_both_ends(pair: Pair) -> None:
    here, there = pair

    async def expect_closed(end: Handoff) -> None:
        with pytest.raises(ChannelClosed):
            await end.receive()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expect_closed, here)
        nursery.start_soon(expect_closed, there)
        await wait_all_tasks_blocked()
        here.close()
    here.close()


# Only the portable variant: messages on a stream, and descriptors that are acknowledged.


@pytest.fixture
async def streams() -> AsyncIterator[tuple[StreamHandoff, StreamHandoff]]:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # The least that the system has.
    pair = StreamHandoff(here), StreamHandoff(there)
    yield pair
    for end in pair:
        end.close()


async def test_messages_in_pieces_keep_their_connections(
    streams: tuple[StreamHandoff, StreamHandoff], nursery: trio.Nursery
) -> None:
    here, there = streams
    sizes = [10, 16_000, 1, 9_000, 16_000, 3] * 5
    clients = [connected_sockets() for _ in sizes]
    numbers = [client.getsockname()[1] for client, _ in clients]

    async def send_all() -> None:
        for number, (size, (_, accepted)) in enumerate(zip(sizes, clients, strict=True)):
            await here.send(b"x" * size, accepted if number % 3 else None)
            if not number % 3:
                accepted.close()

    nursery.start_soon(send_all)
    nursery.start_soon(receive_all, here)
    for number, size in enumerate(sizes):
        message, received = await there.receive()
        assert message == b"x" * size
        assert (received is not None) is bool(number % 3)
        if isinstance(received, socket.socket):
            assert received.getpeername()[1] == numbers[number]
            received.close()
    for client, _ in clients:
        client.close()
    await wait_all_tasks_blocked()
    assert not here.unacknowledged


async def test_descriptor_is_open_until_it_is_acknowledged(
    streams: tuple[StreamHandoff, StreamHandoff],
) -> None:
    here, there = streams
    client, accepted = connected_sockets()
    await here.send("yours", accepted)
    assert accepted.fileno() >= 0
    _, received = await there.receive()
    assert isinstance(received, socket.socket)
    await there.send("thanks")
    assert accepted.fileno() >= 0
    assert await here.receive() == ("thanks", None)
    assert accepted.fileno() < 0
    received.close()
    client.close()


async def test_cancelled_message_is_sent_completely_or_not_at_all(
    streams: tuple[StreamHandoff, StreamHandoff],
) -> None:
    here, there = streams
    sent: list[int] = []
    connections = [connected_sockets() for _ in range(20)]
    for number, (_, accepted) in enumerate(connections):
        with trio.move_on_after(0) as scope:
            await here.send((number, b"x" * 10_000), accepted)
        if scope.cancelled_caught:
            break
        sent.append(number)
    assert len(sent) < len(connections)
    with trio.move_on_after(0):
        await here.send("not sent", connections[-1][1])
    assert connections[-1][1].fileno() < 0
    numbers: list[int | str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.send, ("last", b""))
        while "last" not in numbers:
            (number, _), received = await there.receive()
            numbers.append(number)
            if received is not None:
                received.close()
    # The one that was cancelled may have been started; its rest is sent before the next message.
    assert numbers in ([*sent, "last"], [*sent, len(sent), "last"])
    for client, accepted in connections:
        client.close()
        accepted.close()
