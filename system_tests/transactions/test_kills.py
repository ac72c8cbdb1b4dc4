"""A copy job in transactions loses and doubles nothing while the broker's processes are killed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from system_tests.faults.killing import kill
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.control import processes
from system_tests.harness.waiting import PATIENCE_S, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.minibroker

Names = Callable[[str], str]
RECORDS = 3_000
PER_TRANSACTION = 20
OTHERS = ("acceptor", "controller")
"""Processes that neither coordinate transactions nor store records."""


@pytest.fixture
def own_broker() -> Iterator[RunningBroker]:
    broker = start_minibroker()
    yield broker
    try:
        broker.stop()
    finally:
        broker.forget()


class CopyJob:
    """Copies ``a`` to ``b`` exactly once; starts a new producer and consumer after each failure."""

    def __init__(self, bootstrap_servers: str) -> None:
        # With the other strategy, librdkafka 2.16 forgets the only broker, and a commit waits for
        # ever for the coordinator of its group.
        self._servers = {
            "bootstrap.servers": bootstrap_servers,
            "metadata.recovery.strategy": "none",
            "log_level": 0,
        }
        self.copied = 0
        self.failures = 0
        self.done = threading.Event()
        self.stopped = threading.Event()

    def has_copied(self, count: int) -> bool:
        return self.copied >= count or self.done.is_set()

    def run(self) -> None:
        while not self.stopped.is_set() and not self.done.is_set():
            try:
                self._copy()
            except KafkaException:
                self.failures += 1

    def _copy(self) -> None:
        producer = Producer({
            **self._servers,
            "transactional.id": "copy",
            "error_cb": lambda _error: None,
        })  # fmt: skip
        producer.init_transactions(PATIENCE_S)
        consumer = Consumer({
            **self._servers,
            "group.id": "copy",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        })  # fmt: skip
        consumer.subscribe(["a"])
        try:
            while not self.stopped.is_set():
                self._copy_some(producer, consumer)
                if self.copied >= RECORDS:
                    self.done.set()
                    return
        finally:
            with suppress(KafkaException):
                consumer.close()

    def _copy_some(self, producer: Producer, consumer: Consumer) -> None:
        found = [each for each in consumer.consume(PER_TRANSACTION, 0.5) if not each.error()]
        if not found:
            return
        producer.begin_transaction()
        for message in found:
            producer.produce("b", message.value(), partition=message.partition())
        positions: list[Any] = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(
            positions, consumer.consumer_group_metadata(), PATIENCE_S
        )
        producer.commit_transaction(PATIENCE_S)
        self.copied = max(int(message.value() or b"0") for message in found) + 1


def values(bootstrap_servers: str, topic: str, count: int) -> list[int]:
    """The first ``count`` committed values of a topic, and any that follow within two seconds."""
    consumer = Consumer({
        "bootstrap.servers": bootstrap_servers,
        "group.id": f"read-{topic}",
        "isolation.level": "read_committed",
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    consumer.subscribe([topic])
    seen: list[int] = []

    def has_all() -> bool:
        seen.extend(int(each.value() or b"") for each in consumer.consume(1000, 0.5))
        return len(seen) >= count

    try:
        wait_until(has_all, f"{count} records in {topic}")
        seen.extend(int(each.value() or b"") for each in consumer.consume(1000, 2))
    finally:
        consumer.close()
    return seen


def test_copy_is_exact_while_processes_are_killed(own_broker: RunningBroker) -> None:
    servers = own_broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic("a", 1, 1), NewTopic("b", 1, 1)]).values():
        future.result(PATIENCE_S)
    source = Producer({"bootstrap.servers": servers})
    for number in range(RECORDS):
        source.produce("a", str(number), partition=0)
    assert source.flush(PATIENCE_S) == 0
    job = CopyJob(servers)
    thread = threading.Thread(target=job.run)
    thread.start()
    try:
        victims = [name for name in processes(own_broker) if name.split("-")[0] not in OTHERS]
        for kills in range(1, 7):
            wait_until(partial(job.has_copied, kills * RECORDS // 10), "progress", within_s=60)
            kill(own_broker, victims[kills % len(victims)])
        wait_until(job.done.is_set, "the copy job to end", within_s=60)
    finally:
        job.stopped.set()
        thread.join(60)
    assert values(servers, "b", RECORDS) == [*range(RECORDS)]
