"""The links between processors that accept for themselves: one to each other, over channels.

Owns dialling, greeting and the order of messages; never what they say. The processor with the
higher number dials. Invariant: for each life of a peer ``up`` is called once, before anything that
life sent is handed on, and ``down`` once, after the last of it; what is told to a peer arrives in
that order or its link breaks. Kafka has threads of one process here, which share their books.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import trio

from minibroker.process.environment import Environment, tokens_name
from minibroker.runtime.channel import Channel, ChannelClosed

TOGETHER_MAX: Final = 100
"""Messages that travel as one."""


class ProcessorHello(NamedTuple):
    """The first message in each direction: who is there, in which life."""

    processor: int
    incarnation: int


class _Link:
    """A channel to one life of a peer, and what it still has to be told."""

    def __init__(self, channel: Channel, life: int) -> None:
        self.channel = channel
        self.life = life
        self.due: deque[object] = deque()
        self.more = trio.Event()

    def send(self, message: object) -> None:
        self.due.append(message)
        self.more.set()

    async def deliver(self) -> None:
        try:
            while True:
                while self.due:
                    count = min(len(self.due), TOGETHER_MAX)
                    await self.channel.send([self.due.popleft() for _ in range(count)])
                self.more = trio.Event()
                await self.more.wait()
        except ChannelClosed:
            self.channel.close()  # Whoever receives notices by that.


class ProcessorLinks:
    """One processor's links; ``run`` must be running."""

    def __init__(
        self,
        env: Environment,
        up: Callable[[int], None],
        down: Callable[[int], None],
        received: Callable[[int, Any], None],
    ) -> None:
        self._env = env
        self._up = up
        self._down = down
        self._received = received
        self._links: dict[int, _Link] = {}

    def send(self, peer: int, message: object) -> None:
        """Sends a message soon, without waiting; nothing happens if the peer is away.

        What is due is bounded by what is told: all of it are answers, or say what has changed.
        """
        link = self._links.get(peer)
        if link is not None:
            link.send(message)

    async def run(self) -> None:
        """Keeps in touch with all others, in all of their lives, until cancelled."""
        listener = self._env.switchboard.listen(tokens_name(self._env.index))
        async with trio.open_nursery() as nursery:
            for peer in range(self._env.index):
                nursery.start_soon(self._dial, peer)
            while True:
                nursery.start_soon(self._answer, await listener.accept())

    @property
    def _hello(self) -> ProcessorHello:
        return ProcessorHello(self._env.index, self._env.incarnation)

    async def _dial(self, peer: int) -> None:
        while True:
            channel = await self._env.switchboard.dial(tokens_name(peer))
            try:
                await channel.send(self._hello)
                hello: ProcessorHello = await channel.receive()
                await self._converse(hello, channel)
            except ChannelClosed:
                pass  # It died; the next dialling waits for its next life.
            finally:
                channel.close()

    async def _answer(self, channel: Channel) -> None:
        try:
            hello: ProcessorHello = await channel.receive()
            former = self._links.get(hello.processor)
            if former is not None and former.life >= hello.incarnation:
                return  # A call that a dead life has left behind.
            if former is not None:
                # It was reborn before the end of its former life was noticed.
                self._end(hello.processor, former)
            await channel.send(self._hello)
            await self._converse(hello, channel)
        except ChannelClosed:
            pass  # It died, and its next life dials again.
        finally:
            channel.close()

    async def _converse(self, hello: ProcessorHello, channel: Channel) -> None:
        """Returns when the link broke."""
        peer, life = hello
        link = self._links[peer] = _Link(channel, life)
        self._up(peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.deliver)
            try:
                while True:
                    messages = await channel.receive()
                    if self._links.get(peer) is not link:
                        break  # Its next life was faster than its last words.
                    for message in messages:
                        self._received(peer, message)
            except ChannelClosed:
                pass
            nursery.cancel_scope.cancel()
        if self._links.get(peer) is link:
            self._end(peer, link)

    def _end(self, peer: int, link: _Link) -> None:
        link.channel.close()
        del self._links[peer]
        self._down(peer)
