"""Verdicts find a known defect of a real client, and are quiet on clients that behave well."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer
from kafka import KafkaProducer

from minibroker.cli.app import app
from minibroker.lab.verdicts.judging import RuleOutcome
from minibroker.testing import ClientMisbehaved, MiniBroker, assert_well_behaved
from minibroker.testing.verdicts import judge_client
from minibroker.testing.workload import CLIENTS
from system_tests.conftest import without_toolchain
from system_tests.harness.compiling import installed_with_npm
from system_tests.harness.jars import ToolchainMissing
from system_tests.harness.waiting import PATIENCE_S
from system_tests.laboratory.clients import Aiokafka, ConfluentKafka, KafkaPython, PythonClient
from system_tests.verdicts.libraries import command_of
from system_tests.verdicts.scenario import (
    KEYS,
    SETTINGS,
    TOPIC,
    ClientScenario,
    DrivenClient,
)

HERE = Path(__file__).parent

pytestmark = pytest.mark.minibroker

THROTTLE_MS = 3000
SENDS = 4
PAUSE_S = 0.2
"""Longer than anything that is on its way, and shorter than the throttle."""


@pytest.fixture(scope="module")
def journaled() -> Iterator[MiniBroker]:
    """A broker whose journal is on."""
    settings = {"group.initial.rebalance.delay.ms": 0, "auto.create.topics.enable": False}
    with MiniBroker(settings=settings) as broker, broker.journal:
        yield broker


@pytest.fixture
def topic(journaled: MiniBroker, fresh: Callable[[str], str]) -> str:
    return journaled.create_topic(fresh("judged"))


def test_librdkafka_that_ignores_a_throttle_is_found(
    journaled: MiniBroker, topic: str, fresh: Callable[[str], str]
) -> None:
    """https://github.com/confluentinc/librdkafka/issues/5592."""
    client_id = fresh("client")
    servers = journaled.bootstrap_servers
    producer = Producer({"bootstrap.servers": servers, "client.id": client_id, "linger.ms": 0})
    with journaled.faults as faults:
        rule = {"throttle_ms": THROTTLE_MS, "mute": False, "first": 1}
        faults.add("throttle", api="Produce", topic=topic, **rule)
        for _ in range(SENDS):
            producer.produce(topic, b"x")
            assert producer.flush(30) == 0
            producer.poll(PAUSE_S)
    with pytest.raises(ClientMisbehaved, match=f"throttled it for {THROTTLE_MS} ms") as raised:
        assert_well_behaved(journaled, client_id)
    assert "obeys-throttle" in {each.rule.id for each in raised.value.report.broken}
    words = ["judge", "--client-id", client_id, "--control", journaled.control_url]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1
    assert "  obeys-throttle (warning, KIP-219): 1 of 1 situation" in result.stdout


def test_client_that_obeys_a_throttle_keeps_the_rule(
    journaled: MiniBroker, topic: str, fresh: Callable[[str], str]
) -> None:
    client_id = fresh("client")
    producer = KafkaProducer(
        bootstrap_servers=journaled.bootstrap_servers, client_id=client_id, linger_ms=0
    )
    with journaled.faults as faults:
        rule = {"throttle_ms": THROTTLE_MS, "mute": False, "first": 1}
        faults.add("throttle", api="Produce", topic=topic, **rule)
        for _ in range(SENDS):
            producer.send(topic, b"x").get(30)
    producer.close()
    report = assert_well_behaved(journaled, client_id)
    outcomes = {each.rule.id: each.outcome for each in report.verdicts}
    assert outcomes["obeys-throttle"] is RuleOutcome.KEPT
    assert outcomes["sequence-numbers"] is RuleOutcome.KEPT


CONCURRENT_SENDS = 20


@pytest.fixture(scope="session")
def concurrent_producer() -> Path:
    """The folder of the program, with two versions of its library."""
    try:
        return installed_with_npm(HERE / "concurrent_producer")
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise


@pytest.mark.node
@pytest.mark.parametrize("package", ["defective", "repaired"])
def test_producer_that_gives_several_records_one_sequence_is_found(
    journaled: MiniBroker,
    topic: str,
    fresh: Callable[[str], str],
    concurrent_producer: Path,
    package: str,
) -> None:
    """https://github.com/platformatic/kafka/issues/326: records get lost, but acknowledged."""
    is_defective = package == "defective"
    client_id = fresh(package)
    program = concurrent_producer / "producer.mjs"
    servers = journaled.bootstrap_servers
    output = subprocess.run(
        ["node", program, package, servers, topic, client_id, str(CONCURRENT_SENDS)],
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    ).stdout
    offsets = output.split()
    assert len(offsets) == CONCURRENT_SENDS
    assert len(set(offsets)) == (1 if is_defective else CONCURRENT_SENDS)
    if not is_defective:
        assert_well_behaved(journaled, client_id)
        return
    with pytest.raises(ClientMisbehaved, match="for other records than before") as raised:
        assert_well_behaved(journaled, client_id)
    [verdict] = raised.value.report.broken
    assert verdict.rule.id == "sequence-numbers"
    assert verdict.broken == CONCURRENT_SENDS - 1


class CalmClient(NamedTuple):
    """A client library, its client ids, and the rules that it always breaks."""

    kind: type[PythonClient]
    client_id: str
    allowed: tuple[str, ...] = ()


CALM_CLIENTS = (
    CalmClient(ConfluentKafka, "rdkafka"),
    CalmClient(KafkaPython, "kafka-python-*"),
    CalmClient(Aiokafka, "aiokafka-*", ("software-name",)),
)


@pytest.mark.parametrize("calm", CALM_CLIENTS, ids=lambda calm: calm.kind.name)
def test_client_of_a_calm_broker_breaks_no_rule(
    journaled: MiniBroker, topic: str, fresh: Callable[[str], str], calm: CalmClient
) -> None:
    after = journaled.control.get("v1", "journal", "state")["last"]
    client = calm.kind(journaled.bootstrap_servers)
    client.produce(topic, [b"one", b"two"], idempotent=True)
    assert client.consume(topic, 2, fresh("group")) == [b"one", b"two"]
    report = assert_well_behaved(journaled, calm.client_id, allow=calm.allowed, after=after)
    kept = {each.rule.id for each in report.verdicts if each.outcome is RuleOutcome.KEPT}
    assert kept >= {"advertised-versions", "sequence-numbers", "connection-reuse"}


@pytest.mark.parametrize(
    "library",
    [
        "sarama",
        "kafka-go",
        pytest.param("kafkajs", marks=pytest.mark.node),
        pytest.param("@platformatic/kafka", marks=pytest.mark.node),
    ],
)
def test_client_of_the_scenario_carries_out_its_operations(library: str) -> None:
    """Those with librdkafka are the same programs, but take minutes to compile."""
    try:
        command = command_of(library)
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    with MiniBroker(settings=SETTINGS) as broker, broker.journal as journal:
        broker.create_topic(TOPIC, partitions=len(KEYS))
        client = DrivenClient(command, broker, 0)
        try:
            assert client.name.startswith(f"{library} ")
            client.subscribe()
            client.send(1)
            client.poll_until(lambda: any(group["members"] for group in broker.groups()))
            client.poll_until(lambda: bool(journal.entries(api="Fetch", topic=TOPIC)))
        finally:
            client.close()
        report = judge_client(broker, "*", allow=["software-name", "client-id"])
    assert report.behaves_well
    kept = {each.rule.id for each in report.verdicts if each.outcome is RuleOutcome.KEPT}
    assert kept >= {"advertised-versions", "correlation-ids", "leaves-group"}


def test_scenario_puts_a_client_into_its_situations() -> None:
    settings = {"group.initial.rebalance.delay.ms": 0}
    with MiniBroker(settings=settings) as broker, broker.journal:
        scenario = ClientScenario(broker, CLIENTS["kafka-python"])
        broker.create_topic("verdicts", partitions=2)
        client = DrivenClient(CLIENTS["kafka-python"], broker, 0)
        try:
            scenario.start(client)
            scenario.throttle(client)
        finally:
            client.close()
        outcomes = {each.rule.id: each.outcome for each in judge_client(broker, "*").verdicts}
    assert outcomes["retry-backoff"] is RuleOutcome.KEPT
    assert outcomes["obeys-throttle"] is RuleOutcome.KEPT
    assert outcomes["leaves-group"] is RuleOutcome.KEPT
