"""A link registers with its peer, and connects again to one that was restarted."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from minibroker.runtime.rpc import Channel, Link, PeerLost, RpcConnection, memory_channel_pair


class Reborn:
    """A peer that can die; every dial reaches its newest life."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.lives = 0
        self.greeted: list[Any] = []
        self.listens = trio.Event()
        self.listens.set()
        self.channel: Channel | None = None

    async def connect(self) -> Channel:
        await self.listens.wait()
        self.lives += 1
        here, there = memory_channel_pair()
        self.channel = there
        self.nursery.start_soon(RpcConnection(there, self.answer).run)
        return here

    def answer(self, payload: Any) -> Any:
        if payload == "hello":
            self.greeted.append(self.lives)
            return None
        return (self.lives, payload)


async def _hello(connection: RpcConnection) -> None:
    await connection.request("hello")


async def test_link_registers_first_and_reconnects_to_a_restarted_peer() -> None:
    async with trio.open_nursery() as nursery:
        peer = Reborn(nursery)
        link = Link(peer.connect, _hello)
        nursery.start_soon(link.run)
        assert await link.request("a") == (1, "a")
        peer.listens = trio.Event()
        assert peer.channel is not None
        peer.channel.close()
        await wait_all_tasks_blocked()
        assert link.statistics() is None
        answers: list[Any] = []

        async def ask_meanwhile() -> None:
            answers.append(await link.request("b"))

        async with trio.open_nursery() as on_sent:
            on_sent.start_soon(ask_meanwhile)
            await wait_all_tasks_blocked()
            peer.listens.set()
        assert answers == [(2, "b")]
        assert peer.greeted == [1, 2]
        nursery.cancel_scope.cancel()


async def test_repeated_request_reaches_the_restarted_peer_before_its_loss_is_noticed() -> None:
    async with trio.open_nursery() as nursery:
        peer = Reborn(nursery)
        link = Link(peer.connect, _hello)
        nursery.start_soon(link.run)
        assert await link.request("a") == (1, "a")
        assert peer.channel is not None
        peer.channel.close()
        answer = None
        for _ in range(2):
            with suppress(PeerLost):
                answer = await link.request("b")
        assert answer == (2, "b")
        nursery.cancel_scope.cancel()


async def test_peer_killed_during_handshake_is_reconnected() -> None:
    async with trio.open_nursery() as nursery:
        peer = Reborn(nursery)
        greetings = 0

        async def register(connection: RpcConnection) -> None:
            nonlocal greetings
            greetings += 1
            if greetings == 1:
                assert peer.channel is not None
                peer.channel.close()
            await connection.request("hello")

        link = Link(peer.connect, register)
        nursery.start_soon(link.run)
        await link.wait_connected()
        assert (await link.request("x"))[0] == 2
        nursery.cancel_scope.cancel()


async def test_requests_fail_when_the_link_has_ended() -> None:
    async with trio.open_nursery() as nursery:
        peer = Reborn(nursery)
        peer.listens = trio.Event()
        link = Link(peer.connect, _hello)

        async def ask_shielded() -> None:
            with trio.CancelScope(shield=True), pytest.raises(PeerLost, match="the link is closed"):
                await link.request("a")

        nursery.start_soon(ask_shielded)
        nursery.start_soon(link.run)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with pytest.raises(PeerLost):
        await link.request("b")
