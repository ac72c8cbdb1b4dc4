"""Configs and quotas through Kafka's own kafka-configs, and through confluent-kafka.

The output of Kafka's command is what ours is held to as well: both are run for each step.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from minibroker.broker.quotas.command_lines import CLIENTS, IPS, USERS, Entities, QuotaLine, render
from system_tests.harness.brokers import RunningBroker, start_minibroker
from system_tests.harness.kafka_tools import KafkaTools
from system_tests.harness.waiting import PATIENCE_S

pytestmark = pytest.mark.minibroker

RATE = "connection_creation_rate"
QUOTAS = {
    RATE,
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
}
Command = Callable[..., tuple[int, list[str]]]


@pytest.fixture(scope="module")
def own() -> Iterator[RunningBroker]:
    """A broker of these tests' own, since they change what holds for all."""
    with start_minibroker() as running:
        yield running


@pytest.fixture
def ours(own: RunningBroker) -> Command:
    """Run `minibroker configs`; gives its exit status and the lines it printed."""

    def run(*words: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [
                *[sys.executable, "-m", "minibroker", "configs"],
                *["--bootstrap-server", own.bootstrap_servers, *words],
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return done.returncode, _lines(done.stdout)

    return run


@pytest.fixture
def kafkas(own: RunningBroker, kafka_tools: KafkaTools) -> Command:
    """Run Kafka's command."""

    def run(*words: str) -> tuple[int, list[str]]:
        server = ("--bootstrap-server", own.bootstrap_servers)
        done = kafka_tools.run("org.apache.kafka.tools.ConfigCommand", *server, *words)
        return done.code, _lines(done.printed)

    return run


def _lines(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.strip()]


@pytest.fixture
def admin(own: RunningBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": own.bootstrap_servers})


@pytest.mark.java
@pytest.mark.parametrize(
    ("who", "what"),
    [
        (["--topic", "configured"], "retention.ms=60000"),
        (["--entity-type", "brokers", "--entity-name", "1"], "max.connections=500"),
        (["--broker-defaults"], "log.cleanup.policy=[compact,delete]"),
        (["--broker", "1"], "listener.name.plaintext.max.connections=400"),
        (["--group", "workers"], "share.auto.offset.reset=earliest"),
        (["--client-metrics", "all"], "metrics=org.apache.kafka.producer."),
        (["--ip", "127.0.0.9"], f"{RATE}=100"),
        (["--entity-type", "ips", "--entity-default"], f"{RATE}=200"),
        (["--client", "c d"], "producer_byte_rate=1048576"),
        (["--client-defaults"], "consumer_byte_rate=100"),
        (["--user", "u v"], "request_percentage=12.5"),
        (["--user-defaults"], "controller_mutation_rate=0.5"),
        (["--client", "c", "--user", "u"], "request_percentage=200"),
        (["--user", "u", "--client-defaults"], "consumer_byte_rate=20000000"),
        (
            [
                "--entity-type",
                "users",
                "--entity-default",
                "--entity-type",
                "clients",
                "--entity-name",
                "c",
            ],
            "producer_byte_rate=1",
        ),
        (["--user-defaults", "--client-defaults"], "producer_byte_rate=2"),
    ],
)
def test_kafkas_command_sets_describes_and_removes(
    admin: AdminClient, ours: Command, kafkas: Command, who: list[str], what: str
) -> None:
    key = what.partition("=")[0]
    if "configured" not in admin.list_topics().topics:
        admin.create_topics([NewTopic("configured", 1)])["configured"].result(20)
    set_it = [*who, "--alter", "--add-config", what]
    remove_it = [*who, "--alter", "--delete-config", key]
    describe_it = [*who, "--describe"]

    status, output = kafkas(*set_it)
    assert status == 0
    assert ours(*set_it) == (0, output)
    status, described = kafkas(*describe_it)
    assert status == 0
    assert f"{key}=" in described[-1]
    assert ours(*describe_it) == (0, described)

    assert kafkas(*remove_it) == (0, output)
    status, described = kafkas(*describe_it)
    assert status == 0
    assert not any(f"{key}=" in line for line in described)
    assert ours(*describe_it) == (0, described)
    # A missing config cannot be removed; Kafka 4 rejects it for quotas only, Kafka 3 for all.
    assert ours(*remove_it)[0] == 1
    assert kafkas(*remove_it)[0] == int(key in QUOTAS)


@pytest.mark.java
def test_configs_rejected_by_kafka_command_are_rejected(ours: Command, kafkas: Command) -> None:
    for words in (
        ["--broker", "1", "--alter", "--add-config", "num.io.threads=0"],
        ["--topic", "configured", "--alter", "--add-config", "retention.ms=soon"],
        ["--ip", "127.0.0.1", "--alter", "--add-config", "colour=1"],
    ):
        assert (kafkas(*words)[0], ours(*words)[0]) == (1, 1), words


@pytest.mark.java
def test_kafkas_command_takes_a_quota_file_line_by_line(
    own: RunningBroker, ours: Command, kafkas: Command, kafka_libs: Path, tmp_path: Path
) -> None:
    """Kafka's command applies with xargs what ours applies at once, with the same result."""
    names = ["it's a", '"', "--all", "é*$"]
    people = [
        QuotaLine(
            Entities((USERS, CLIENTS), (name, "")), {"producer_byte_rate": 1e6}, reason=("!",)
        )
        for name in names
    ]
    default = QuotaLine(Entities((CLIENTS,), ("",)), {"request_percentage": 12.5})
    ip = QuotaLine(Entities((IPS,), ("127.0.0.8",)), {RATE: 5.0})
    lines = [*people, default, ip]
    away = [
        line._replace(additions={}, deletions=tuple(line.additions), reason=()) for line in lines
    ]
    setting, removing = tmp_path / "set", tmp_path / "remove"
    setting.write_text(render(lines, ["what all had"]), "utf-8")
    removing.write_text(render(away), "utf-8")

    def described() -> list[str]:
        kinds = (["users"], ["clients"], ["users", "clients"], ["ips"])
        return [
            line
            for found in kinds
            for line in ours("--describe", *(w for kind in found for w in ("--entity-type", kind)))[
                1
            ]
        ]

    before = described()
    assert ours("--alter", "--quota-file", str(setting))[0] == 0
    set_by_us = described()
    assert len(set_by_us) == len(before) + len(lines)
    assert ours("--alter", "--quota-file", str(removing))[0] == 0
    assert described() == before

    java = ["java", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8", "-Dsun.jnu.encoding=UTF-8"]
    command = [*java, "-cp", f"{kafka_libs}/*", "org.apache.kafka.tools.ConfigCommand"]
    done = subprocess.run(
        ["xargs", "-L1", *command, "--bootstrap-server", own.bootstrap_servers],
        input="".join(
            line for line in setting.read_text("utf-8").splitlines(True) if line[0] not in "#\n"
        ),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        env={**os.environ, "LC_ALL": "C.UTF-8"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert described() == set_by_us
    assert ours("--alter", "--quota-file", str(removing))[0] == 0


def test_broker_without_a_data_directory_describes_where_its_data_is(
    admin: AdminClient, own: RunningBroker
) -> None:
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    [future] = admin.describe_configs([resource]).values()
    described = future.result(20)
    assert described["broker.id"].value == described["node.id"].value == "1"
    assert Path(described["log.dirs"].value, "config.sqlite").exists()


def test_confluents_admin_client_alters_single_settings(admin: AdminClient) -> None:
    topic = "confluents"
    admin.create_topics([NewTopic(topic, 1, config={"retention.ms": "5"})])[topic].result(20)

    def alter(kind: ConfigResource.Type, name: str, *entries: ConfigEntry) -> None:
        resource = ConfigResource(kind, name, incremental_configs=list(entries))
        [future] = admin.incremental_alter_configs([resource]).values()
        future.result(20)

    def described(kind: ConfigResource.Type, name: str) -> dict[str, ConfigEntry]:
        [future] = admin.describe_configs([ConfigResource(kind, name)]).values()
        found: dict[str, ConfigEntry] = future.result(20)
        return found

    kinds = ConfigResource.Type
    append, delete = AlterConfigOpType.APPEND, AlterConfigOpType.DELETE
    alter(
        kinds.TOPIC,
        topic,
        ConfigEntry("cleanup.policy", "compact", incremental_operation=append),
        ConfigEntry("retention.ms", None, incremental_operation=delete),
    )
    entry = described(kinds.TOPIC, topic)["cleanup.policy"]
    assert (entry.value, entry.source) == ("delete,compact", 1)
    assert described(kinds.TOPIC, topic)["retention.ms"].source == 5

    to_set = AlterConfigOpType.SET
    limit = ConfigEntry("message.max.bytes", "2000", incremental_operation=to_set)
    alter(kinds.BROKER, "1", limit)
    entry = described(kinds.BROKER, "1")["message.max.bytes"]
    assert (entry.value, entry.source, entry.is_read_only) == ("2000", 2, False)
    assert described(kinds.TOPIC, topic)["max.message.bytes"].value == "2000"
    alter(kinds.BROKER, "1", ConfigEntry("message.max.bytes", "", incremental_operation=delete))
    assert described(kinds.TOPIC, topic)["max.message.bytes"].source == 5

    with pytest.raises(KafkaException, match="Cannot update these configs dynamically"):
        alter(kinds.BROKER, "1", ConfigEntry("node.id", "7", incremental_operation=to_set))
