"""aiokafka, which runs on asyncio; its loop lives in a thread of its own.

It owns that loop and the translation between the scenarios' words and the package's; no
expectations live here. The package's administration answers with raw responses, so error codes are
looked for here. The invariant: everything of aiokafka is touched in the loop's thread only.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka import TopicPartition as Position
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import BrokerResponseError, OffsetOutOfRangeError

from system_tests.clients.model import (
    CLIENT_MAX_BYTES,
    Client,
    Cluster,
    Code,
    Group,
    GroupMember,
    Joining,
    Member,
    Producing,
    Record,
    Refused,
    Stored,
    TopicPartition,
    consumer_options,
    producer_options,
    stored_records,
)
from system_tests.harness.waiting import PATIENCE_S, TimedOut

__all__ = ["AiokafkaClient"]

T = TypeVar("T")


class _Loop:
    """An asyncio loop in a thread, into which calls are made and waited for."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka")
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with _translated():
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * PATIENCE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OffsetOutOfRangeError as failure:
        raise Refused(Code.OFFSET_OUT_OF_RANGE, str(failure)) from failure
    except BrokerResponseError as failure:
        raise Refused(failure.errno, str(failure)) from failure


def _check(code: int, text: str | None = "") -> None:
    if code:
        raise Refused(code, text or "")


class AiokafkaMember(Member):
    def __init__(self, loop: _Loop, consumer: AIOKafkaConsumer) -> None:
        self._loop = loop
        self._consumer = consumer

    def poll(self, timeout_s: float = 0.1) -> list[Stored]:
        return stored_records(
            self._loop.run(self._consumer.getmany(timeout_ms=int(timeout_s * 1000)))
        )

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset((each.topic, each.partition) for each in self._consumer.assignment())

    def commit(self) -> None:
        self._loop.run(self._consumer.commit())

    def committed(self, topic: str, partition: int) -> int | None:
        found: int | None = self._loop.run(self._consumer.committed(Position(topic, partition)))
        return found

    def close(self) -> None:
        self._loop.run(self._consumer.stop())


class _CommitOnRevoke(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer
        self.member: AiokafkaMember | None = None

    async def on_partitions_revoked(self, revoked: set[Position]) -> None:
        if revoked:
            await self._consumer.commit()

    async def on_partitions_assigned(self, assigned: set[Position]) -> None:
        if self.member is not None:
            self.member.assignments += 1


class AiokafkaClient(Client):
    name = "aiokafka"
    has_cooperative = False
    notices_fencing = False

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self._loop = _Loop()
        self._common = {"bootstrap_servers": bootstrap_servers, "client_id": self.client_id}
        self._producers: dict[Producing, AIOKafkaProducer] = {}
        self._admin, self._reader = self._loop.run(self._open())

    async def _open(self) -> tuple[AIOKafkaAdminClient, AIOKafkaConsumer]:
        admin = AIOKafkaAdminClient(**self._common)
        reader = AIOKafkaConsumer(
            **self._common,
            auto_offset_reset="none",
            max_partition_fetch_bytes=CLIENT_MAX_BYTES,
        )
        await admin.start()
        await reader.start()
        return admin, reader

    def _create(self, name: str, partitions: int, replicas: int, configs: dict[str, str]) -> None:
        topic = NewTopic(name, partitions, replicas, topic_configs=configs)
        for _, code, text in self._loop.run(self._admin.create_topics([topic])).topic_errors:
            _check(code, text)

    def delete_topic(self, name: str) -> None:
        for each in self._loop.run(self._admin.delete_topics([name])).topic_error_codes:
            _check(each[1])

    def topics(self) -> set[str]:
        return set(self._loop.run(self._admin.list_topics()))

    def leaders(self, topic: str) -> dict[int, int]:
        [found] = self._loop.run(self._admin.describe_topics([topic]))
        _check(found["error_code"])
        return {each["partition"]: each["leader"] for each in found["partitions"]}

    def _configs(self, kind: str, name: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResourceType[kind.upper()], name)
        [answer] = self._loop.run(self._admin.describe_configs([resource]))
        [(code, text, _, _, entries)] = answer.resources
        _check(code, text)
        return {entry[0]: entry[1] for entry in entries}

    def cluster(self) -> Cluster:
        seen = self._loop.run(self._admin.describe_cluster())
        nodes = tuple((each["node_id"], each["host"], each["port"]) for each in seen["brokers"])
        return Cluster(seen.get("cluster_id"), seen["controller_id"], nodes)

    def groups(self) -> set[str]:
        return {each[0] for each in self._loop.run(self._admin.list_consumer_groups())}

    def describe_group(self, group: str) -> Group:
        [answer] = self._loop.run(self._admin.describe_consumer_groups([group]))
        [seen] = answer.to_object()["groups"]
        _check(seen["error_code"])
        members = tuple(
            GroupMember(
                each["client_id"],
                each.get("group_instance_id"),
                _partitions(each["member_assignment"]),
            )
            for each in seen["members"]
        )
        return Group(seen["state"].lower(), members)

    def _produce(
        self, topic: str, partition: int, records: Sequence[Record], how: Producing
    ) -> list[int]:
        answers = self._loop.run(self._send(how, topic, partition, records))
        return [-1 if answer is None else answer.offset for answer in answers]

    async def _send(
        self, how: Producing, topic: str, partition: int, records: Sequence[Record]
    ) -> list[Any]:
        if how not in self._producers:
            self._producers[how] = AIOKafkaProducer(**self._common, **producer_options(how))
            await self._producers[how].start()
        futures = [
            await self._producers[how].send(
                topic,
                record.value,
                record.key,
                partition,
                record.timestamp_ms,
                list(record.headers),
            )
            for record in records
        ]
        return list(await asyncio.gather(*futures))

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Stored]:
        return self._loop.run(self._read(Position(topic, partition), offset, count))

    async def _read(self, at: Position, offset: int, count: int) -> list[Stored]:
        seen: list[Stored] = []
        deadline = time.monotonic() + PATIENCE_S
        self._reader.assign([at])
        try:
            self._reader.seek(at, offset)
            while len(seen) < count:
                seen += stored_records(await self._reader.getmany(timeout_ms=100))
                if len(seen) < count and time.monotonic() > deadline:
                    raise TimedOut(f"{len(seen)} of {count} records read from {at}")
        finally:
            self._reader.unsubscribe()
        return seen

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        at = Position(topic, partition)
        low = self._loop.run(self._reader.beginning_offsets([at]))
        high = self._loop.run(self._reader.end_offsets([at]))
        return low[at], high[at]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        at = Position(topic, partition)
        found = self._loop.run(self._reader.offsets_for_times({at: timestamp_ms}))[at]
        return None if found is None else found.offset

    def _join(self, group: str, topic: str, how: Joining) -> Member:
        assert how.assignor == "range", "aiokafka has eager assignors only"
        return self._loop.run(self._start_member(group, topic, how))

    async def _start_member(self, group: str, topic: str, how: Joining) -> Member:
        consumer = AIOKafkaConsumer(
            **self._common,
            **consumer_options(group, how),
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        member = AiokafkaMember(self._loop, consumer)
        listener = _CommitOnRevoke(consumer)
        listener.member = member
        consumer.subscribe([topic], listener=listener)
        await consumer.start()
        return member

    def close(self) -> None:
        async def shut() -> None:
            for producer in self._producers.values():
                await producer.stop()
            await self._reader.stop()
            await self._admin.close()

        self._loop.run(shut())
        self._loop.close()


def _partitions(assignment: bytes) -> frozenset[TopicPartition]:
    if not assignment:
        return frozenset()
    decoded = ConsumerProtocolMemberAssignment.decode(assignment)
    return frozenset((each.topic, each.partition) for each in decoded.partitions())
