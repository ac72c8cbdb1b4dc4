"""Real share consumers (KIP-932): what they acknowledge outlives a kill of the broker.

Java's consumer acknowledges records one by one, librdkafka's all that it has polled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, ShareConsumer

from system_tests.faults.conftest import Starter
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.control import ask
from system_tests.harness.jars import java_driver
from system_tests.harness.line_process import LineProcess
from system_tests.harness.waiting import wait_until

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

Names = Callable[[str], str]
WARM_UP = "warm-up"


@pytest.fixture
def java_consumer() -> Iterator[Callable[[RunningBroker, str, str], LineProcess]]:
    started: list[LineProcess] = []

    def start(broker: RunningBroker, group: str, topic: str) -> LineProcess:
        command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-cp", java_driver(), "ShareClient"]
        started.append(LineProcess([*command, broker.bootstrap_servers, group, topic]))
        return started[-1]

    yield start
    for process in started:
        process.close()


def produce(broker: RunningBroker, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(10) == 0


def polled(process: LineProcess, wait_ms: int = 200) -> dict[str, int]:
    """Delivery counts by value."""
    words = process.ask(f"poll {wait_ms}").split()
    return {value: int(count) for value, count in (word.split("/") for word in words)}


def test_acknowledged_records_do_not_come_again_after_a_kill(
    start: Starter,
    fresh: Names,
    tmp_path: Path,
    fixed_listener: str,
    java_consumer: Callable[[RunningBroker, str, str], LineProcess],
) -> None:
    topic, group = fresh("jobs"), fresh("workers")
    options: dict[str, Any] = {"data_dir": tmp_path / "data", "listener": fixed_listener}
    broker = start(**options)
    produce(broker, topic, "before the group")
    java = java_consumer(broker, group, topic)

    def is_reading() -> bool:
        produce(broker, topic, WARM_UP)  # A share group reads new records only.
        return bool(polled(java))

    wait_until(is_reading, "the consumer to read")
    while WARM_UP in java.ask(f"ack ACCEPT {WARM_UP}") + java.ask("commit"):
        pass
    values = [f"job-{number}" for number in range(30)]
    produce(broker, topic, *values)
    held: dict[str, int] = {}
    while not held.keys() >= set(values):
        for value, count in polled(java).items():
            held[value] = count
            if value == WARM_UP:
                java.ask(f"ack ACCEPT {WARM_UP}")
        if held.keys() < set(values):  # All must be acknowledged before the next poll.
            java.ask("ack RELEASE " + " ".join(value for value in held if value in values))
            java.ask("commit")
            held.clear()
    java.ask("ack ACCEPT " + " ".join(values[:10]))
    java.ask("ack RELEASE " + " ".join(values[10:15]))
    java.ask("ack REJECT " + " ".join(values[15:20]))
    assert set(java.ask("commit").split()) == {"ok"}
    view = ask(broker, "GET", f"/v1/groups/{group}")
    assert (view["type"], view["state"], len(view["members"])) == ("share", "Stable", 1)
    (partition,) = view["share_partitions"]
    # The consumer fetches in the background, and may have released records again already.
    assert (partition["acquired"] + partition["available"], partition["acquired"] >= 10) == (
        15,
        True,
    )
    broker.kill()
    java.close()

    broker = start(**options)
    consumer = ShareConsumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    consumer.subscribe([topic])
    again: list[str] = []

    def count_again() -> int:
        again.extend(message.value().decode() for message in consumer.poll(0.2) or ())
        return len(set(again))

    wait_until(lambda: count_again() >= 15, "the other records")
    consumer.poll(0.5)
    consumer.close()
    assert sorted(again) == sorted([*values[10:15], *values[20:]])
