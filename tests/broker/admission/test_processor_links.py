"""Links between processors: one to each peer, over all restarts; messages keep their order."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.admission.processor_links import (
    BATCH_MESSAGES_MAX,
    ProcessorHello,
    ProcessorLinks,
)
from minibroker.broker.process.environment import PROCESSOR, tokens_name
from minibroker.runtime.channel import ChannelClosed
from tests.broker.process.conftest import MakeEnvironment


class Life:
    """One process of a processor, and what its links reported."""

    def __init__(self, make_env: MakeEnvironment, index: int, life: int = 1, of: int = 2) -> None:
        env = make_env(PROCESSOR, index, processors=of, incarnation=life)
        self.heard: list[Any] = []
        self.peers = ProcessorLinks(
            env,
            lambda peer: self.heard.append(("up", peer)),
            lambda peer: self.heard.append(("down", peer)),
            lambda peer, message: self.heard.append((peer, message)),
        )
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            await self.peers.run()


@asynccontextmanager
async def living(*lives: Life) -> AsyncIterator[trio.Nursery]:
    async with trio.open_nursery() as nursery:
        for life in lives:
            nursery.start_soon(life.run)
        await wait_all_tasks_blocked()
        yield nursery
        nursery.cancel_scope.cancel()


async def test_all_processors_are_linked_and_order_is_kept(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    lives = [Life(make_env, index, of=3) for index in range(3)]
    async with living(*lives):
        for me, life in enumerate(lives):
            assert sorted(life.heard) == [("up", peer) for peer in range(3) if peer != me]
            life.heard.clear()
        sent = list(range(3 * BATCH_MESSAGES_MAX))
        for number in sent:
            lives[1].peers.send(0, number)
            lives[1].peers.send(2, -number)
        await wait_all_tasks_blocked()
        assert lives[0].heard == [(1, number) for number in sent]
        assert lives[2].heard == [(1, -number) for number in sent]


@pytest.mark.parametrize("victim", [0, 1])
async def test_death_and_restart_of_peer_are_reported_once(
    make_env: MakeEnvironment, autojump_clock: MockClock, victim: int
) -> None:
    lives = [Life(make_env, index) for index in range(2)]
    other = lives[1 - victim]
    async with living(*lives) as nursery:
        lives[victim].scope.cancel()
        await wait_all_tasks_blocked()
        assert other.heard == [("up", victim), ("down", victim)]
        other.peers.send(victim, "lost")
        reborn = Life(make_env, victim, 2)
        nursery.start_soon(reborn.run)
        await wait_all_tasks_blocked()
        assert other.heard[2:] == [("up", victim)]
        assert reborn.heard == [("up", 1 - victim)]
        reborn.peers.send(1 - victim, "hello")
        await wait_all_tasks_blocked()
        assert other.heard[3:] == [(victim, "hello")]


async def test_restart_before_death_was_noticed_ends_the_former_link(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    life = Life(make_env, 0)
    async with living(life):
        channels = []
        for incarnation in (1, 2):
            channel = await life.peers._env.transport.connect(tokens_name(0))
            await channel.send(ProcessorHello(1, incarnation))
            assert await channel.receive() == ProcessorHello(0, 1)
            channels.append(channel)
        await wait_all_tasks_blocked()
        assert life.heard == [("up", 1), ("down", 1), ("up", 1)]
        with pytest.raises(ChannelClosed):
            await channels[0].receive()
        await channels[1].send(["alive"])
        await wait_all_tasks_blocked()
        assert life.heard[3:] == [(1, "alive")]


async def test_connection_attempt_of_dead_process_changes_nothing(
    make_env: MakeEnvironment, autojump_clock: MockClock
) -> None:
    life = Life(make_env, 0)
    async with living(life):
        transport = life.peers._env.transport
        alive = await transport.connect(tokens_name(0))
        await alive.send(ProcessorHello(1, 5))
        await wait_all_tasks_blocked()
        dead = await transport.connect(tokens_name(0))
        await dead.send(ProcessorHello(1, 4))
        with pytest.raises(ChannelClosed):
            await dead.receive()
        assert life.heard == [("up", 1)]
