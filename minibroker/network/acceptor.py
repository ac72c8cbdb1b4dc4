"""The acceptor role: takes connections from the kernel and deals them out to processors.

Owns the round robin and the wait for a free slot, never a byte of what a client says. One task
per listener accepts, one per processor listens for freed slots. Invariant: a connection is handed
to one processor or closed; while all processors are full nothing more is accepted than the one
connection in hand, and that time is counted as blocked (KIP-402's ``AcceptorBlockedPercent``).
"""

from __future__ import annotations

import time
from typing import Final

import trio

from minibroker.network.accepted import SLOT_FREED, Accepted
from minibroker.network.slots import SLOTS, Slots
from minibroker.observability.definitions import CloseReason
from minibroker.observability.log import ConnectionCloses, Log
from minibroker.observability.metrics import Fill
from minibroker.roles.environment import Environment, handoff_name
from minibroker.roles.follower import Follower
from minibroker.runtime.channel import ChannelClosed
from minibroker.runtime.handoff import Connection, Handoff, as_stream
from minibroker.runtime.listening import ConnectionSource

OUT_OF_DESCRIPTORS_PAUSE_S: Final = 0.1
"""How long to wait when the system has no descriptor or memory left for a connection."""


async def acceptor(env: Environment) -> None:
    """Runs until ``env.stopping``."""
    role = _Acceptor(env)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(role.follower.run)
        for processor in range(env.processors):
            nursery.start_soon(role.attend, processor)
        await role.follower.wait_image()
        for listener, source in env.listeners.items():
            nursery.start_soon(role.accept, listener, source)
        env.ready()
        await env.stopping.wait()
        nursery.cancel_scope.cancel()


class _Acceptor:
    def __init__(self, env: Environment) -> None:
        self._env = env
        self._slots = Slots(env.processors)
        self._handoffs: dict[int, Handoff] = {}
        self._freed = trio.Event()
        self._accepted = 0
        self._log = Log("acceptor")
        self._closes = ConnectionCloses(env.metrics, self._log)
        self.follower = Follower(env, details=self._slots_used)
        for processor in range(env.processors):
            self._watch(processor)

    def _watch(self, processor: int) -> None:
        def fill() -> Fill:
            return Fill(self._slots.used(processor), SLOTS, self._slots.peak(processor))

        self._env.metrics.watch_queue(f"connections-{processor}", fill)

    def _slots_used(self) -> list[int]:
        return [self._slots.used(processor) for processor in range(self._env.processors)]

    async def attend(self, processor: int) -> None:
        """Keeps in touch with one processor, in all of its lives."""
        while True:
            handoff = await self._env.switchboard.dial_handoff(handoff_name(processor))
            try:
                await self._attend_life(processor, handoff)
            except ChannelClosed:
                pass  # It died; the next dialling waits for its next life.
            finally:
                self._handoffs.pop(processor, None)
                self._slots.left(processor)
                handoff.close()

    async def _attend_life(self, processor: int, handoff: Handoff) -> None:
        # A processor says so when it listens: until then it gets no connections.
        await handoff.receive()
        self._handoffs[processor] = handoff
        self._slots.joined(processor)
        while True:
            self._freed.set()
            message, _ = await handoff.receive()
            assert message == SLOT_FREED
            self._slots.freed(processor)

    async def accept(self, listener: str, source: ConnectionSource) -> None:
        """Takes one listener's connections, one after the other."""
        while True:
            try:
                connection = await source.accept()
            except OSError as error:
                self._log.warning("connections wait", listener=listener, error=error)
                await trio.sleep(OUT_OF_DESCRIPTORS_PAUSE_S)
                continue
            self._env.metrics.connection_accepted(listener)
            await self._hand_over(listener, connection)

    async def _hand_over(self, listener: str, connection: Connection) -> None:
        stream = as_stream(connection)
        self._accepted += 1
        number = self._env.incarnation << 32 | self._accepted
        accepted = Accepted(listener, stream.local, stream.peer, number)
        try:
            processor = await self._free_processor(listener)
            await self._handoffs[processor].send(accepted, connection)
        except ChannelClosed:
            # The processor died with the connection in its hands: the client dials again.
            self._closes.refused(listener, CloseReason.PROCESS_DIED, client=stream.peer)
        except trio.Cancelled:
            stream.close()
            raise

    async def _free_processor(self, listener: str) -> int:
        processor = self._slots.take()
        if processor is not None:
            return processor
        began = time.perf_counter_ns()
        try:
            while processor is None:
                self._freed = trio.Event()
                await self._freed.wait()
                processor = self._slots.take()
        finally:
            self._env.metrics.acceptor_blocked(listener, time.perf_counter_ns() - began)
        return processor
