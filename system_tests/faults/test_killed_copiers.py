"""Kafka's TransactionalMessageCopier copies exactly once while it and the broker are killed."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from system_tests.connections.dialling import Client
from system_tests.faults.conftest import Starter
from system_tests.faults.killing import kill, kill_all, names_of
from system_tests.harness.brokers import RunningBroker
from system_tests.harness.jars import classpath
from system_tests.harness.jvm import short_jvm
from system_tests.harness.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.minibroker, pytest.mark.java]

COPIERS = 2
"""Each of them copies one partition."""
RECORDS = 6_000
"""Records in each partition."""
PER_TRANSACTION = 20
TIMEOUT_MS = 5_000
"""The timeout of transactions: a copier asks for its position before it ends the transaction of its
predecessor, and the answer has to wait for the end of that.
"""
SETTINGS = {
    "num.io.threads": "2",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}
SAFE_DOWNGRADE = 2


class Copier:
    """One process of Kafka's program, which ends when everything is copied."""

    def __init__(self, jars: Path, bootstrap_servers: str, number: int, log: IO[bytes]) -> None:
        command = [
            *short_jvm("-Xmx128m"),
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            *("-cp", classpath(jars), "org.apache.kafka.tools.TransactionalMessageCopier"),
            *("--broker-list", bootstrap_servers, "--transactional-id", f"copy-{number}"),
            *("--input-topic", "a", "--input-partition", str(number), "--output-topic", "b"),
            *("--consumer-group", "copy", "--transaction-size", str(PER_TRANSACTION)),
            *("--transaction-timeout", str(TIMEOUT_MS)),
            *("--use-group-metadata", "--enable-random-aborts"),
        ]
        self._process = subprocess.Popen(command, stdout=log, stderr=log)

    @property
    def status(self) -> int | None:
        """The exit status, or None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)


class Copies:
    """Reads the committed records of the output topic, and sees what they lack."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = Consumer({
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        })  # fmt: skip
        self._consumer.assign([TopicPartition("b", index, 0) for index in range(COPIERS)])
        self.values: list[list[int]] = [[] for _ in range(COPIERS)]

    def have(self, count: int) -> bool:
        """Whether each partition has so many copies, after reading for a moment."""
        for message in self._consumer.consume(1000, 0.1):
            if message.error() is None:
                self.values[message.partition() or 0].append(int(message.value() or b""))
        return all(len(values) >= count for values in self.values)

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture
def begin(kafka_libs: Path, tmp_path: Path) -> Iterator[Callable[..., Copier]]:
    """Start copiers, which are ended with the test."""
    started: list[Copier] = []
    with (tmp_path / "copiers").open("wb") as log:

        def begin_copier(broker: RunningBroker, number: int) -> Copier:
            started.append(Copier(kafka_libs, broker.bootstrap_servers, number, log))
            return started[-1]

        yield begin_copier
        for copier in started:
            copier.kill()


def prepare(broker: RunningBroker, version: int) -> None:
    """Lower the transaction version and fill the input topic."""
    change = FeatureUpdateKey(
        feature="transaction.version", max_version_level=version, upgrade_type=SAFE_DOWNGRADE
    )
    with Client(broker.address) as client:
        if version != 2:
            response = client.ask(UpdateFeaturesRequest(feature_updates=[change]), 1)
            assert response.error_code == ErrorCode.NONE
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topics = [NewTopic(name, COPIERS, 1) for name in ("a", "b")]
    for future in admin.create_topics(topics).values():
        future.result(PATIENCE_S)
    source = Producer({"bootstrap.servers": broker.bootstrap_servers})
    for number in range(RECORDS):
        for index in range(COPIERS):
            source.produce("a", str(number), str(index), partition=index)
    assert source.flush(PATIENCE_S) == 0


@pytest.mark.parametrize("version", [2, 0])
def test_copies_are_exact_while_copiers_and_broker_are_killed(
    start: Starter,
    fixed_listener: str,
    begin: Callable[..., Copier],
    tmp_path: Path,
    version: int,
) -> None:
    folder = tmp_path / "data"
    broker = start(data_dir=folder, listener=fixed_listener, settings=SETTINGS)
    prepare(broker, version)
    copies = Copies(broker.bootstrap_servers)
    running = [begin(broker, number) for number in range(COPIERS)]

    def log() -> str:
        return (tmp_path / "copiers").read_text()[-4000:]

    def have_tenths(count: int) -> bool:
        assert not any(copier.status for copier in running), log()
        return copies.have(count * RECORDS // 10)

    def restart_copier(number: int) -> None:
        running[number].kill()
        running[number] = begin(broker, number)

    def restart_broker() -> None:
        nonlocal broker
        kill_all(broker)
        broker = start(data_dir=folder, listener=fixed_listener, settings=SETTINGS)

    def restart_everything() -> None:
        for copier in running:
            copier.kill()
        restart_broker()
        running[:] = [begin(broker, number) for number in range(COPIERS)]

    def kill_worker(number: int) -> None:
        kill(broker, sorted(names_of(broker, "worker"))[number])

    steps: list[Callable[[], None]] = [
        partial(restart_copier, 0),
        *(partial(kill_worker, number) for number in range(2)),
        restart_broker,
        partial(restart_copier, 1),
        restart_everything,
    ]
    try:
        for tenths, step in enumerate(steps, 1):
            wait_until(partial(have_tenths, tenths), f"{tenths} tenths of the copies")
            step()
        wait_until(partial(have_tenths, 10), "all copies")
        wait_until(lambda: all(copier.status == 0 for copier in running), "the copiers to end")
    finally:
        copies.close()
    assert copies.values == [[*range(RECORDS)]] * COPIERS
