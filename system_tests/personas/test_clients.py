"""Old and new clients produce, consume and commit against a broker with each persona.

The topic is created by the first request of the client, so each also meets the persona's error for
a new topic.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from minibroker.broker.personas.persona import NAMES
from minibroker.testing import MiniBroker
from system_tests.clients.adapters.java import JavaClient
from system_tests.clients.model import Record, drain
from system_tests.conftest import without_toolchain
from system_tests.harness.jars import ToolchainMissing, classpath, kafka_broker_jars
from system_tests.harness.waiting import PATIENCE_S
from system_tests.laboratory.clients import CLIENTS, PythonClient
from system_tests.personas.brokers import JVM, RELEASES
from system_tests.security.franz_go import Franz

pytestmark = pytest.mark.minibroker

VALUES = [b"one", b"two"]
OLD_JAVA = ("kafka-0.11", "kafka-2.8")
"""Personas that meet the Java client of their own release."""
NEW_JAVA = ("kafka-2.4", "kafka-3.9", "redpanda")
"""Personas that the newest Java client still talks to (KIP-896)."""
GO = ("kafka-0.11", "kafka-2.8", "redpanda")


@pytest.fixture(scope="module")
def brokers() -> Iterator[Callable[[str], MiniBroker]]:
    """Give the broker with a persona; it is started at its first use."""
    started: dict[str, MiniBroker] = {}

    def broker(name: str) -> MiniBroker:
        if name not in started:
            settings = {"group.initial.rebalance.delay.ms": 0}
            started[name] = MiniBroker(settings=settings, persona=name).start()
        return started[name]

    yield broker
    for each in started.values():
        each.stop()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", CLIENTS, ids=lambda kind: kind.name)
def test_python_client_produces_consumes_and_commits(
    brokers: Callable[[str], MiniBroker],
    kind: type[PythonClient],
    name: str,
    fresh: Callable[[str], str],
) -> None:
    broker, topic, group = brokers(name), fresh("python"), fresh("readers")
    client = kind(broker.bootstrap_servers)
    client.produce(topic, VALUES, idempotent=name != "kafka-0.11")
    assert client.consume(topic, len(VALUES), group) == VALUES
    (committed,) = broker.control.get("v1", "groups", group)["offsets"]
    assert committed["offset"] == len(VALUES)


@pytest.mark.java
@pytest.mark.parametrize("name", NEW_JAVA)
def test_newest_java_client_produces_consumes_and_commits(
    brokers: Callable[[str], MiniBroker], name: str, fresh: Callable[[str], str]
) -> None:
    try:
        java = JavaClient(brokers(name).bootstrap_servers)
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    topic = fresh("java")
    with closing(java):
        java.produce(topic, [Record(None, value, (), 1000) for value in VALUES], idempotent=True)
        with closing(java.join(fresh("readers"), topic)) as member:
            drain(member, len(VALUES))
            member.commit()
            assert member.committed(topic, 0) == len(VALUES)


@pytest.mark.java
@pytest.mark.parametrize("name", OLD_JAVA)
def test_old_java_client_produces_and_consumes(
    brokers: Callable[[str], MiniBroker], name: str, fresh: Callable[[str], str]
) -> None:
    release, topic = RELEASES[name], fresh("old")
    try:
        jars = classpath(kafka_broker_jars(release.version, release.scala, release.zookeeper))
    except ToolchainMissing as missing:
        without_toolchain(missing)
    servers = brokers(name).bootstrap_servers

    def run(program: str, *options: str) -> bytes:
        command = [*JVM, "-cp", jars, f"kafka.tools.{program}", "--topic", topic, *options]
        return subprocess.run(
            command, check=True, input=b"\n".join(VALUES), capture_output=True, timeout=PATIENCE_S
        ).stdout

    run("ConsoleProducer", "--broker-list", servers)
    limits = ["--max-messages", str(len(VALUES)), "--timeout-ms", str(int(PATIENCE_S * 500))]
    printed = run("ConsoleConsumer", "--bootstrap-server", servers, "--from-beginning", *limits)
    assert printed.split() == VALUES


@pytest.mark.parametrize("name", GO)
def test_franz_go_produces_and_consumes(
    brokers: Callable[[str], MiniBroker], name: str, fresh: Callable[[str], str]
) -> None:
    try:
        franz = Franz(brokers(name).bootstrap_servers)
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    topic = brokers(name).create_topic(fresh("go"))
    with closing(franz):
        assert franz.ask("there_and_back", topic=topic, value="one") == "one"
