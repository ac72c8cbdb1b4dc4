"""Clients in consumer groups (KIP-848): they share, fail over, and outlive a kill of the broker.

librdkafka and Java's consumer are in one group. The broker's session and heartbeat times are
shortened, as a test of a client would.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from system_tests.faults.conftest import Starter
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.harness.jars import kafka_tools
from system_tests.harness.waiting import wait_until

pytestmark = pytest.mark.minibroker

QUICK: Final = {
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "2000",
    "group.consumer.assignment.interval.ms": "100",
    "num.partitions": "6",
}
Names = Callable[[str], str]

PARTITIONS: Final = 6


class Members:
    """Consumers of one group, which are polled in turn."""

    def __init__(self, broker: RunningBroker, group: str) -> None:
        self._settings = {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.max.ms": 200,
        }
        self.consumers: list[Consumer] = []
        self.read: list[bytes] = []
        self.errors: list[str] = []

    def join(self, topic: str) -> Consumer:
        consumer = Consumer(self._settings)
        consumer.subscribe([topic])
        self.consumers.append(consumer)
        return consumer

    def poll(self) -> None:
        for consumer in self.consumers:
            message = consumer.poll(0.02)
            if message is None:
                continue
            error = message.error()
            if error is None:
                self.read.append(message.value())
            elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
                self.errors.append(str(error))

    def count_read(self) -> int:
        """Number of records that were read, with those that are there now."""
        self.poll()
        return len(self.read)

    def owned(self) -> list[list[int]]:
        """Partitions of each consumer."""
        self.poll()
        return [sorted(at.partition for at in each.assignment()) for each in self.consumers]

    def share_all(self) -> bool:
        """Whether each partition has one owner, and each consumer has some."""
        owned = self.owned()
        return all(owned) and sorted(chain(*owned)) == list(range(PARTITIONS))

    def commit_all(self, topic: str, offset: int) -> None:
        """Commit an offset of all partitions by the only member."""
        (consumer,) = self.consumers
        self.commit(consumer, topic, list(range(PARTITIONS)), offset)

    def commit(self, consumer: Consumer, topic: str, partitions: list[int], offset: int) -> None:
        offsets = [TopicPartition(topic, at, offset) for at in partitions]
        consumer.commit(offsets=offsets, asynchronous=False)

    def close(self) -> None:
        for consumer in self.consumers:
            consumer.close()


@pytest.fixture
def members_of() -> Iterator[Callable[[RunningBroker, str], Members]]:
    made: list[Members] = []

    def make(broker: RunningBroker, group: str) -> Members:
        made.append(Members(broker, group))
        return made[-1]

    yield make
    for each in made:
        each.close()


def produce(broker: RunningBroker, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, str(number), partition=number % PARTITIONS)
    assert producer.flush(10) == 0


def lines(path: Path) -> list[str]:
    """Lines that are records: numbers."""
    return [line for line in path.read_text().splitlines() if line.isdecimal()]


def view(broker: RunningBroker, group: str) -> Any:
    return ask(broker, "GET", f"/v1/groups/{group}")


def test_members_share_fail_over_and_outlive_a_kill(
    start: Starter,
    fresh: Names,
    tmp_path: Path,
    fixed_listener: str,
    members_of: Callable[[RunningBroker, str], Members],
) -> None:
    topic, group = fresh("shared"), fresh("group")
    options: dict[str, Any] = {
        "data_dir": tmp_path / "data",
        "listener": fixed_listener,
        "settings": QUICK,
    }
    broker = start(**options)
    produce(broker, topic, 60)
    members = members_of(broker, group)
    members.join(topic)
    wait_until(lambda: members.count_read() == 60, "all records")
    members.commit_all(topic, 10)
    members.join(topic)
    wait_until(members.share_all, "both members to have partitions")
    before = view(broker, group)
    assert (before["type"], before["state"], len(before["members"])) == ("consumer", "Stable", 2)
    assert before["waits_for"] == []
    for consumer, owned in zip(members.consumers, members.owned(), strict=True):
        members.commit(consumer, topic, owned, 10)

    broker.kill()
    broker = start(**options)
    produce(broker, topic, 12)
    wait_until(lambda: members.count_read() == 72, "records after the kill")
    after = view(broker, group)
    assert after["generation"] == before["generation"]
    assert {each["member_id"] for each in after["members"]} == {
        each["member_id"] for each in before["members"]
    }
    assert members.share_all()

    members.consumers.pop().close()
    wait_until(members.share_all, "the last member to have all partitions")
    assert members.errors == []


@pytest.mark.java
def test_java_consumer_shares_a_group_with_librdkafka(
    start: Starter,
    fresh: Names,
    tmp_path: Path,
    members_of: Callable[[RunningBroker, str], Members],
) -> None:
    topic, group = fresh("shared"), fresh("group")
    broker = start(settings=QUICK)
    produce(broker, topic, 60)
    members = members_of(broker, group)
    members.join(topic)
    wait_until(members.share_all, "the first member to have all partitions")
    members.commit_all(topic, 10)
    output = tmp_path / "java.txt"
    command = [
        *["java", "-Xmx128m", "-cp", kafka_tools()],
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *["--bootstrap-server", broker.bootstrap_servers, "--topic", topic, "--group", group],
        *["--command-property", "group.protocol=consumer"],
    ]
    with output.open("wb") as file:
        java = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_until(
            lambda: members.owned() and len(members.owned()[0]) == PARTITIONS // 2,
            f"Java's consumer to have half of the partitions: {output.read_text()}",
        )
        wait_until(lambda: view(broker, group)["state"] == "Stable", "the group to be stable")
        assert len(view(broker, group)["members"]) == 2
        produce(broker, topic, 12)
        wait_until(lambda: len(lines(output)) == 6, "Java's consumer to read")
    finally:
        java.kill()
        java.wait()
    wait_until(members.share_all, "the session of the killed consumer to end")
    assert members.errors == []
