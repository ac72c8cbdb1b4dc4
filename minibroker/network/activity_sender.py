"""What acceptor and processors tell the recorder: every request, and what happens to connections.

Owns the events that are not sent yet, and how many were dropped; it must never know what is done
with them. Invariant: telling never waits and what is kept is bounded, so no request is ever slower
than the telling itself, some microseconds; an event is written, or counted as dropped, or both if
the recorder dies while it writes. What Kafka has is a request log on disk, at the level DEBUG.
"""

from __future__ import annotations

from typing import Final

import trio

from minibroker.activity.events import UNWRITTEN_MAX, Event, pack
from minibroker.activity.sampling import is_sampled
from minibroker.activity.schema import Happened
from minibroker.admission.connection_events import ConnectionFacts
from minibroker.config import ACTIVITY_ENABLE, ACTIVITY_SAMPLE
from minibroker.connections.address import client_ip
from minibroker.process.environment import RECORDER, Environment
from minibroker.process.messages import ActivityBatch, ActivityWritten
from minibroker.runtime.channel import Channel, ChannelClosed
from minibroker.runtime.clock import whole_ms

PENDING_MAX: Final = 16_384
"""Events that one process keeps until they are sent; further ones are dropped."""

CHUNK_EVENTS: Final = 256
"""Events that are sent at once, which takes about 0.1 ms."""

DELAY_S: Final = 0.1
"""How long fewer may wait for more."""

NAME_CHARACTERS_MAX: Final = 255
"""How much of the name of a user or a client is told: both are theirs to choose."""

FINISH_S: Final = 2.0
"""How long the last events may take to be sent when the broker stops, in real time."""


class ActivitySender:
    """One process's; ``run`` must be running. See `activity_sender` for where there is none."""

    def __init__(self, env: Environment) -> None:
        self._env = env
        self._share = env.settings[ACTIVITY_SAMPLE]
        self._epoch_us = env.clock.epoch_s * 1e6
        self._pending: list[Event] = []
        self._some = trio.Event()
        self._full = trio.Event()
        self._sent = trio.Event()
        self._dropped = 0
        self._unwritten = 0
        self._dropped_unwritten = 0
        """Drops that the recorder was told of and has not written."""
        self._room = trio.Event()
        self._finishing = False

    def samples(self, connection: int) -> bool:
        """Whether to tell of a connection."""
        return is_sampled(connection, self._share)

    def time_us(self, now: float) -> int:
        """A time of the broker's clock, in seconds, as events have it."""
        return int(self._epoch_us + now * 1e6)

    def report(self, event: Event) -> None:
        """Something happened, to a connection of the sample."""
        pending = self._pending
        if len(pending) >= PENDING_MAX:
            self._drop(1)
            return
        pending.append(event)
        if len(pending) == 1:
            self._some.set()
        elif len(pending) == CHUNK_EVENTS:
            self._full.set()

    def happened(
        self,
        what: Happened,
        who: ConnectionFacts,
        now: float,
        reason: str | None,
        delay_ms: int | None,
    ) -> None:
        """Something happened to a connection, at a time in seconds of the broker's clock."""
        if self.samples(who.number):
            peer = who.listener, who.number, client_ip(who.peer[0])
            self.report((self.time_us(now), whole_ms(now), peer, what.value, reason, delay_ms))

    def _drop(self, count: int) -> None:
        self._dropped += count
        self._env.metrics.activity_dropped(count)

    async def run(self) -> None:
        """Sends what is told, to all lives of the recorder, until cancelled."""
        while True:
            channel = await self._env.switchboard.dial(RECORDER)
            try:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._deliver, channel)
                    await self._hear(channel)
            except* ChannelClosed:
                pass  # It died; the next call waits for its next life.
            finally:
                channel.close()
            # Some of it may have been written, but nobody can tell any more.
            self._drop(self._unwritten)
            self._dropped += self._dropped_unwritten
            self._unwritten = self._dropped_unwritten = 0

    async def _hear(self, channel: Channel) -> None:
        while True:
            written: ActivityWritten = await channel.receive()
            self._unwritten -= written.events
            self._dropped_unwritten -= written.dropped
            self._room.set()

    async def _deliver(self, channel: Channel) -> None:
        while True:
            await self._wait_for_some()
            while self._unwritten + CHUNK_EVENTS > UNWRITTEN_MAX:
                self._room = trio.Event()
                await self._room.wait()
            await channel.send(self._next())
            if not self._pending:
                self._sent.set()

    async def _wait_for_some(self) -> None:
        while not self._pending and not self._dropped:
            self._some = trio.Event()
            await self._some.wait()
        if len(self._pending) < CHUNK_EVENTS and not self._finishing:
            self._full = trio.Event()
            with trio.move_on_after(DELAY_S):
                await self._full.wait()

    def _next(self) -> ActivityBatch:
        """The next chunk, which counts as unwritten from now on."""
        chunk = self._pending[:CHUNK_EVENTS]
        del self._pending[:CHUNK_EVENTS]
        told = ActivityBatch(pack(chunk), self._dropped)
        self._unwritten += len(chunk)
        self._dropped_unwritten += self._dropped
        self._dropped = 0
        return told

    async def finish(self) -> None:
        """Returns when everything is sent, or has taken too long; nothing is told any more."""
        self._finishing = True
        self._full.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up, nursery.cancel_scope)
            while self._pending:
                self._sent = trio.Event()
                await self._sent.wait()
            nursery.cancel_scope.cancel()

    async def _give_up(self, scope: trio.CancelScope) -> None:
        await self._env.clock.sleep_real(FINISH_S)
        scope.cancel()


def activity_sender(env: Environment) -> ActivitySender | None:
    """Who tells, if anybody is to be told."""
    return ActivitySender(env) if env.settings[ACTIVITY_ENABLE] else None
