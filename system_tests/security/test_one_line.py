"""Brokers that are secured by one option, with the configurations that their clients are given."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Producer

from minibroker.testing import MiniBroker
from system_tests.harness.brokers import start_minibroker
from system_tests.harness.kafka_tools import KafkaTools
from system_tests.harness.waiting import PATIENCE_S

pytestmark = pytest.mark.minibroker

TOPICS = "org.apache.kafka.tools.TopicCommand"
CASES: dict[str, dict[str, Any]] = {
    "tls": {"tls": True},
    "mutual tls": {"tls": "mutual"},
    "plain": {"sasl": "plain"},
    "tls and scram": {"tls": True, "sasl": "scram-sha-512"},
    "mutual tls and scram": {"tls": "mutual", "sasl": "scram-sha-256"},
}


@pytest.fixture(scope="module", params=CASES)
def broker(request: pytest.FixtureRequest) -> Iterator[MiniBroker]:
    with MiniBroker(**CASES[request.param]) as made:
        yield made


@pytest.fixture(scope="module")
def tools(kafka_libs: Path) -> Iterator[KafkaTools]:
    made = KafkaTools()
    yield made
    made.close()


def produced(config: dict[str, Any], topic: str) -> int:
    """How many of one message confluent-kafka has sent."""
    producer = Producer({**config, "log_level": 0, "message.timeout.ms": 5000})
    errors: list[object] = []
    producer.produce(topic, b"one", on_delivery=lambda error, _: errors.append(error))
    producer.flush(PATIENCE_S)
    return sum(error is None for error in errors)


def test_clients_of_python_read_what_another_has_written(
    broker: MiniBroker, fresh: Callable[[str], str]
) -> None:
    topic = broker.create_topic(fresh("secured"))
    assert produced(broker.client_config(), topic) == 1
    consumer = kafka.KafkaConsumer(
        topic, auto_offset_reset="earliest", **broker.client_config("kafka-python")
    )
    try:
        assert next(consumer).value == b"one"
    finally:
        consumer.close()

    async def read() -> bytes | None:
        reader = aiokafka.AIOKafkaConsumer(
            topic, auto_offset_reset="earliest", **broker.client_config("aiokafka")
        )
        async with reader:
            return bytes((await reader.getone()).value)

    assert asyncio.run(asyncio.wait_for(read(), PATIENCE_S)) == b"one"


def test_client_without_the_configuration_is_rejected(
    broker: MiniBroker, fresh: Callable[[str], str]
) -> None:
    topic = broker.create_topic(fresh("open"))
    assert produced({"bootstrap.servers": broker.bootstrap_servers}, topic) == 0


@pytest.mark.java
def test_tools_of_kafka_connect_with_the_java_configuration(
    broker: MiniBroker, tmp_path: Path, tools: KafkaTools, fresh: Callable[[str], str]
) -> None:
    topic = broker.create_topic(fresh("java"))
    file = tmp_path / "client.properties"
    config = broker.client_config("java")
    file.write_text("".join(f"{name}={value}\n" for name, value in config.items()))
    words = ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(file))
    assert topic in tools.run(TOPICS, *words, "--list").lines


def test_started_broker_prints_what_commands_need(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    options = ("--tls", "--sasl", "scram-sha-512", "--security-dir", str(folder))
    with start_minibroker(*options, listener="SASL_SSL://localhost:0") as running:
        command = [sys.executable, "-m", "minibroker"]
        server = ("-b", running.bootstrap_servers)
        properties = ("--command-config", str(folder / "client.properties"))
        done = subprocess.run(
            [*command, "topics", "create", "t", *server, *properties],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        printed = subprocess.run(
            [*command, "client-config", "--for", "kafkajs", "--security-dir", str(folder), *server],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert json.loads(printed)["brokers"] == [running.bootstrap_servers]
        password = json.loads(printed)["sasl"]["password"]
        assert password not in running.printed()
