"""Kafka Streams with `group.protocol=streams`: its tasks outlive kills of the broker and of itself.

The application counts words in two instances, with a repartition topic and a changelog that the
broker creates.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker_protocol.messages.streams_group_describe import StreamsGroupDescribeRequest
from system_tests.connections.dialling import Client
from system_tests.faults.conftest import Starter
from system_tests.faults.killing import kill
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.harness.jars import java_driver
from system_tests.harness.jvm import short_jvm
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

Names = Callable[[str], str]
PARTITIONS = 2
WORDS = [f"w{number}" for number in range(10)]
QUICK = {
    "group.streams.initial.rebalance.delay.ms": "0",
    "group.streams.min.heartbeat.interval.ms": "100",
    "group.streams.heartbeat.interval.ms": "200",
    "group.streams.min.session.timeout.ms": "1000",
    "group.streams.session.timeout.ms": "3000",
    "group.streams.topology.description.plugin.class": "any",
    "process.mode": "separate",
}
SETTINGS = ("group.protocol=streams", "consumer.group.instance.id=")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Callable[[RunningBroker, str], subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    with (tmp_path / "log").open("wb") as log:

        def start(broker: RunningBroker, name: str) -> subprocess.Popen[bytes]:
            folder = str(tmp_path / f"state-{len(started)}")
            topics = (f"{name}-lines", f"{name}-counts")
            command = [
                *short_jvm("-Xmx192m"),
                "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
                *("-cp", java_driver(), "WordCount", broker.bootstrap_servers, name, *topics),
                *(folder, *SETTINGS),
            ]
            started.append(subprocess.Popen(command, stdout=log, stderr=log))
            return started[-1]

        yield start
        for process in started:
            process.kill()
            process.wait(PATIENCE_S)


def produce_words(broker: RunningBroker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for index in range(PARTITIONS):
        producer.produce(topic, " ".join(WORDS), partition=index)
    assert producer.flush(PATIENCE_S) == 0


class Counts:
    """The last count of each word."""

    def __init__(self, topic: str) -> None:
        self._topic = topic

    def last(self, broker: RunningBroker) -> Counter[str]:
        consumer = Consumer({
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
        })  # fmt: skip
        consumer.assign([TopicPartition(self._topic, index, 0) for index in range(PARTITIONS)])
        found: Counter[str] = Counter()
        for message in consumer.consume(1000, 0.5):
            assert message.error() is None, message.error()
            found[(message.key() or b"").decode()] = int(message.value() or b"")
        consumer.close()
        return found


def tasks_by_member(broker: RunningBroker, group: str) -> dict[str, set[tuple[str, int]]]:
    """The active tasks of each member of a stable group; none while it is not stable."""
    view: dict[str, Any] = ask(broker, "GET", f"/v1/groups/{group}")
    if view["state"] != "Stable":
        return {}
    return {
        member["member_id"]: {
            (task["subtopology"], task["partition"])
            for task in member["streams"]["tasks"]
            if task["role"] == "active"
        }
        for member in view["members"]
    }


def described_topics(broker: RunningBroker, group: str) -> set[str]:
    """The topics in the description of the topology; none while a member has sent none."""
    request = StreamsGroupDescribeRequest(group_ids=[group], include_topology_description=True)
    with Client(broker.address) as client:
        (found,) = client.ask(request, 1).groups
    if found.topology_description is None:
        return set()
    nodes = [node for each in found.topology_description.subtopologies for node in each.nodes]
    sources = {topic for node in nodes for topic in node.source_topics}
    return sources | {node.sink_topic for node in nodes if node.sink_topic}


def test_tasks_outlive_kills_of_worker_broker_and_instance(
    start: Starter,
    fresh: Names,
    tmp_path: Path,
    fixed_listener: str,
    instance: Callable[[RunningBroker, str], subprocess.Popen[bytes]],
) -> None:
    name = fresh("word-count")
    options: dict[str, Any] = {"data_dir": tmp_path / "data", "listener": fixed_listener}
    broker = start(settings=QUICK, **options)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topics = [NewTopic(f"{name}-{which}", PARTITIONS, 1) for which in ("lines", "counts")]
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE_S)
    counts, rounds = Counts(f"{name}-counts"), 0

    def are_counted() -> bool:
        return counts.last(broker) == Counter(dict.fromkeys(WORDS, PARTITIONS * rounds))

    def count_again() -> None:
        nonlocal rounds
        rounds += 1
        produce_words(broker, f"{name}-lines")
        wait_until(are_counted, f"the counts of round {rounds}")

    first = instance(broker, name)
    count_again()
    whole = {(subtopology, index) for subtopology in "01" for index in range(PARTITIONS)}
    assert list(tasks_by_member(broker, name).values()) == [whole]
    wait_until(lambda: described_topics(broker, name), "the description of the topology")
    assert described_topics(broker, name) >= {f"{name}-lines", f"{name}-counts"}

    instance(broker, name)
    wait_until(lambda: len(tasks_by_member(broker, name)) == 2, "two members")
    shares = tasks_by_member(broker, name)
    assert sorted(map(len, shares.values())) == [2, 2]
    assert set().union(*shares.values()) == whole
    epoch = ask(broker, "GET", f"/v1/groups/{name}")["generation"]
    count_again()

    kill(broker, "worker-0")
    count_again()
    broker.kill()
    broker = start(settings=QUICK, **options)
    count_again()
    assert tasks_by_member(broker, name) == shares
    assert ask(broker, "GET", f"/v1/groups/{name}")["generation"] == epoch

    first.kill()
    wait_until(
        lambda: list(tasks_by_member(broker, name).values()) == [whole], "all tasks at one member"
    )
    count_again()
