"""Actors of a run: producers, consumers, an admin, and one that causes faults.

Owns what each does and what it reports to the history. It must never know how roles work. Requests
take no virtual time, so actors act at multiples of ``TICK_S``: this is how actions coincide with
each other and with kills. Invariant: an actor's randomness comes from the seed and its name, so a
run can be repeated from its seed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from random import Random
from typing import Any, Final
from zlib import crc32

import trio

from minibroker.runtime.stream import StreamClosed
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from minibroker_protocol.messages.init_producer_id import InitProducerIdRequest
from minibroker_protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from minibroker_protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records
from minibroker_protocol.schema import Message
from tests.simulation.client import SimulatedClient
from tests.simulation.fair_errors import ERRORS
from tests.simulation.history import Partition
from tests.simulation.rare_paths import KILLED
from tests.simulation.surroundings import World

TICK_S: Final = 0.05
STUCK_S: Final = 60.0
"""Maximum time to wait for a response."""
IMPATIENT_S: Final = 5.0
"""The same while fault rules may leave requests without responses."""
HOPELESS_S: Final = 300.0
"""Maximum time until a retried request succeeds, however often roles are killed."""
HOPELESS_TRIES: Final = 100
"""The same in attempts, because faults advance the clock."""

AWAY: Final = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}
"""Errors for an existing partition while its owner restarts."""


class RetriesExhaustedError(Exception):
    """A request that should succeed was retried for too long."""


class Actor:
    """A client with one connection at a time and its own random numbers."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = Random(f"{world.seed} {name}")
        self.client: SimulatedClient | None = None
        self.has_ended = False
        """Whether ``run`` has returned."""

    async def run(self) -> None:
        """Act until done or until actors may end."""
        raise NotImplementedError

    async def ask(
        self, request: Message, versions: tuple[int, int], *, patience_s: float = STUCK_S
    ) -> Any:
        """Send a request in a random version; None if the connection ends before the response."""
        if self.world.has_rules:
            patience_s = min(patience_s, IMPATIENT_S)
        version = self.random.randint(*versions)
        what = f"{type(request).__name__} v{version}"
        with trio.move_on_after(patience_s) as scope, self.world.extended(scope):
            try:
                if self.client is None:
                    self.client = await self.world.connect(self.name)
                response = await self.client.ask(request, version)
            except StreamClosed:
                self.disconnect()
                self.world.record(self.name, f"{what}: disconnected")
                return None
            self.world.record(self.name, f"{what}: {crc32(self.client.received):08x}")
            return response
        if patience_s == STUCK_S:
            self.world.history.wrong("stuck", f"{self.name} got no answer to {request}")
        self.disconnect()
        self.world.record(self.name, f"{what}: gave up")
        return None

    def is_tolerated(self, api: str, code: ErrorCode) -> bool:
        """Whether a response of this API may have this error for an existing partition."""
        return code in AWAY or (self.world.has_rules and code.name in ERRORS[api])

    def disconnect(self) -> None:
        """Close the connection; the next request opens a new one."""
        if self.client is not None:
            self.client.close()
            self.client = None

    async def pause(self, ticks_max: int = 4) -> None:
        """Wait for one to ``ticks_max`` ticks."""
        await trio.sleep(TICK_S * self.random.randint(1, ticks_max))

    async def until(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat ``attempt`` until it returns something, and return that."""
        deadline, tries = trio.current_time() + HOPELESS_S, 0
        while (result := await attempt()) is None:
            tries += 1
            if tries > HOPELESS_TRIES and trio.current_time() > deadline:
                raise RetriesExhaustedError(
                    f"{self.name} never got on", self.world.history.anomalies
                )
            await self.pause(2)
        return result

    async def topic_id(self, topic: str) -> bytes:
        """Return the id of a topic, waiting until it exists."""

        async def attempt() -> bytes | None:
            found = await self.describe(topic)
            return None if found is None or found.error_code else found.topic_id

        result: bytes = await self.until(attempt)
        return result

    async def describe(self, topic: str) -> Any:
        """Return a topic's metadata; None if the connection ends before the response."""
        wanted = MetadataRequestTopic(name=topic)
        request = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
        response = await self.ask(request, (10, 13))
        return None if response is None else response.topics[0]


class Admin(Actor):
    """Creates, deletes and recreates topics, and checks that all connections see it at once."""

    async def run(self) -> None:
        number = 0
        while not self.world.may_end:
            number += 1
            await self._one_topic(f"extra-{number}")

    async def create(self, topic: str, partitions: int) -> bool:
        """Wait until the topic exists; return whether this client created it."""

        async def attempt() -> bool | None:
            wanted = CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
            response = await self.ask(CreateTopicsRequest(topics=[wanted]), (2, 7))
            code = None if response is None else ErrorCode(response.topics[0].error_code)
            if code is ErrorCode.TOPIC_ALREADY_EXISTS:
                return False
            return True if code is ErrorCode.NONE else None

        made: bool = await self.until(attempt)
        return made

    async def _one_topic(self, topic: str) -> None:
        if await self.create(topic, self.random.randint(1, 4)):
            await self._expect(topic, exists=True)
        await self.pause()
        if await self._append(topic) and await self._delete(topic):
            await self._expect(topic, exists=False)
            await self.create(topic, 1)
            if await self._end(topic):
                self.world.history.wrong("haunted", f"new {topic} has records of its namesake")
        await self.pause()

    async def _expect(self, topic: str, *, exists: bool) -> None:
        self.disconnect()  # Another processor accepts the next connection.
        found = await self.until(lambda: self.describe(topic))
        if (found.error_code == ErrorCode.NONE) is not exists:
            self.world.history.wrong(
                "unseen", f"{topic} should {'' if exists else 'not '}exist: {found}"
            )

    async def _append(self, topic: str) -> bool:
        data = PartitionProduceData(index=0, records=build_batch([Record(0, 0, None, b"x:0")]))
        request = ProduceRequest(
            acks=1, topic_data=[TopicProduceData(name=topic, partition_data=[data])]
        )
        response = await self.ask(request, (3, 12))
        return response is not None and not (
            response.responses[0].partition_responses[0].error_code
        )

    async def _delete(self, topic: str) -> bool:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], topic_names=[topic])
        response = await self.ask(request, (1, 6))
        return response is not None and response.responses[0].error_code == ErrorCode.NONE

    async def _end(self, topic: str) -> int:
        async def attempt() -> int | None:
            wanted = ListOffsetsTopic(
                name=topic, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
            )
            response = await self.ask(ListOffsetsRequest(topics=[wanted]), (1, 11))
            if response is None or response.topics[0].partitions[0].error_code:
                return None
            end: int = response.topics[0].partitions[0].offset
            return end

        found: int = await self.until(attempt)
        return found


class Producer(Actor):
    """Appends records idempotently, retrying each request until it is acknowledged."""

    def __init__(self, world: World, name: str, batches_max: int) -> None:
        super().__init__(world, name)
        self.batches = self.random.randint(1, batches_max)

    async def run(self) -> None:
        self.producer_id, self.epoch = await self.until(self._register)
        self.sequences: Counter[Partition] = Counter()
        ids = {topic: await self.topic_id(topic) for topic in self.world.topics}
        number = 0
        for _ in range(self.batches):
            batches: dict[Partition, list[str]] = {}
            for partition in self.random.sample(self.world.partitions, self.random.randint(1, 3)):
                count = self.random.randint(1, 3)
                batches[partition] = [f"{self.name}:{number + n}" for n in range(count)]
                number += count
            request = self._request(batches, ids)
            patience_s = self.random.choice((TICK_S, STUCK_S))
            await self.until(partial(self._append, request, batches, patience_s))
            for partition, values in batches.items():
                self.sequences[partition] += len(values)
            if self.random.random() < 0.7:
                await self.pause(2)

    async def _register(self) -> tuple[int, int] | None:
        response = await self.ask(InitProducerIdRequest(transactional_id=None), (0, 5))
        if response is None or response.error_code:
            return None
        return response.producer_id, response.producer_epoch

    def _request(
        self, batches: dict[Partition, list[str]], ids: dict[str, bytes]
    ) -> ProduceRequest:
        topics = {
            topic: TopicProduceData(name=topic, topic_id=ids[topic], partition_data=[])
            for topic in dict.fromkeys(topic for topic, _ in batches)
        }
        for (topic, index), values in batches.items():
            records = build_batch(
                [Record(0, self.world.wall_ms(), None, value.encode()) for value in values],
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self.sequences[topic, index],
            )
            data = PartitionProduceData(index=index, records=records)
            topics[topic].partition_data.append(data)
        return ProduceRequest(acks=-1, topic_data=list(topics.values()))

    async def _append(
        self, request: ProduceRequest, batches: dict[Partition, list[str]], patience_s: float
    ) -> bool | None:
        response = await self.ask(request, (3, 13), patience_s=patience_s)
        if response is None:
            return None
        done = True
        names = {asked.topic_id: asked.name for asked in request.topic_data}
        for topic in response.responses:
            for result in topic.partition_responses:
                partition = (topic.name or names[topic.topic_id], result.index)
                code = ErrorCode(result.error_code)
                if code is ErrorCode.NONE:
                    self.world.history.appended(partition, result.base_offset, batches[partition])
                    continue
                done = False
                if not self.is_tolerated("Produce", code):
                    self.world.history.wrong(
                        "refused", f"{code.name}: {batches[partition]} for {partition}"
                    )
        return done or None


class Consumer(Actor):
    """Reads everything from the start, with long polls over the partitions of all owners."""

    async def run(self) -> None:
        positions = dict.fromkeys(self.world.partitions, 0)
        ids = {topic: await self.topic_id(topic) for topic in self.world.topics}
        while not self.world.may_end or self._behind(positions):
            wait_ms, bytes_min = self.random.choice(((0, 1), (1000, 1), (2000, 300)))
            request = fetch_request(positions, ids, wait_ms=wait_ms, bytes_min=bytes_min)
            request.max_bytes = self.random.choice((200, 2000, 1 << 20))
            patience_s = self.random.choice((STUCK_S, STUCK_S, TICK_S))
            await self.fetch(request, positions, self.name, patience_s=patience_s)
            if self.random.random() < 0.5:
                await self.pause(2)

    def _behind(self, positions: dict[Partition, int]) -> bool:
        known = self.world.history.known_end
        return any(known(partition) > at for partition, at in positions.items())

    async def fetch(
        self,
        request: FetchRequest,
        positions: dict[Partition, int],
        consumer: str,
        *,
        patience_s: float = STUCK_S,
    ) -> None:
        """Fetch available records and advance ``positions``."""
        history = self.world.history
        known = {partition: history.known_end(partition) for partition in positions}
        response = await self.ask(request, (4, 18), patience_s=patience_s)
        if response is None:
            await self.pause()
            return
        names = {asked.topic_id: asked.topic for asked in request.topics}
        for topic in response.responses:
            for found in topic.partitions:
                partition = (topic.topic or names[topic.topic_id], found.partition_index)
                code = ErrorCode(found.error_code)
                if code is not ErrorCode.NONE:
                    if not self.is_tolerated("Fetch", code):
                        history.wrong("refused", f"{code.name}: fetching {partition}")
                    continue
                history.shown_end(partition, known[partition], found.high_watermark)
                for offset, value in values(found.records):
                    if offset >= positions[partition]:
                        history.read(consumer, partition, offset, value)
                        positions[partition] = offset + 1


def fetch_request(
    positions: dict[Partition, int], ids: dict[str, bytes], *, wait_ms: int, bytes_min: int
) -> FetchRequest:
    """Return a fetch request for all ``positions``."""
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        topics=[
            FetchTopic(
                topic=topic,
                topic_id=ids[topic],
                partitions=[
                    FetchPartition(partition=index, fetch_offset=at, partition_max_bytes=1 << 20)
                    for (name, index), at in positions.items()
                    if name == topic
                ],
            )
            for topic in dict.fromkeys(topic for topic, _ in positions)
        ],
    )


def values(records: bytes | memoryview | None) -> Iterable[tuple[int, str]]:
    """Offset and value of each record in complete batches."""
    data = bytes(records or b"")
    for at, header in iter_batches(data):
        for record in iter_records(data[at : at + header.size]):
            assert record.value is not None
            yield record.offset, record.value.decode()


class OffsetObserver(Actor):
    """Repeatedly lists the end offsets of all partitions."""

    async def run(self) -> None:
        history = self.world.history
        while not self.world.may_end:
            known = {partition: history.known_end(partition) for partition in self.world.partitions}
            response = await self._ends()
            for topic in () if response is None else response.topics:
                for found in topic.partitions:
                    partition = (topic.name, found.partition_index)
                    if found.error_code == ErrorCode.NONE:
                        history.shown_end(partition, known[partition], found.offset)
            await self.pause()

    async def _ends(self) -> Any:
        topics = [
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=index, timestamp=-1)
                    for name, index in self.world.partitions
                    if name == topic
                ],
            )
            for topic in self.world.topics
        ]
        return await self.ask(ListOffsetsRequest(topics=topics), (1, 11))


class FaultInjector(Actor):
    """Kills roles at random moments, and advances the clock."""

    advances_ms = (100, 3000, 20_000)
    ticks_max = 5
    """Longest pause between two faults."""

    async def run(self) -> None:
        broker = self.world.broker
        while not self.world.faults_ended:
            await self.pause(self.ticks_max)
            for _ in range(self.random.randrange(150)):
                await trio.lowlevel.checkpoint()
            if self.random.random() < 0.2:
                self.world.record(self.name, "turns the clock")
                self.world.advance(self.random.choice(self.advances_ms))
                continue
            victims = self.random.sample(broker.names, self.random.choice((1, 1, 1, 2)))
            self.world.record(self.name, f"kills {' and '.join(victims)}")
            self.world.counts[KILLED] += len(victims)
            for victim in victims:
                self.world.kill(victim)
