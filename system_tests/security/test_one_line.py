"""Brokers that are secured by one option, with the configurations that their clients are given."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import Producer

from minibroker.client.configs import ALLOWED_URLS, config_text
from minibroker.secured import Secured, read_files
from minibroker.testing import MiniBroker
from system_tests.conftest import without_toolchain
from system_tests.harness.brokers import start_minibroker
from system_tests.harness.compiling import fetch_go_modules, installed_with_npm
from system_tests.harness.jars import PROJECT, ToolchainMissing
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
    "oauth": {"sasl": "oauth"},
    "mutual tls and oauth": {"tls": "mutual", "sasl": "oauth"},
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
    url = config.get("sasl.oauthbearer.token.endpoint.url")
    if url is None:
        assert topic in tools.run(TOPICS, *words, "--list").lines
        return
    allowing = KafkaTools(option=f"-D{ALLOWED_URLS}={url}")
    try:
        assert topic in allowing.run(TOPICS, *words, "--list").lines
    finally:
        allowing.close()


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


def test_started_broker_with_oauth_gives_tokens_to_commands(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    options = ("--sasl", "oauth", "--security-dir", str(folder))
    with start_minibroker(*options, listener="SASL_PLAINTEXT://localhost:0") as running:
        command = [sys.executable, "-m", "minibroker", "topics", "create", "t"]
        command += ["-b", running.bootstrap_servers]
        command += ["--command-config", str(folder / "client.properties")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        config = config_text(read_files(folder), "librdkafka", running.bootstrap_servers)
        pairs = dict(line.split("=", 1) for line in config.splitlines())
        assert produced(pairs, "t") == 1


def test_later_start_renews_the_certificate_for_other_hosts(tmp_path: Path) -> None:
    folder = tmp_path / "security"
    options = ["--tls", "--security-dir", str(folder)]
    with start_minibroker(*options, listener="SSL://127.0.0.1:0"):
        authority = (folder / "ca.pem").read_bytes()
    options += ["--set", "advertised.listeners=SSL://kafka.example:0"]
    with start_minibroker(*options, listener="SSL://127.0.0.1:0") as running:
        assert running.bootstrap_servers.startswith("kafka.example:")
    assert (folder / "ca.pem").read_bytes() == authority
    assert "kafka.example" in read_files(folder).hosts


# Printed code -------------------------------------------------------------------------------------

PRINTED = [("none", "oauth"), ("mutual", "oauth"), ("mutual", "scram-sha-512")]

GO_MAIN = """package main

import (
	"context"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	options, err := kafkaOptions()
	if err != nil {
		panic(err)
	}
	options = append(options, kgo.ConsumeTopics(os.Args[1]), kgo.AllowAutoTopicCreation())
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	defer client.Close()
	record := &kgo.Record{Topic: os.Args[1], Value: []byte("one")}
	if err := client.ProduceSync(context.Background(), record).FirstErr(); err != nil {
		panic(err)
	}
	fmt.Println(string(client.PollFetches(context.Background()).Records()[0].Value))
}
"""

NODE_MAIN = """
const { Kafka, logLevel } = require("kafkajs")
const kafka = new Kafka({ ...require(process.argv[2]), logLevel: logLevel.NOTHING })
const producer = kafka.producer()
producer.connect()
  .then(() => producer.send({ topic: process.argv[3], messages: [{ value: "one" }] }))
  .then(() => producer.disconnect())
  .then(() => console.log("one"))
"""


@pytest.fixture(params=PRINTED, ids=" ".join)
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Secured, str]]:
    """What a broker on the command line was secured with, and its address."""
    tls, sasl = request.param
    options = ["--sasl", sasl, "--security-dir", str(tmp_path / "security")]
    options += ["--mutual-tls"] if tls == "mutual" else []
    protocol = "SASL_SSL" if tls == "mutual" else "SASL_PLAINTEXT"
    with start_minibroker(*options, listener=f"{protocol}://localhost:0") as running:
        yield read_files(tmp_path / "security"), running.bootstrap_servers


def test_printed_code_of_franz_go_runs(
    started: tuple[Secured, str], tmp_path: Path, fresh: Callable[[str], str]
) -> None:
    module = PROJECT / "system_tests" / "security" / "franz"
    try:
        fetch_go_modules(module)
    except ToolchainMissing as missing:
        without_toolchain(missing)
    for name in ("go.mod", "go.sum"):
        (tmp_path / name).write_bytes((module / name).read_bytes())
    (tmp_path / "main.go").write_text(GO_MAIN)
    code = config_text(started[0], "franz-go", started[1])
    (tmp_path / "kafka.go").write_text(f"{code}\n")
    formatted = subprocess.run(
        ["gofmt", "-l", "."], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert formatted == ""
    done = subprocess.run(
        ["go", "run", ".", fresh("go")], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "one\n"), done.stderr


@pytest.mark.node
def test_printed_configuration_of_kafkajs_runs(
    started: tuple[Secured, str], tmp_path: Path, fresh: Callable[[str], str]
) -> None:
    try:
        package = installed_with_npm(PROJECT / "system_tests" / "transactions" / "kafkajs_producer")
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    code = config_text(started[0], "kafkajs", started[1])
    config = tmp_path / ("config.js" if "module.exports" in code else "config.json")
    config.write_text(code)
    (tmp_path / "main.js").write_text(NODE_MAIN)
    done = subprocess.run(
        ["node", str(tmp_path / "main.js"), str(config), fresh("node")],
        env=os.environ | {"NODE_PATH": str(package / "node_modules")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "one\n"), done.stderr


PYTHON_MAIN = {
    "kafka-python": """
import kafka
producer = kafka.KafkaProducer(**config)
print(producer.send(topic, b"one").get(20).offset)
""",
    "aiokafka": """
import asyncio
import aiokafka
async def main():
    async with aiokafka.AIOKafkaProducer(**config) as producer:
        print((await producer.send_and_wait(topic, b"one")).offset)
asyncio.run(main())
""",
}


@pytest.mark.parametrize("library", PYTHON_MAIN)
def test_printed_configuration_of_python_runs(
    started: tuple[Secured, str], fresh: Callable[[str], str], library: str
) -> None:
    code = config_text(started[0], library, started[1])
    if not code.startswith(("import", "from")):
        code = f"config = {code}"
    code += f"\ntopic = {fresh('python')!r}\n{PYTHON_MAIN[library]}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
