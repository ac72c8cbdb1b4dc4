"""kafka-python 3, written in Python throughout.

It owns the translation between the scenarios' words and the package's; no expectations live here.
The invariant: a member commits inside the revocation callback, where it still owns the partitions,
and every error of the package that carries Kafka's number becomes `Refused`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from kafka import AsyncConsumerRebalanceListener, KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as Position
from kafka.admin import ConfigResource, KafkaAdminClient
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import FencedInstanceIdError, KafkaError, OffsetOutOfRangeError

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

__all__ = ["KafkaPythonClient"]

ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OffsetOutOfRangeError as failure:
        raise Refused(Code.OFFSET_OUT_OF_RANGE, str(failure)) from failure
    except KafkaError as failure:
        if getattr(failure, "errno", 0) > 0:
            raise Refused(failure.errno, str(failure)) from failure
        raise


class _CommitOnRevoke(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Called on the package's own network thread, where its blocking calls are forbidden.

    With cooperative assignors the package has already dropped the positions of what is taken, so
    the member's own are committed.
    """

    def __init__(self, member: KafkaPythonMember, consumer: KafkaConsumer) -> None:
        self._member = member
        self._consumer = consumer

    async def on_partitions_revoked(self, revoked: Any) -> None:
        mine = self._member.done
        done = {each: mine.pop(each) for each in revoked if each in mine}
        if done:
            with suppress(FencedInstanceIdError):
                await self._consumer.commit_async(done)

    async def on_partitions_assigned(self, assigned: Any) -> None:
        self._member.assignments += 1

    async def on_partitions_lost(self, lost: Any) -> None:
        # Another member has them now; there is nothing left to commit.
        for each in lost:
            self._member.done.pop(each, None)


class KafkaPythonMember(Member):
    """Polls on a thread of its own, and long.

    The package throws away a join that ends between two calls of poll and starts another, so that
    members polled in turn, each for a moment, would never finish a rebalance.
    """

    def __init__(self, consumer: KafkaConsumer, topic: str) -> None:
        self._consumer = consumer
        self._polled: queue.Queue[list[Stored] | KafkaError] = queue.Queue()
        self._closing = False
        self.done: dict[Position, OffsetAndMetadata] = {}
        # A member that joins a group before it has metadata assigns no partition for minutes.
        consumer.partitions_for_topic(topic)
        consumer.subscribe([topic], listener=_CommitOnRevoke(self, consumer))
        self._thread = threading.Thread(target=self._keep_polling, name="kafka-python member")
        self._thread.start()

    def _keep_polling(self) -> None:
        while not self._closing:
            try:
                polled = self._consumer.poll(timeout_ms=1000)
            except KafkaError as failure:
                self._polled.put(failure)
                return
            for position, batch in polled.items():
                self.done[position] = OffsetAndMetadata(batch[-1].offset + 1, "", -1)
            if polled:
                self._polled.put(stored_records(polled))

    def poll(self, timeout_s: float = 0.1) -> list[Stored]:
        try:
            polled = self._polled.get(timeout=timeout_s)
        except queue.Empty:
            return []
        if isinstance(polled, KafkaError):
            with _translated():
                raise polled
        return polled

    def assignment(self) -> frozenset[TopicPartition]:
        return frozenset((each.topic, each.partition) for each in self._consumer.assignment())

    def commit(self) -> None:
        with _translated():
            self._consumer.commit(dict(self.done))

    def committed(self, topic: str, partition: int) -> int | None:
        with _translated():
            found: int | None = self._consumer.committed(Position(topic, partition))
            return found

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._consumer.close()


class KafkaPythonClient(Client):
    name = "kafka-python"
    reports_config_errors = False

    def __init__(self, bootstrap_servers: str) -> None:
        super().__init__(bootstrap_servers)
        self._common = {"bootstrap_servers": bootstrap_servers, "client_id": self.client_id}
        self._admin = KafkaAdminClient(**self._common)
        self._producers: dict[Producing, KafkaProducer] = {}
        self._reader = KafkaConsumer(
            **self._common,
            group_id=None,
            auto_offset_reset="none",
            allow_auto_create_topics=False,
            max_partition_fetch_bytes=CLIENT_MAX_BYTES,
        )

    def _create(self, name: str, partitions: int, replicas: int, configs: dict[str, str]) -> None:
        wanted = {"num_partitions": partitions, "replication_factor": replicas, "configs": configs}
        with _translated():
            self._admin.create_topics({name: wanted})

    def delete_topic(self, name: str) -> None:
        with _translated():
            self._admin.delete_topics([name])

    def topics(self) -> set[str]:
        return set(self._admin.list_topics())

    def leaders(self, topic: str) -> dict[int, int]:
        [found] = self._admin.describe_topics([topic])
        if found["error_code"]:
            raise Refused(found["error_code"])
        return {each["partition_index"]: each["leader_id"] for each in found["partitions"]}

    def _configs(self, kind: str, name: str) -> dict[str, str | None]:
        found = self._admin.describe_configs([ConfigResource(kind, name)], config_filter="all")
        return {key: entry["value"] for key, entry in found[kind][name].items()}

    def cluster(self) -> Cluster:
        seen = self._admin.describe_cluster()
        nodes = tuple((each["broker_id"], each["host"], each["port"]) for each in seen["brokers"])
        return Cluster(seen["cluster_id"], seen["controller_id"], nodes)

    def groups(self) -> set[str]:
        return {each["group_id"] for each in self._admin.list_groups()}

    def describe_group(self, group: str) -> Group:
        seen = self._admin.describe_groups([group])[group]
        members = tuple(
            GroupMember(
                each["client_id"],
                each["group_instance_id"],
                frozenset(
                    (given["topic"], index)
                    for given in (each["member_assignment"] or {}).get("assigned_partitions", ())
                    for index in given["partitions"]
                ),
            )
            for each in seen["members"]
        )
        return Group(seen["group_state"].lower(), members)

    def _produce(
        self, topic: str, partition: int, records: Sequence[Record], how: Producing
    ) -> list[int]:
        producer = self._producer(how)
        with _translated():
            futures = [
                producer.send(
                    topic,
                    record.value,
                    record.key,
                    list(record.headers),
                    partition,
                    record.timestamp_ms,
                )
                for record in records
            ]
            return [future.get(PATIENCE_S).offset for future in futures]

    def _producer(self, how: Producing) -> KafkaProducer:
        if how not in self._producers:
            self._producers[how] = KafkaProducer(**self._common, **producer_options(how))
        return self._producers[how]

    def read(self, topic: str, partition: int, offset: int, count: int) -> list[Stored]:
        seen: list[Stored] = []
        deadline = time.monotonic() + PATIENCE_S
        at = Position(topic, partition)
        self._reader.assign([at])
        try:
            self._reader.seek(at, offset)
            while len(seen) < count:
                with _translated():
                    seen += stored_records(self._reader.poll(timeout_ms=100))
                if len(seen) < count and time.monotonic() > deadline:
                    raise TimedOut(f"{len(seen)} of {count} records read from {topic}")
        finally:
            self._reader.unsubscribe()
        return seen

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        at = Position(topic, partition)
        with _translated():
            return self._reader.beginning_offsets([at])[at], self._reader.end_offsets([at])[at]

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        at = Position(topic, partition)
        with _translated():
            found = self._reader.offsets_for_times({at: timestamp_ms})[at]
        return None if found is None else found.offset

    def _join(self, group: str, topic: str, how: Joining) -> Member:
        consumer = KafkaConsumer(
            **self._common,
            **consumer_options(group, how),
            partition_assignment_strategy=[ASSIGNORS[how.assignor]],
        )
        return KafkaPythonMember(consumer, topic)

    def close(self) -> None:
        self._reader.close()
        self._admin.close()
        for producer in self._producers.values():
            producer.close(timeout=1)
