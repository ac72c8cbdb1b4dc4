"""Adapter for confluent-kafka, the Python client that wraps librdkafka.

It translates between the scenarios' interface and the package's, and contains no expectations.
librdkafka's own (negative) error codes are passed on as they are. Invariant: a member commits
inside the revocation callback, where librdkafka still owns the partitions.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
)
from confluent_kafka import TopicPartition as Position
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

from system_tests.clients.model import (
    CLIENT_MAX_BYTES,
    HEARTBEAT_MS,
    SESSION_MS,
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
)
from system_tests.harness.waiting import PATIENCE_S, TimedOut

__all__ = ["ConfluentClient"]


def _answer(future: Future[Any]) -> Any:
    try:
        return future.result(PATIENCE_S)
    except KafkaException as failure:
        raise _refused(failure.args[0]) from failure


# Errors from the broker for which librdkafka has its own code.
_BROKERS_WORDS = {KafkaError._AUTO_OFFSET_RESET: Code.OFFSET_OUT_OF_RANGE}


def _refused(error: KafkaError) -> Refused:
    return Refused(_BROKERS_WORDS.get(error.code(), error.code()), error.str())


def _stored(message: Message) -> Stored:
    kind, timestamp_ms = message.timestamp()
    return Stored(
        message.topic(),
        message.partition(),
        message.offset(),
        -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp_ms,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


class ConfluentMember(Member):
    def __init__(self, settings: Mapping[str, Any], topic: str) -> None:
        self._fatal: KafkaError | None = None
        self._consumer = consumer = Consumer({**settings, "error_cb": self._on_error})
        consumer.subscribe([topic], on_assign=self._on_assign, on_revoke=self._on_revoke)

    def _on_assign(self, consumer: Consumer, partitions: list[Position]) -> None:
        self.assignments += 1

    def _on_revoke(self, consumer: Consumer, partitions: list[Position]) -> None:
        self.commit()

    def _on_error(self, error: KafkaError) -> None:
        # librdkafka handles all other errors itself; a fatal error is reported only here.
        if error.code() == KafkaError._FATAL:
            self._fatal = error

    def poll(self, timeout_s: float = 0.1) -> list[Stored]:
        # Wait for the first message, then take those that are buffered.
        seen: list[Stored] = []
        message = self._consumer.poll(timeout_s)
        if self._fatal is not None:
            fenced = "group.instance.id" in self._fatal.str()
            raise Refused(Code.FENCED_INSTANCE_ID if fenced else -1, self._fatal.str())
        while message is not None:
            if message.error():
                raise _refused(message.error())
            seen.append(_stored(message))
            message = self._consumer.poll(0) if len(seen) < 500 else None
        return seen

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset((each.topic, each.partition) for each in self._consumer.assignment())

    def commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException as failure:
            if failure.args[0].code() != KafkaError._NO_OFFSET:  # nothing was consumed yet
                raise _refused(failure.args[0]) from failure

    def committed(self, topic: str, partition: int) -> int | None:
        [position] = self._consumer.committed([Position(topic, partition)], PATIENCE_S)
        return None if position.offset < 0 else position.offset

    def close(self) -> None:
        self._consumer.close()


class ConfluentClient(Client):
    name = "confluent-kafka"
    sends_zero_partitions = False

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self._common = {"bootstrap.servers": bootstrap_servers, "client.id": self.client_id}
        self._admin = AdminClient(self._common)
        self._producers: dict[Producing, Producer] = {}
        self._reader_made: Consumer | None = None

    @property
    def _reader(self) -> Consumer:
        if self._reader_made is None:
            self._reader_made = Consumer(
                {
                    **self._common,
                    "group.id": f"{self.client_id}-reader",
                    "enable.auto.commit": False,
                    "auto.offset.reset": "error",
                    "receive.message.max.bytes": 8 * CLIENT_MAX_BYTES,
                    "fetch.max.bytes": CLIENT_MAX_BYTES,
                    "message.max.bytes": CLIENT_MAX_BYTES,
                }
            )
        return self._reader_made

    def _create(self, name: str, partitions: int, replicas: int, configs: dict[str, str]) -> None:
        topic = NewTopic(name, partitions, replicas, config=configs)
        _answer(self._admin.create_topics([topic])[name])

    def delete_topic(self, name: str) -> None:
        _answer(self._admin.delete_topics([name])[name])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics(timeout=PATIENCE_S).topics)

    def leaders(self, topic: str) -> dict[int, int]:
        found = self._admin.list_topics(topic, timeout=PATIENCE_S).topics[topic]
        if found.error is not None:
            raise _refused(found.error)
        return {index: each.leader for index, each in found.partitions.items()}

    def _configs(self, kind: str, name: str) -> dict[str, str | None]:
        resource = ConfigResource(ConfigResource.Type[kind.upper()], name)
        entries = _answer(self._admin.describe_configs([resource])[resource])
        return {key: entry.value for key, entry in entries.items()}

    def cluster(self) -> Cluster:
        seen = _answer(self._admin.describe_cluster())
        nodes = tuple((node.id, node.host, node.port) for node in seen.nodes)
        return Cluster(seen.cluster_id, seen.controller.id, nodes)

    def groups(self) -> set[str]:
        return {each.group_id for each in _answer(self._admin.list_consumer_groups()).valid}

    def describe_group(self, group: str) -> Group:
        seen = _answer(self._admin.describe_consumer_groups([group])[group])
        members = tuple(
            GroupMember(
                each.client_id,
                each.group_instance_id,
                frozenset((at.topic, at.partition) for at in each.assignment.topic_partitions),
            )
            for each in seen.members
        )
        return Group(seen.state.name.replace("_", "").lower(), members)

    def _produce(
        self, topic: str, partition: int, records: Sequence[Record], how: Producing
    ) -> list[int]:
        producer = self._producer(how)
        offsets = [-1] * len(records)
        failures: list[KafkaError] = []

        def delivered(index: int, error: KafkaError | None, message: Message) -> None:
            if error is not None:
                failures.append(error)
            else:
                offset = message.offset()
                offsets[index] = -1 if offset is None or offset < 0 else offset

        for index, record in enumerate(records):
            producer.produce(
                topic,
                record.value,
                record.key,
                partition,
                on_delivery=lambda error, message, at=index: delivered(at, error, message),
                headers=list(record.headers),
                **({} if record.timestamp_ms is None else {"timestamp": record.timestamp_ms}),
            )
        if producer.flush(PATIENCE_S):
            raise TimedOut(f"not all of {len(records)} records were acknowledged")
        if failures:
            raise _refused(failures[0])
        return offsets

    def _producer(self, how: Producing) -> Producer:
        if how not in self._producers:
            self._producers[how] = Producer(
                {
                    **self._common,
                    "compression.type": how.codec,
                    "acks": how.acks,
                    "enable.idempotence": how.idempotent,
                    "message.max.bytes": CLIENT_MAX_BYTES,
                    "linger.ms": 5,
                    "message.timeout.ms": int(PATIENCE_S * 1000),
                }
            )
        return self._producers[how]

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Stored]:
        seen: list[Stored] = []
        deadline = time.monotonic() + PATIENCE_S
        # An explicit metadata request finds the topic's leader at once instead of within a second.
        self._reader.list_topics(topic, timeout=PATIENCE_S)
        self._reader.assign([Position(topic, partition, offset)])
        try:
            while len(seen) < count:
                message = self._reader.poll(0.1)
                if message is not None and message.error():
                    raise _refused(message.error())
                if message is not None:
                    seen.append(_stored(message))
                elif time.monotonic() > deadline:
                    raise TimedOut(f"{len(seen)} of {count} records read from {topic}")
        finally:
            self._reader.unassign()
        return seen

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        at = Position(topic, partition)
        low, high = (
            _answer(self._admin.list_offsets({at: spec})[at]).offset
            for spec in (OffsetSpec.earliest(), OffsetSpec.latest())
        )
        return low, high

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        wanted = [Position(topic, partition, timestamp_ms)]
        [found] = self._reader.offsets_for_times(wanted, PATIENCE_S)
        if found.error is not None:
            raise _refused(found.error)
        return None if found.offset < 0 else found.offset

    def committed_by(self, group: str) -> dict[TopicPartition, int]:
        """Return every committed offset of a group, as an administrator sees them."""
        [answer] = self._admin.list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group)]
        ).values()
        return {
            (each.topic, each.partition): each.offset for each in _answer(answer).topic_partitions
        }

    def _join(self, group: str, topic: str, how: Joining) -> Member:
        return ConfluentMember(
            {
                **self._common,
                "group.id": group,
                "partition.assignment.strategy": how.assignor,
                "auto.offset.reset": how.start,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": how.max_wait_ms,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                **({} if how.instance_id is None else {"group.instance.id": how.instance_id}),
            },
            topic,
        )

    def close(self) -> None:
        if self._reader_made is not None:
            self._reader_made.close()
