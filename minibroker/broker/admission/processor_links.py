"""Links between processors that accept connections themselves: one channel to each other processor.

Owns connecting, the handshake and the order of messages. It must never know their content. The
processor with the higher number connects. Invariant: for each process of a peer, ``on_up`` is
called once before its first message and ``on_down`` once after its last one; messages to a peer
arrive in order, or the link breaks. Kafka's threads share their counts instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import trio

from minibroker.broker.process.environment import Environment, tokens_name
from minibroker.runtime.channel import Channel, ChannelClosed

BATCH_MESSAGES_MAX: Final = 100
"""Messages sent together as one."""


class ProcessorHello(NamedTuple):
    """First message in each direction: the processor and its incarnation."""

    processor: int
    incarnation: int


class _Link:
    """A channel to one process of a peer, and the messages not sent yet."""

    def __init__(self, channel: Channel, incarnation: int) -> None:
        self.channel = channel
        self.incarnation = incarnation
        self.queue: deque[object] = deque()
        self.more = trio.Event()

    def send(self, message: object) -> None:
        self.queue.append(message)
        self.more.set()

    async def deliver(self) -> None:
        try:
            while True:
                while self.queue:
                    count = min(len(self.queue), BATCH_MESSAGES_MAX)
                    await self.channel.send([self.queue.popleft() for _ in range(count)])
                self.more = trio.Event()
                await self.more.wait()
        except ChannelClosed:
            self.channel.close()  # The receiving task notices by that.


class ProcessorLinks:
    """The links of one processor; ``run`` must be running."""

    def __init__(
        self,
        env: Environment,
        on_up: Callable[[int], None],
        on_down: Callable[[int], None],
        on_message: Callable[[int, Any], None],
    ) -> None:
        self._env = env
        self._on_up = on_up
        self._on_down = on_down
        self._on_message = on_message
        self._links: dict[int, _Link] = {}

    def send(self, peer: int, message: object) -> None:
        """Send a message soon, without waiting; does nothing if the peer is disconnected.

        The queue is bounded, because messages are answers or changes of limits.
        """
        link = self._links.get(peer)
        if link is not None:
            link.send(message)

    async def run(self) -> None:
        """Keep the links to all other processors, over all restarts, until cancelled."""
        listener = self._env.transport.listen(tokens_name(self._env.index))
        async with trio.open_nursery() as nursery:
            for peer in range(self._env.index):
                nursery.start_soon(self._connect, peer)
            while True:
                nursery.start_soon(self._accept, await listener.accept())

    @property
    def _hello(self) -> ProcessorHello:
        return ProcessorHello(self._env.index, self._env.incarnation)

    async def _connect(self, peer: int) -> None:
        while True:
            channel = await self._env.transport.connect(tokens_name(peer))
            try:
                await channel.send(self._hello)
                hello: ProcessorHello = await channel.receive()
                await self._receive_messages(hello, channel)
            except ChannelClosed:
                pass  # The peer died; the next attempt waits for its restart.
            finally:
                channel.close()

    async def _accept(self, channel: Channel) -> None:
        try:
            hello: ProcessorHello = await channel.receive()
            previous = self._links.get(hello.processor)
            if previous is not None and previous.incarnation >= hello.incarnation:
                return  # A connection attempt of a process that is dead by now.
            if previous is not None:
                # The peer restarted before the end of its former process was noticed.
                self._end(hello.processor, previous)
            await channel.send(self._hello)
            await self._receive_messages(hello, channel)
        except ChannelClosed:
            pass  # The peer died, and connects again after its restart.
        finally:
            channel.close()

    async def _receive_messages(self, hello: ProcessorHello, channel: Channel) -> None:
        """Receive until the link breaks."""
        peer, incarnation = hello
        link = self._links[peer] = _Link(channel, incarnation)
        self._on_up(peer)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.deliver)
            try:
                while True:
                    messages = await channel.receive()
                    if self._links.get(peer) is not link:
                        break  # The peer restarted before its last messages arrived.
                    for message in messages:
                        self._on_message(peer, message)
            except ChannelClosed:
                pass
            nursery.cancel_scope.cancel()
        if self._links.get(peer) is link:
            self._end(peer, link)

    def _end(self, peer: int, link: _Link) -> None:
        link.channel.close()
        del self._links[peer]
        self._on_down(peer)
