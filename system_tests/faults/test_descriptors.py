"""Brokers with few descriptors: a shortage is shown and ends, and many partitions need few."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from system_tests.faults.conftest import Starter
from system_tests.faults.killing import kill_all
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.harness.processes import open_files, resident_bytes, tree
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.minibroker

FEW = 100
"""Descriptors of each process, a third of which it needs for itself."""

ORDINARY = 1024
"""Descriptors of a process where no limit was raised."""

TOPICS, PARTITIONS = 10, 1000
"""Topics, and partitions of each."""


def conditions(broker: RunningBroker) -> list[tuple[str, str]]:
    found = ask(broker, "GET", "/v1/health")["conditions"]
    return [(each["process"], each["kind"]) for each in found]


@pytest.mark.parametrize("mode", ["single", "sharded"])
def test_shortage_of_descriptors_is_shown_and_ends_while_the_clock_is_frozen(
    start: Starter, mode: str
) -> None:
    broker = start(
        settings={"acceptor.mode": mode, "num.network.threads": "1"},
        wrapper=("prlimit", f"--nofile={FEW}", "--"),
    )
    frozen_at_ms = ask(broker, "POST", "/v1/clock", {"freeze": True})["wall_ms"]
    with ExitStack() as clients:
        for _ in range(FEW):
            clients.enter_context(socket.create_connection(broker.address))
        wait_until(lambda: conditions(broker), "the shortage to be shown")
        assert conditions(broker) == [("processor-0", "descriptors_exhausted")]
        assert ask(broker, "GET", "/v1/health")["status"] == "degraded"
        assert broker.printed().count("descriptors are exhausted") == 1
    wait_until(lambda: not conditions(broker), "the shortage to end")
    assert "descriptors are available again" in broker.printed()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    assert len(admin.list_topics(timeout=60).brokers) == 1
    assert ask(broker, "GET", "/v1/clock")["wall_ms"] == frozen_at_ms


def record(partition: TopicPartition) -> bytes:
    return f"{partition.topic} {partition.partition}".encode()


def create(broker: RunningBroker, topics: list[str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in topics]).values():
        created.result()


def produce(broker: RunningBroker, partitions: list[TopicPartition]) -> None:
    """Write one record to each partition."""
    failed: list[object] = []
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 0}
    )
    for each in partitions:
        producer.produce(
            each.topic,
            record(each),
            partition=each.partition,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert failed == []


def fetch(broker: RunningBroker, partitions: list[TopicPartition]) -> dict[tuple[str, int], bytes]:
    """Read until as many records as partitions were received; returns the last one of each."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
        }
    )
    found: dict[tuple[str, int], bytes] = {}

    def all_found() -> bool:
        for message in consumer.consume(1000, 0.1):
            assert message.error() is None
            assert message.offset() == 0
            found[message.topic(), message.partition()] = message.value()
        return len(found) == len(partitions)

    try:
        consumer.assign([TopicPartition(each.topic, each.partition, 0) for each in partitions])
        wait_until(all_found, "the records of all partitions")
    finally:
        consumer.close()
    return found


def memory_and_descriptors(broker: RunningBroker) -> str:
    family = tree(broker.pid)
    most = max(map(open_files, family))
    assert most < ORDINARY * 3 // 4, "the rest is for connections"
    return f"{resident_bytes(family) / 2**20:.0f} MiB, at most {most} descriptors"


@pytest.mark.slow
@pytest.mark.alone
def test_many_partitions_survive_a_kill_with_few_descriptors(
    start: Starter, fresh: Callable[[str], str], tmp_path: Path
) -> None:
    def begin() -> RunningBroker:
        limit = ("prlimit", f"--nofile={ORDINARY}", "--")
        started_s = time.monotonic()
        broker = start(data_dir=tmp_path / "data", wrapper=limit)
        print(f"ready after {time.monotonic() - started_s:.1f} s: {memory_and_descriptors(broker)}")
        return broker

    topics = [fresh("many") for _ in range(TOPICS)]
    partitions = [TopicPartition(topic, index) for topic in topics for index in range(PARTITIONS)]
    expected = {(each.topic, each.partition): record(each) for each in partitions}
    broker = begin()
    create(broker, topics)
    produce(broker, partitions)
    assert fetch(broker, partitions) == expected
    print(f"all written and read: {memory_and_descriptors(broker)}")
    kill_all(broker)
    again = begin()
    assert fetch(again, partitions) == expected
    print(f"all read again: {memory_and_descriptors(again)}")
    assert conditions(again) == []
    for each in (broker, again):
        assert " ERROR " not in each.printed()
        assert "Traceback" not in each.printed()
