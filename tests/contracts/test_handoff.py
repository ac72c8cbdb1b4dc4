"""The contract of a handoff: messages in order, each connection with exactly one owner."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.runtime.channel import ChannelClosed
from minibroker.runtime.handoff import (
    Connection,
    Handoff,
    addresses,
    as_stream,
    memory_handoff_pair,
    socket_handoff_pair,
)
from minibroker.runtime.stream import ByteStream, SocketStream, memory_stream_pair
from tests.tcp import connected_sockets

Pair = tuple[Handoff, Handoff]


@pytest.fixture(params=["memory", "socket"])
async def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


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
    pair: Pair, connection: tuple[Connection, ByteStream]
) -> None:
    here, there = pair
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
    pair: Pair, connection: tuple[Connection, ByteStream]
) -> None:
    here, there = pair
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
