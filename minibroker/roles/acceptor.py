"""The acceptor role: takes connections from the kernel and deals them out to processors.

Owns the round robin, the wait for a free slot and, in its ``Door``, the limits of connections;
never a byte of what a client says. One task per listener accepts, one per processor listens to
what it tells, one sees to it that there are not too many. Invariant: a connection is handed to one
processor or closed, and is counted as long as it is open, whichever process dies: an acceptor
that is reborn accepts nothing before each processor has told what it has. While a listener's next
connection waits nothing more is accepted there than that one, and the time is counted as blocked
(KIP-402's ``AcceptorBlockedPercent``).
"""

from __future__ import annotations

from typing import Final

import trio

from minibroker.admission.acceptor_messages import (
    OFFERS_MAX,
    Accepted,
    Done,
    Leave,
    Offers,
    OffersWanted,
    Present,
)
from minibroker.admission.connection_quotas import Door, Refused, newcomer
from minibroker.admission.descriptor_health import DescriptorHealth
from minibroker.admission.limit_names import PROCESSORS
from minibroker.admission.rejected_connections import TurnedAway
from minibroker.admission.slots import SLOTS, Slots
from minibroker.cluster.image import BROKER, IP
from minibroker.connections.counts import Use
from minibroker.network.activity_sender import teller
from minibroker.network.reports import AcceptorReport
from minibroker.observability.definitions import CloseReason
from minibroker.observability.log import ConnectionCloses, Log
from minibroker.observability.metrics import Fill
from minibroker.process.environment import (
    FIRST_LIFE,
    Environment,
    RoleRefusedError,
    handoff_name,
)
from minibroker.process.metadata_client import Follower
from minibroker.runtime.channel import ChannelClosed
from minibroker.runtime.handoff import Connection, Handoff, addresses
from minibroker.runtime.listening import ConnectionSource

ACCEPTED_BEFORE_YIELD: Final = 16
"""Connections taken in a row before others get their turn: while some come and are turned away
without end, nothing else in the loop need ever wait.
"""


async def acceptor(env: Environment) -> None:
    """Runs until ``env.stopping``."""
    env.metrics.watch_busy(env.work_time.busy_ns)
    refusal = ""
    async with trio.open_nursery() as nursery:
        role = _Acceptor(env, nursery)
        nursery.start_soon(role.follower.run)
        nursery.start_soon(role.look_up_hosts)
        if role.teller is not None:
            nursery.start_soon(role.teller.run)
        nursery.start_soon(role.turned_away.run)
        nursery.start_soon(role.descriptor_health.run)
        for processor in range(env.processors):
            nursery.start_soon(role.attend, processor)
        await role.follower.wait_image()
        if env.incarnation == FIRST_LIFE:
            refusal = await role.unknown_host()
        if not refusal:
            for listener, source in env.listeners.items():
                nursery.start_soon(role.accept, listener, source)
            nursery.start_soon(role.see_to_it_that_there_are_not_too_many)
            env.ready()
            await env.stopping.wait()
            if role.teller is not None:
                await role.teller.finish()
        nursery.cancel_scope.cancel()
    if refusal:
        raise RoleRefusedError(refusal)


class _Acceptor:
    def __init__(self, env: Environment, nursery: trio.Nursery) -> None:
        self._env = env
        self._nursery = nursery
        self._slots = Slots(env.processors)
        self._handoffs: dict[int, Handoff] = {}
        self._freed = trio.Event()
        self._unheard = set(range(env.processors))
        self._all_heard = trio.Event()
        self._asked: set[int] = set()
        self._answered = trio.Event()
        self._offers: list[Use] = []
        self._accepted = 0
        self._log = Log("acceptor")
        self._closes = ConnectionCloses(env.metrics, self._log)
        self.descriptor_health = DescriptorHealth(env, self._log)
        self.teller = teller(env)
        tell = None if self.teller is None else self.teller.happened
        self._door = Door(env, self._log, tell)
        self._happenings = self._door.happenings
        self.turned_away = TurnedAway(env, self._happenings, self._closes)
        self.follower = Follower(
            env, on_image=self._door.on_image, details=self._report, configs=(IP, BROKER)
        )
        for processor in range(env.processors):
            self._watch(processor)

    async def look_up_hosts(self) -> None:
        """Looks up the hosts that have limits, until cancelled."""
        await self._door.hosts.run()

    async def unknown_host(self) -> str:
        """What is wrong with the hosts that the broker was started with; empty if nothing is."""
        return await self._door.unknown_host()

    def _watch(self, processor: int) -> None:
        def fill() -> Fill:
            return Fill(self._slots.used(processor), SLOTS, self._slots.peak(processor))

        self._env.metrics.watch_queue(f"connections-{processor}", fill)

    def _report(self) -> AcceptorReport:
        used = tuple(self._slots.used(processor) for processor in range(self._env.processors))
        return AcceptorReport(used, self._door.figures(), self._happenings.lately())

    async def attend(self, processor: int) -> None:
        """Keeps in touch with one processor, in all of its lives."""
        while True:
            handoff = await self._env.switchboard.dial_handoff(handoff_name(processor))
            try:
                await self._attend_life(processor, handoff)
            except ChannelClosed:
                pass  # It died; the next dialling waits for its next life.
            finally:
                self._slots.left(processor)
                self._handoffs.pop(processor, None)
                handoff.close()
                self._door.processor_died(processor)
                self._answer(processor, ())

    async def _attend_life(self, processor: int, handoff: Handoff) -> None:
        # A processor tells what it has when it listens: until then it gets no connections.
        more = True
        while more:
            present, _ = await handoff.receive()
            assert isinstance(present, Present)
            self._door.found(processor, present.connections)
            more = present.more
        self._handoffs[processor] = handoff
        self._slots.joined(processor)
        self._freed.set()
        self._unheard.discard(processor)
        if not self._unheard:
            self._all_heard.set()
        while True:
            message, _ = await handoff.receive()
            if isinstance(message, Done):
                self._done(processor, message)
            else:
                assert isinstance(message, Offers)
                self._answer(processor, message.uses)

    def _done(self, processor: int, done: Done) -> None:
        if done.taken:
            self._slots.freed(processor, done.taken)
            self._freed.set()
        self._door.left(done.closed)
        if self._door.counts.excess():
            self._door.notify()  # What was taken may be sent away now.

    async def accept(self, listener: str, source: ConnectionSource) -> None:
        """Takes one listener's connections, one after the other."""
        await self._all_heard.wait()
        in_a_row = 0
        while True:
            in_a_row += 1
            if in_a_row >= self.turned_away.most_in_a_row(ACCEPTED_BEFORE_YIELD):
                in_a_row = 0
                await trio.lowlevel.checkpoint()
            try:
                connection = await source.accept()
            except OSError as error:
                self.turned_away.close_all()
                await self.descriptor_health.accept_failed(listener, error)
                continue
            self._env.metrics.connection_accepted(listener)
            local, peer = addresses(connection)
            self._accepted += 1
            number = self._env.incarnation << 32 | self._accepted
            if await self._take_in(Accepted(listener, local, peer, number), connection):
                await self.turned_away.pause()

    async def _take_in(self, accepted: Accepted, connection: Connection) -> bool:
        """Whether it was let in, so that a processor has it now."""
        try:
            until = await self._door.enter(newcomer(accepted))
            if until is not None:
                self._nursery.start_soon(self._hold, accepted, connection, until)
            else:
                await self._hand_over(accepted, connection)
                return True
        except Refused as refused:
            self.turned_away.refuse(accepted, connection, refused.reason, refused.limit)
        except trio.Cancelled:
            connection.close()
            raise
        return False

    async def _hold(self, accepted: Accepted, connection: Connection, until: float) -> None:
        """Keeps a connection whose address is too fast; whoever comes next does not wait for it."""
        try:
            await trio.sleep_until(until)
            await self._door.enter_again(newcomer(accepted))
            await self._hand_over(accepted, connection)
        except Refused as refused:
            self.turned_away.refuse(accepted, connection, refused.reason, refused.limit)
        except trio.Cancelled:
            connection.close()
            raise

    async def _hand_over(self, accepted: Accepted, connection: Connection) -> None:
        processor = await self._free_processor(accepted)
        self._door.counts.handed(accepted.number, processor)
        self._happenings.note("handed", accepted, processor)
        try:
            await self._handoffs[processor].send(accepted, connection)
        except ChannelClosed:
            # The processor died with the connection in its hands: the client dials again.
            self._door.left((accepted.number,))
            died = CloseReason.PROCESS_DIED
            self._happenings.refuse(accepted, died.value, processor=processor)
            self._closes.refused(accepted.listener, died, client=accepted.peer)

    async def _free_processor(self, accepted: Accepted) -> int:
        processor = self._slots.take()
        if processor is not None:
            return processor
        with self._door.blocked(accepted, PROCESSORS):
            while processor is None:
                if self._freed.is_set():
                    self._freed = trio.Event()
                await self._freed.wait()
                processor = self._slots.take()
        return processor

    async def see_to_it_that_there_are_not_too_many(self) -> None:
        """Has the least recently used connections closed, of all processors' and no more than
        there are too many.
        """
        while True:
            changed = self._door.changed
            excess = self._door.counts.excess()
            if excess:
                offers = await self._gather(min(excess, OFFERS_MAX))
                for processor, numbers in self._door.counts.send_away(offers).items():
                    await self._tell(processor, Leave(tuple(numbers)))
            await changed.wait()

    async def _gather(self, count: int) -> list[Use]:
        self._offers = []
        self._asked = set(self._handoffs)
        self._answered = trio.Event()
        wanted = OffersWanted(count, self._door.counts.limits.protected)
        for processor in list(self._asked):
            await self._tell(processor, wanted)
        while self._asked:
            await self._answered.wait()
        return self._offers

    def _answer(self, processor: int, uses: tuple[Use, ...]) -> None:
        self._offers.extend(uses)
        self._asked.discard(processor)
        if not self._asked:
            self._answered.set()

    async def _tell(self, processor: int, message: object) -> None:
        handoff = self._handoffs.get(processor)
        try:
            if handoff is not None:
                await handoff.send(message)
        except ChannelClosed:
            pass  # It died, and its connections with it.
