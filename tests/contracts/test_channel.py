"""The contract of a channel, held against every implementation."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.runtime.rpc import (
    Channel,
    ChannelClosed,
    memory_channel_pair,
    socket_channel_pair,
)

Pair = tuple[Channel, Channel]


@pytest.fixture(params=[memory_channel_pair, socket_channel_pair], ids=["memory", "socket"])
def make_pair(request: pytest.FixtureRequest) -> Callable[[], Pair]:
    maker: Callable[[], Pair] = request.param
    return maker


@pytest.fixture
async def pair(make_pair: Callable[[], Pair]) -> AsyncIterator[Pair]:
    here, there = make_pair()
    yield here, there
    here.close()
    there.close()


async def test_messages_arrive_whole_and_in_order(pair: Pair) -> None:
    here, there = pair
    messages = [("n", index, b"x" * (index * 37)) for index in range(50)]
    for message in messages:
        await here.send(message)
    assert [await there.receive() for _ in messages] == messages


async def test_messages_pass_in_both_directions(pair: Pair) -> None:
    here, there = pair
    await here.send("ping")
    await there.send("pong")
    assert (await there.receive(), await here.receive()) == ("ping", "pong")


async def test_received_message_is_a_copy(pair: Pair) -> None:
    here, there = pair
    message = {"list": [1]}
    await here.send(message)
    message["list"].append(2)
    assert await there.receive() == {"list": [1]}


async def test_large_message_is_received(pair: Pair) -> None:
    here, there = pair
    large = bytes(range(256)) * 40_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(here.send, large)
        assert await there.receive() == large


async def test_sender_blocks_while_receiver_is_slow(pair: Pair) -> None:
    here, there = pair
    sent = 0
    total = 500

    async def send_all() -> None:
        nonlocal sent
        for index in range(total):
            await here.send((index, b"y" * 10_000))
            sent += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_all)
        await wait_all_tasks_blocked()
        assert 0 < sent < total
        assert here.statistics().waiting == 1
        for index in range(total):
            assert (await there.receive())[0] == index
    assert sent == total


async def test_frames_of_concurrent_senders_are_not_interleaved(pair: Pair) -> None:
    here, there = pair
    async with trio.open_nursery() as nursery:
        for sender in range(5):
            for _ in range(20):
                nursery.start_soon(here.send, (sender, bytes([sender]) * 50_000))
        for _ in range(100):
            sender, body = await there.receive()
            assert body == bytes([sender]) * 50_000


async def test_receive_from_closed_peer_raises_channel_closed(pair: Pair) -> None:
    here, there = pair
    here.close()
    with pytest.raises(ChannelClosed):
        await there.receive()


async def test_send_to_closed_peer_raises_channel_closed(pair: Pair) -> None:
    here, there = pair
    there.close()
    with pytest.raises(ChannelClosed):
        await here.send("lost")


async def test_close_wakes_blocked_receiver(pair: Pair) -> None:
    here, _there = pair
    async with trio.open_nursery() as nursery:

        async def expect_closed() -> None:
            with pytest.raises(ChannelClosed):
                await here.receive()

        nursery.start_soon(expect_closed)
        await wait_all_tasks_blocked()
        here.close()


async def test_cancelled_receive_loses_no_message(pair: Pair) -> None:
    here, there = pair
    with trio.move_on_after(0):
        await there.receive()
    await here.send("kept")
    assert await there.receive() == "kept"


async def test_cancelled_send_leaves_no_partial_message(pair: Pair) -> None:
    here, there = pair
    large = b"x" * 10_000_000
    received: list[object] = []

    async def send() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await here.send(large)
        await here.send("last")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while not received or received[-1] != "last":
            received.append(await there.receive())
    assert received in ([large, "last"], ["last"])


async def test_statistics_count_messages(pair: Pair) -> None:
    here, there = pair
    await here.send(1)
    await here.send(2)
    await there.receive()
    assert here.statistics().sent == 2
    assert there.statistics().received == 1


async def test_closing_twice_is_harmless(pair: Pair) -> None:
    here, _there = pair
    here.close()
    here.close()


async def test_busy_channel_does_not_starve_other_tasks(pair: Pair) -> None:
    here, there = pair
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(8):
            for _ in range(40):
                await here.send("busy")
            for _ in range(40):
                await there.receive()
        nursery.cancel_scope.cancel()
    assert others > 2


def test_capacity_below_one_is_rejected() -> None:
    with pytest.raises(ValueError, match="at least one message"):
        memory_channel_pair(0)


async def test_receive_nowait_returns_available_messages(pair: Pair) -> None:
    here, there = pair
    with pytest.raises(trio.WouldBlock):
        there.receive_nowait()
    await here.send("a")
    await here.send("b")
    assert [there.receive_nowait(), there.receive_nowait()] == ["a", "b"]
    with pytest.raises(trio.WouldBlock):
        there.receive_nowait()
    await here.send("c")
    assert await there.receive() == "c"


async def test_blocked_receiver_gets_message_after_one_taken_by_receive_nowait(pair: Pair) -> None:
    here, there = pair
    received = []

    async def receive() -> None:
        received.append(await there.receive())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await wait_all_tasks_blocked()
        if there.crosses_processes:  # In memory a message goes to the waiting task at once.
            await here.send("taken")
            assert there.receive_nowait() == "taken"
        await here.send("left")
    assert received == ["left"]


async def test_receive_nowait_from_closed_peer_raises_channel_closed(pair: Pair) -> None:
    here, there = pair
    here.close()
    with pytest.raises(ChannelClosed):
        there.receive_nowait()
    with pytest.raises(ChannelClosed):
        await there.receive()
