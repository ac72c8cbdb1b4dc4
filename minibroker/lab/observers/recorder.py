"""The recorder role: writes the events of acceptor and processors to the activity topic.

Owns the order of events, their sequence numbers and their batches. It must never write to the
topic's log, which an I/O worker owns. Invariant: sequence numbers are unique, whatever dies: they
start at the microseconds since 1970 of the machine's clock, or after the last one written if that
is higher, and grow by one. A batch is written once, because its owner recognizes it by the producer
id. Senders limit the number of unwritten events, and wait for receipts. Kafka has no such topic;
its brokers log requests to a file.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeGuard, TypeVar

import trio

from minibroker.broker.metadata.image import partition_owner
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import Fill
from minibroker.broker.process.environment import RECORDER, WORKER, Environment, role_name
from minibroker.broker.process.messages import (
    ActivityAppend,
    ActivityBatch,
    ActivityWritten,
    ProducerIdsRequest,
    RegisterRole,
    TailRequest,
)
from minibroker.broker.process.metadata_client import MetadataClient
from minibroker.broker.settings import (
    ACCEPTOR_MODE,
    ACTIVITY_FORMAT,
    ACTIVITY_SAMPLE,
    FORMAT_JSON,
    NODE_ID,
    SINGLE,
)
from minibroker.lab.activity.events import (
    DROPPED_FIELDS,
    TOPIC,
    UNWRITTEN_MAX,
    ActivityEvent,
    Dropped,
    JsonWriter,
    WrittenEvent,
    unpack,
)
from minibroker.runtime.clock import now_ms
from minibroker.runtime.rpc import Channel, ChannelClosed, Link, PeerFailed, PeerLost, RpcConnection
from minibroker_protocol.compression import Compression
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import Record, build_batch, iter_records

if TYPE_CHECKING:
    from minibroker.lab.activity.arrow_format import ArrowWriter


PARTITION: Final = 0

INTERVAL_S: Final = 0.15
"""Interval between two writes of events: waking up, the append and the receipts cost together as
much as a hundred events.
"""

MERGE_DELAY_S: Final = 0.2
"""How long an event waits for earlier ones of other processes; twice their own delay."""

BATCH_EVENTS: Final = 1000
BATCH_BYTES: Final = 512 * 1024
"""Size of a batch before compression, unless a single event is larger: half of what a topic
accepts, so that it fits even if nothing can be compressed.
"""

FINISH_S: Final = 2.0
"""How long the last events may take to arrive and to be written when the broker stops, in real
time.
"""

SEQUENCE_MAX: Final = 2**62
"""Larger than any sequence number in use, so that none overflows."""

PRODUCER_ID_RETRY_S: Final = 1.0
"""Pause, in real time, after the controller had no producer id."""

EPOCH_MAX: Final = 2**15 - 1
"""The last epoch of a producer id, which Kafka does not use either."""

_SEQUENCE_MASK: Final = 2**31 - 1


def _writer(env: Environment) -> JsonWriter | ArrowWriter:
    arguments = env.settings[NODE_ID], env.started_us, env.settings[ACTIVITY_SAMPLE]
    if env.settings[ACTIVITY_FORMAT] == FORMAT_JSON:
        return JsonWriter(*arguments)
    from minibroker.lab.activity.arrow_format import ArrowWriter  # Takes 40 MB.

    return ArrowWriter(*arguments)


async def recorder(env: Environment) -> None:
    """Run until ``env.stopping``, then write the remaining events."""
    await _Recorder(env).run()


class _Sender:
    """A process that sends events."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.dropped = 0
        """Drops that the process reported and that are not written."""


class _Recorder:
    def __init__(self, env: Environment) -> None:
        self._env = env
        self._log = EventLog(env.name)
        self._writer = _writer(env)
        self._merger: Merger[_Sender] = Merger()
        self._senders: set[_Sender] = set()
        self._has_events = trio.Event()
        self._sender_closed = trio.Event()
        self._write_lock = trio.Lock()
        self._sequence = 0
        self._producer_id = 0
        self._epoch = 0
        self._batch_sequence = 0
        self._lost = 0
        """Events that could not be written and are not reported in the topic yet."""
        self._waiting_peak = 0
        self.metadata_client = MetadataClient(env)
        self._owner = Link(self._connect, self._register)
        env.observe(self)
        env.metrics.watch_busy(env.work_time.busy_ns)
        env.metrics.watch_queue("activity", self._fill)

    def _fill(self) -> Fill:
        senders = self._env.processors + (self._env.settings[ACCEPTOR_MODE] == SINGLE)
        return Fill(len(self._merger), senders * UNWRITTEN_MAX, self._waiting_peak)

    async def _connect(self) -> Channel:
        owner = partition_owner(TOPIC, PARTITION, self._env.workers)
        return await self._env.transport.connect(role_name(WORKER, owner))

    async def _register(self, rpc: RpcConnection) -> None:
        env = self._env
        await rpc.request(RegisterRole(env.role, env.index, env.incarnation))

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.metadata_client.run)
            await self.metadata_client.wait_image()
            nursery.start_soon(self._owner.run)
            self._sequence = max(self._env.clock.real_us(), await self._last_sequence() + 1)
            await self._init_producer_id()
            nursery.start_soon(self._accept_senders, nursery)
            nursery.start_soon(self._write_all)
            self._env.ready()
            await self._env.stopping.wait()
            await self._finish()
            nursery.cancel_scope.cancel()

    async def _init_producer_id(self) -> None:
        """Get a producer id, as soon as the controller can store that it is used."""
        while True:
            block = await self.metadata_client.request(ProducerIdsRequest())
            if block is not None:
                break
            await self._env.clock.sleep_real(PRODUCER_ID_RETRY_S)
        self._producer_id, _ = block
        self._epoch = self._batch_sequence = 0

    async def _last_sequence(self) -> int:
        """Return the sequence number of the last event in the topic, or -1 without one."""
        tail = await self._request(TailRequest(TOPIC, PARTITION))
        try:
            *_, last = iter_records(tail)
        except (DecodeError, ValueError):
            return -1  # It is empty.
        found = _sequence_in(last.value or b"")
        return found if found < SEQUENCE_MAX else -1

    async def _request(self, request: object) -> Any:
        """Ask the owner, over its restarts."""
        while True:
            try:
                return await self._owner.request(request)
            except PeerLost:
                await trio.lowlevel.checkpoint()

    # Senders ----------------------------------------------------------------------------------

    async def _accept_senders(self, nursery: trio.Nursery) -> None:
        listener = self._env.transport.listen(RECORDER)
        while True:
            nursery.start_soon(self._receive_events, _Sender(await listener.accept()))

    async def _receive_events(self, sender: _Sender) -> None:
        self._senders.add(sender)
        try:
            while True:
                batch: ActivityBatch = await sender.channel.receive()
                self._merger.add(sender, unpack(batch.chunk))
                self._waiting_peak = max(self._waiting_peak, len(self._merger))
                sender.dropped += batch.dropped
                self._has_events.set()
        except ChannelClosed:
            pass
        finally:
            self._senders.discard(sender)
            sender.channel.close()
            self._lost += sender.dropped
            self._sender_closed.set()

    async def _finish(self) -> None:
        """Write all events that were sent; the senders have ended, or soon will."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_after_limit, nursery.cancel_scope)
            while self._senders:
                self._sender_closed = trio.Event()
                await self._sender_closed.wait()
            await self._write_until(math.inf)
            nursery.cancel_scope.cancel()

    async def _cancel_after_limit(self, scope: trio.CancelScope) -> None:
        await self._env.clock.sleep_real(FINISH_S)
        scope.cancel()

    # Writing ----------------------------------------------------------------------------------

    async def _write_all(self) -> None:
        while True:
            await self._has_events.wait()
            self._has_events = trio.Event()
            while len(self._merger) or self._has_unreported_losses():
                await trio.sleep(INTERVAL_S)
                await self._write_until(self._now_us() - MERGE_DELAY_S * 1e6)

    def _has_unreported_losses(self) -> bool:
        return self._lost > 0 or any(sender.dropped for sender in self._senders)

    def _now_us(self) -> float:
        clock = self._env.clock
        return (clock.epoch_s + clock.now()) * 1e6

    async def _write_until(self, until_us: float) -> None:
        """Write the events up to a time, and how many are missing."""
        async with self._write_lock:
            merged = self._merger.take(until_us)
            drops = {sender: sender.dropped for sender in self._senders if sender.dropped}
            for sender in drops:
                sender.dropped = 0
            missing, self._lost = self._lost + sum(drops.values()), 0
            events: list[WrittenEvent] = [*merged.events]
            if missing:
                now_us, clock_ms = int(self._now_us()), now_ms(self._env.clock)
                events.insert(0, (now_us, clock_ms, missing))
            for begin in range(0, len(events), BATCH_EVENTS):
                await self._write(events[begin : begin + BATCH_EVENTS])
            for sender in self._senders.copy():
                receipt = ActivityWritten(merged.counts.get(sender, 0), drops.get(sender, 0))
                if any(receipt):
                    await self._acknowledge(sender, receipt)

    async def _acknowledge(self, sender: _Sender, receipt: ActivityWritten) -> None:
        with suppress(ChannelClosed):  # The process died: it waits for no receipt.
            await sender.channel.send(receipt)

    async def _write(self, events: list[WrittenEvent]) -> None:
        """Write events as one batch, or as several if they are large."""
        records = self._writer.records(events, self._sequence + 1)
        size = sum(len(record.value or b"") for record in records)
        if size > BATCH_BYTES and len(events) > 1:
            half = len(events) // 2
            await self._write(events[:half])
            await self._write(events[half:])
            return
        self._sequence += len(events)
        if not await self._append(records, len(events)):
            reports = [event for event in events if _is_report(event)]
            lost = len(events) - len(reports)
            self._env.metrics.activity_dropped(lost)
            self._lost += lost + sum(report[2] for report in reports)

    async def _append(self, records: list[Record], events: int) -> bool:
        """Return whether the owner appended the records of so many events."""
        batch = build_batch(
            records,
            compression=Compression.ZSTD,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            base_sequence=self._batch_sequence,
        )
        try:
            problem = await self._request(ActivityAppend(TOPIC, PARTITION, batch))
        except PeerFailed as failed:
            problem = str(failed)
        if not problem:
            self._batch_sequence = (self._batch_sequence + len(records)) & _SEQUENCE_MASK
            self._env.metrics.activity_written(events, len(batch))
            return True
        self._log.error("events can't be written", events=events, reason=problem)
        # Whatever the owner knows of this producer, it accepts the first batch of a new epoch.
        self._epoch += 1
        self._batch_sequence = 0
        if self._epoch == EPOCH_MAX:
            await self._init_producer_id()
        return False


def _is_report(event: WrittenEvent) -> TypeGuard[Dropped]:
    return len(event) == DROPPED_FIELDS


def _sequence_in(value: bytes) -> int:
    """The sequence number of the last event in a record, or -1 if it contains none."""
    try:
        if value[:1] != b"{":
            from minibroker.lab.activity.arrow_format import read_batch

            return int(read_batch(value)["sequence"][-1].as_py())
        return int(json.loads(value)["sequence"])
    # Another client has written to it, or events are JSON now and pyarrow was uninstalled.
    except (ValueError, OverflowError, LookupError, TypeError, RecursionError, ImportError):
        return -1


# --------------------------------------------------------------------------------------------------
# Merges the events of several processes by time.
#
# Owns the events that wait because earlier ones may still arrive. It must never read a clock, nor
# know more of an event than that its first field is its time. Invariant: every added event is taken
# exactly once, events that are taken together are sorted by time, and events of one sender with the
# same time keep their order. Kafka has one process, whose threads share a queue.

Sender = TypeVar("Sender", bound=Hashable)

_TIME: Final = itemgetter(0)


class Taken(NamedTuple, Generic[Sender]):
    """Sorted events, and their number by sender."""

    events: list[ActivityEvent]
    counts: dict[Sender, int]


class Merger(Generic[Sender]):
    """Waiting events. The caller bounds their number."""

    def __init__(self) -> None:
        self._waiting: dict[Sender, list[ActivityEvent]] = {}

    def __len__(self) -> int:
        """Number of waiting events."""
        return sum(map(len, self._waiting.values()))

    def add(self, sender: Sender, events: Sequence[ActivityEvent]) -> None:
        self._waiting.setdefault(sender, []).extend(events)

    def take(self, until_us: float) -> Taken[Sender]:
        """Remove and return the events up to a time, inclusive."""
        taken = Taken[Sender]([], {})
        for sender, events in list(self._waiting.items()):
            events.sort(key=_TIME)  # almost sorted already
            count = bisect_right(events, until_us, key=_TIME)
            if count:
                taken.events.extend(events[:count])
                taken.counts[sender] = count
                del events[:count]
            if not events:
                del self._waiting[sender]
        taken.events.sort(key=_TIME)
        return taken
