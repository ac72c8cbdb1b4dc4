"""The recorder role: writes to the activity topic what acceptor and processors tell.

Owns the order of events, their numbers and the batches they go into; never the topic's log, which
is an I/O worker's, nor what becomes of a request. Invariant: no two events ever have one number,
whatever dies: numbers begin at the microseconds since 1970 of the machine's own clock, or behind
the last one written if that is higher, and grow by one; a batch is written once, as its owner
knows it again by the producer id. How much it is told at a time is for those who tell, who wait
for receipts. Kafka has no such topic; its brokers log requests to a file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any, Final

import trio

from minibroker.activity.events import UNWRITTEN_MAX, Event, unpack
from minibroker.activity.merging import Merger
from minibroker.activity.schema import TOPIC
from minibroker.activity.writing import Writer
from minibroker.cluster.placement import partition_owner
from minibroker.config import ACCEPTOR_MODE, ACTIVITY_SAMPLE, NODE_ID, SINGLE
from minibroker.observability.log import Log
from minibroker.observability.metrics import Fill
from minibroker.process.environment import RECORDER, WORKER, Environment, role_name
from minibroker.process.messages import (
    ActivityAppend,
    ActivityBatch,
    ActivityWritten,
    Greeting,
    ProducerIdsRequest,
    TailRequest,
)
from minibroker.process.metadata_client import MetadataClient
from minibroker.runtime.channel import Channel, ChannelClosed
from minibroker.runtime.clock import now_ms
from minibroker.runtime.link import Conversation, Link, PeerFailed, PeerLost
from protocol.compression import Compression
from protocol.errors import DecodeError
from protocol.records import Record, build_batch, iter_records

PARTITION: Final = 0

INTERVAL_S: Final = 0.15
"""How often events are written, while there are any: what it takes to wake for that, to ask the
owner and to give receipts is as much as a hundred events take."""

HOLD_S: Final = 0.2
"""How long an event waits for earlier ones of other processes, twice what these keep theirs."""

BATCH_EVENTS: Final = 1000
BATCH_BYTES: Final = 512 * 1024
"""What a batch may hold before it is compressed, but that it holds one event at least: half of
what a topic takes, so that it does so even if nothing can be compressed."""

FINISH_S: Final = 2.0
"""How long the last events may take to come and to be written when the broker stops, in real
time."""

SEQUENCE_MAX: Final = 2**62
"""A number that no event of ours ever has, so that none overflows however many follow."""

PRODUCER_ID_RETRY_S: Final = 1.0
"""The pause, in real time, after the controller had no producer id to give."""

EPOCH_MAX: Final = 2**15 - 1
"""The last epoch of a producer id, which Kafka does not use either."""

_SEQUENCE_MASK: Final = 2**31 - 1


async def recorder(env: Environment) -> None:
    """Runs until ``env.stopping``, then writes what it was told before."""
    await _Recorder(env).run()


class _Sender:
    """A process that tells."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.dropped = 0
        """Drops that it told of and that are not written."""


class _Recorder:
    def __init__(self, env: Environment) -> None:
        self._env = env
        self._log = Log(env.name)
        self._writer = Writer(env.settings[NODE_ID], env.started_us, env.settings[ACTIVITY_SAMPLE])
        self._merger: Merger[_Sender] = Merger()
        self._senders: set[_Sender] = set()
        self._some = trio.Event()
        self._gone = trio.Event()
        self._busy = trio.Lock()
        self._sequence = 0
        self._producer_id = 0
        self._epoch = 0
        self._batch_sequence = 0
        self._lost = 0
        """Events that could not be written, which nobody was told yet."""
        self._waited_most = 0
        self._follower = MetadataClient(env)
        self._owner = Link(self._dial, self._greet)
        env.metrics.watch_busy(env.work_time.busy_ns)
        env.metrics.watch_queue("activity", self._fill)

    def _fill(self) -> Fill:
        tellers = self._env.processors + (self._env.settings[ACCEPTOR_MODE] == SINGLE)
        return Fill(len(self._merger), tellers * UNWRITTEN_MAX, self._waited_most)

    async def _dial(self) -> Channel:
        owner = partition_owner(TOPIC, PARTITION, self._env.workers)
        return await self._env.switchboard.dial(role_name(WORKER, owner))

    async def _greet(self, conversation: Conversation) -> None:
        env = self._env
        await conversation.ask(Greeting(env.role, env.index, env.incarnation))

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follower.run)
            await self._follower.wait_image()
            nursery.start_soon(self._owner.run)
            self._sequence = max(self._env.clock.real_us(), await self._last_sequence() + 1)
            await self._become_producer()
            nursery.start_soon(self._take_senders, nursery)
            nursery.start_soon(self._write_all)
            self._env.ready()
            await self._env.stopping.wait()
            await self._finish()
            nursery.cancel_scope.cancel()

    async def _become_producer(self) -> None:
        """Get a producer id, as soon as the controller can store that it is used."""
        while True:
            block = await self._follower.ask(ProducerIdsRequest())
            if block is not None:
                break
            await self._env.clock.sleep_real(PRODUCER_ID_RETRY_S)
        self._producer_id, _ = block
        self._epoch = self._batch_sequence = 0

    async def _last_sequence(self) -> int:
        """The number of the last event in the topic, -1 without one."""
        tail = await self._ask(TailRequest(TOPIC, PARTITION))
        try:
            *_, last = iter_records(tail)
            found = int(json.loads(last.value or b"")["sequence"])
        except (DecodeError, ValueError, KeyError, TypeError, RecursionError):
            return -1  # It is empty, or somebody else has written to it.
        return found if found < SEQUENCE_MAX else -1

    async def _ask(self, question: object) -> Any:
        """The owner's answer, of whichever of its lives."""
        while True:
            try:
                return await self._owner.ask(question)
            except PeerLost:
                await trio.lowlevel.checkpoint()

    # Those who tell ---------------------------------------------------------------------------

    async def _take_senders(self, nursery: trio.Nursery) -> None:
        listener = self._env.switchboard.listen(RECORDER)
        while True:
            nursery.start_soon(self._hear, _Sender(await listener.accept()))

    async def _hear(self, sender: _Sender) -> None:
        self._senders.add(sender)
        try:
            while True:
                told: ActivityBatch = await sender.channel.receive()
                self._merger.add(sender, unpack(told.chunk))
                self._waited_most = max(self._waited_most, len(self._merger))
                sender.dropped += told.dropped
                self._some.set()
        except ChannelClosed:
            pass
        finally:
            self._senders.discard(sender)
            sender.channel.close()
            self._lost += sender.dropped
            self._gone.set()

    async def _finish(self) -> None:
        """Writes all that was told; those who told have ended already, or soon will."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._give_up, nursery.cancel_scope)
            while self._senders:
                self._gone = trio.Event()
                await self._gone.wait()
            await self._write_until(math.inf)
            nursery.cancel_scope.cancel()

    async def _give_up(self, scope: trio.CancelScope) -> None:
        await self._env.clock.sleep_real(FINISH_S)
        scope.cancel()

    # Writing ----------------------------------------------------------------------------------

    async def _write_all(self) -> None:
        while True:
            await self._some.wait()
            self._some = trio.Event()
            while len(self._merger) or self._has_lost():
                await trio.sleep(INTERVAL_S)
                await self._write_until(self._now_us() - HOLD_S * 1e6)

    def _has_lost(self) -> bool:
        return self._lost > 0 or any(sender.dropped for sender in self._senders)

    def _now_us(self) -> float:
        clock = self._env.clock
        return (clock.epoch_s + clock.now()) * 1e6

    async def _write_until(self, until_us: float) -> None:
        """Writes the events up to a time, and that some are missing."""
        async with self._busy:
            taken = self._merger.take(until_us)
            drops = {sender: sender.dropped for sender in self._senders if sender.dropped}
            for sender in drops:
                sender.dropped = 0
            missing, self._lost = self._lost + sum(drops.values()), 0
            for records in _batches(chain(self._missing(missing), self._records(taken.events))):
                if not await self._append(records):
                    lost = len(records) - bool(missing)  # The first one tells what is missing.
                    self._env.metrics.activity_dropped(lost)
                    self._lost += lost + missing
                missing = 0
            for sender in self._senders.copy():
                receipt = ActivityWritten(taken.counts.get(sender, 0), drops.get(sender, 0))
                if any(receipt):
                    await self._acknowledge(sender, receipt)

    async def _acknowledge(self, sender: _Sender, receipt: ActivityWritten) -> None:
        with suppress(ChannelClosed):  # It died: nobody waits for it.
            await sender.channel.send(receipt)

    def _records(self, events: list[Event]) -> Iterator[Record]:
        write = self._writer.event
        for event in events:
            self._sequence += 1
            yield _record(event[0], write(event, self._sequence))

    def _missing(self, count: int) -> Iterator[Record]:
        if count:
            now_us, clock_ms = int(self._now_us()), now_ms(self._env.clock)
            self._sequence += 1
            yield _record(now_us, self._writer.dropped(count, self._sequence, now_us, clock_ms))

    async def _append(self, records: list[Record]) -> bool:
        """Whether the owner took them."""
        batch = build_batch(
            records,
            compression=Compression.ZSTD,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._batch_sequence,
        )
        try:
            problem = await self._ask(ActivityAppend(TOPIC, PARTITION, batch))
        except PeerFailed as failed:
            problem = str(failed)
        if not problem:
            self._batch_sequence = (self._batch_sequence + len(records)) & _SEQUENCE_MASK
            self._env.metrics.activity_written(len(records), len(batch))
            return True
        self._log.error("events can't be written", events=len(records), why=problem)
        # Whatever the owner knows of this producer, it takes the first batch of a new epoch.
        self._epoch += 1
        self._batch_sequence = 0
        if self._epoch == EPOCH_MAX:
            await self._become_producer()
        return False


def _record(time_us: int, value: bytes) -> Record:
    # Half of what it takes to make one by its fields' names.
    return Record._make((0, time_us // 1000, None, value, ()))


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    """As many records together as may be."""
    batch: list[Record] = []
    size = 0
    for record in records:
        value = record.value
        assert value is not None
        size += len(value)
        if batch and (len(batch) == BATCH_EVENTS or size > BATCH_BYTES):
            yield batch
            batch, size = [], len(value)
        batch.append(record)
    if batch:
        yield batch
