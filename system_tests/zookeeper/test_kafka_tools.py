"""Kafka's own programs of 2.x and 3.x with a broker's ZooKeeper and with the broker.

Changes made by the tools take effect, and the tools show changes made by the broker. `minibroker
configs` takes the same arguments, so the output of both is compared line by line.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from kazoo.client import KazooClient

from system_tests.clients.adapters.confluent import ConfluentClient
from system_tests.clients.model import Record
from system_tests.conftest import without_toolchain
from system_tests.harness.brokers import start_minibroker
from system_tests.harness.jars import ToolchainMissing
from system_tests.harness.kafka_tools import KafkaTools
from system_tests.harness.waiting import wait_until
from system_tests.zookeeper.test_brokers import Start, connect, start
from system_tests.zookeeper.test_configs_command import configs

__all__ = ["connect", "start"]

pytestmark = pytest.mark.minibroker


def tools(line: str) -> Iterator[KafkaTools]:
    try:
        made = KafkaTools(line)
    except ToolchainMissing as missing:
        without_toolchain(missing)
        raise
    yield made
    made.close()


@pytest.fixture(scope="module")
def old() -> Iterator[KafkaTools]:
    yield from tools("2.8")


@pytest.fixture(scope="module")
def newer() -> Iterator[KafkaTools]:
    yield from tools("3.9")


@pytest.fixture
def tree(connect: str) -> None:
    """Create the nodes that the first broker creates and the tools expect."""
    server, _, chroot = connect.partition("/")
    client = KazooClient(server)
    client.start()
    client.ensure_path(f"/{chroot}/brokers/ids")
    client.stop()
    client.close()


def test_topics_of_the_old_tool(
    old: KafkaTools, start: Start, connect: str, tmp_path: Path
) -> None:
    broker = start(tmp_path / "data", connect)
    client = ConfluentClient(broker.bootstrap_servers)
    there = ("--zookeeper", connect)
    made = ("--partitions", "2", "--replication-factor", "1", "--config", "retention.ms=7200000")
    assert old.topics(*there, "--create", "--topic", "cats", *made).code == 0
    wait_until(lambda: "cats" in client.topics(), "the topic to be known")
    assert client.topic_configs("cats")["retention.ms"] == "7200000"
    assert client.produce("cats", [Record(b"k", b"v")]) == [0]
    assert old.topics(*there, "--alter", "--topic", "cats", "--partitions", "3").code == 0
    wait_until(lambda: len(client.leaders("cats")) == 3, "a third partition")

    client.create_topic("dogs", 1, configs={"cleanup.policy": "compact"})
    assert old.topics(*there, "--list").lines == ["__consumer_offsets", "cats", "dogs"]
    for name in ("cats", "dogs"):
        asked = ("--describe", "--topic", name)

        def described_alike(asked: tuple[str, ...] = asked) -> bool:
            by_broker = old.topics("--bootstrap-server", broker.bootstrap_servers, *asked)
            return old.topics(*there, *asked) == by_broker

        wait_until(described_alike, f"both to describe the same {name}")
        lines = old.topics(*there, *asked).lines
        assert all("Leader: 1\tReplicas: 1\tIsr: 1" in line for line in lines[1:]), lines

    for name in ("cats", "dogs"):
        assert old.topics(*there, "--delete", "--topic", name).code == 0
    wait_until(lambda: client.topics() == {"__consumer_offsets"}, "both to be gone")
    assert old.topics(*there, "--list").lines == ["__consumer_offsets"]
    assert old.topics(*there, "--delete", "--topic", "__consumer_offsets").code == 1
    client.close()


QUOTAS = [
    (["clients", "app 1"], "producer_byte_rate=1024,consumer_byte_rate=2048"),
    (["clients", ""], "request_percentage=50.5"),
    (["users", "alice/é+~"], "producer_byte_rate=1024"),
    (["users", "alice", "clients", "app"], "consumer_byte_rate=1024"),
    (["users", "", "clients", ""], "producer_byte_rate=10"),
    (["ips", "1.2.3.4"], "connection_creation_rate=5"),
    (["ips", ""], "connection_creation_rate=7"),
    (["topics", "cats"], "max.message.bytes=1234"),
]
"""Entity types with names (empty for the default), and the configs to set."""

DESCRIBED = [["clients"], ["users"], ["users", "clients"], ["ips"], ["topics"]]


def entity(pairs: list[str]) -> list[str]:
    words: list[str] = []
    for kind, name in zip(pairs[::2], pairs[1::2], strict=True):
        words += ["--entity-type", kind]
        words += ["--entity-name", name] if name else ["--entity-default"]
    return words


def of_types(kinds: list[str]) -> list[str]:
    return [word for kind in kinds for word in ("--entity-type", kind)]


def test_configs_and_quotas_of_the_old_tool(
    old: KafkaTools, start: Start, connect: str, tree: None, tmp_path: Path
) -> None:
    there = ("--zookeeper", connect)
    all_brokers = ("--entity-type", "brokers", "--entity-default")
    before = old.configs(*there, "--alter", *all_brokers, "--add-config", "max.connections=400")
    assert before.lines == ["Completed updating config for entity: default brokers."]
    broker = start(tmp_path / "data", connect)
    at_broker = ("--bootstrap-server", broker.bootstrap_servers)
    assert any("max.connections=400" in line for line in described(old, at_broker, ["brokers"]))
    client = ConfluentClient(broker.bootstrap_servers)
    client.create_topic("cats", 1)
    client.close()

    for pairs, config in QUOTAS:
        done = old.configs(*there, "--alter", *entity(pairs), "--add-config", config)
        assert done.code == 0, done
        ours = configs(*there, "--alter", *entity(pairs), "--add-config", config)
        assert ours == done.lines  # the same again, with our own command
    for kinds in DESCRIBED:
        theirs = described(old, there, kinds)
        assert in_order(theirs) == in_order(configs(*there, "--describe", *of_types(kinds)))
        assert theirs
    wait_until(
        lambda: configs(*at_broker, "--describe", "--topic", "cats")[1:], "the broker to follow"
    )
    # The last change has been applied, and so have all earlier ones.
    rates = ["producer_byte_rate=1024.0", "consumer_byte_rate=2048.0"]
    assert sorted(configs(*at_broker, "--describe", *of_types(["clients"]))) == [
        f"Quota configs for client-id 'app 1' are {', '.join(rates)}",
        "Quota configs for the default client-id are request_percentage=50.5",
    ]
    users = configs(*at_broker, "--describe", *of_types(["users"]))
    assert users == ["Quota configs for user-principal 'alice/é+~' are producer_byte_rate=1024.0"]
    for pairs, config in QUOTAS:
        keys = ",".join(part.partition("=")[0] for part in config.split(","))
        gone = ("--alter", *entity(pairs), "--delete-config", keys)
        assert old.configs(*there, *gone).code == 0
        again = old.configs(*there, *gone)
        assert (again.code, again.lines) == (1, [f"Invalid config(s): {keys}"])
    wait_until(
        lambda: configs(*at_broker, "--describe", *of_types(["ips"])) == [], "the broker to follow"
    )


def in_order(lines: list[str]) -> list[tuple[str, list[str]]]:
    """Sort configs within and between lines, because the tool prints them in hash order."""
    parts = [line.partition(" are ") for line in lines]
    return sorted((who, sorted(config.split(","))) for who, _, config in parts)


def described(tool: KafkaTools, where: tuple[str, ...], kinds: list[str]) -> list[str]:
    done = tool.configs(*where, "--describe", *of_types(kinds))
    assert done.code == 0, done
    return sorted(done.lines)


def test_newer_tool_at_the_store_and_at_the_broker(
    newer: KafkaTools, start: Start, connect: str, tree: None, tmp_path: Path
) -> None:
    there = ("--zookeeper", connect)
    alter = ("--alter", "--entity-type", "brokers", "--entity-name", "1", "--add-config")
    assert newer.configs(*there, *alter, "max.connections=300").code == 0
    broker = start(tmp_path / "data", connect)
    at_broker = ("--bootstrap-server", broker.bootstrap_servers)
    described = ("--describe", "--entity-type", "brokers", "--entity-name", "1")
    lines = newer.configs(*at_broker, *described).lines
    assert any("max.connections=300 " in line for line in lines), lines
    # The tool sees that the broker is running, and refuses to change its config in ZooKeeper.
    refused = newer.configs(*there, *alter, "max.connections=301")
    assert refused.code == 1
    assert any("broker 1 is running" in line for line in refused.lines), refused
    assert newer.configs(*at_broker, *alter, "max.connections=301").code == 0
    for kind, name, config in [
        ("ips", "1.2.3.4", "connection_creation_rate=5"),
        ("clients", "app", "producer_byte_rate=1024"),
    ]:
        words = (*entity([kind, name]), "--add-config", config)
        assert newer.configs(*at_broker, "--alter", *words).code == 0
        lines = newer.configs(*at_broker, "--describe", *of_types([kind])).lines
        assert lines == configs(*at_broker, "--describe", *of_types([kind]))
        assert configs(*there, "--describe", *of_types([kind]))[0].endswith(f"are {config}")


def accepts_login(servers: str, user: str, password: str) -> bool:
    """Whether a client can authenticate."""
    errors: list[KafkaError] = []
    client = AdminClient({
        "bootstrap.servers": servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": password,
        "log_level": 0,
        "error_cb": errors.append,
    })  # fmt: skip

    def answer() -> str | None:
        try:
            client.list_topics(timeout=1)
        except KafkaException:
            client.poll(0)
            refused = any(error.code() == KafkaError._AUTHENTICATION for error in errors)
            return "no" if refused else None
        return "yes"

    return wait_until(answer, f"{user} to be let in or not") == "yes"


def test_scram_users_of_all_tools_can_log_in(
    old: KafkaTools, newer: KafkaTools, connect: str, tree: None, tmp_path: Path
) -> None:
    there = ("--zookeeper", connect)

    def make(user: str, password: str, tool: KafkaTools | None = newer) -> None:
        secret = f"SCRAM-SHA-256=[iterations=4096,password={password}]"
        words = (*there, "--alter", *entity(["users", user]), "--add-config", secret)
        lines = configs(*words) if tool is None else tool.configs(*words).lines
        assert lines == [f"Completed updating config for entity: user-principal '{user}'."]

    make("bob", "builder")
    make("al", "paca", old)
    with start_minibroker(
        *("--listener", "SASL_PLAINTEXT://127.0.0.1:0"),
        data_dir=tmp_path / "data",
        settings={"zookeeper.connect": connect, "sasl.enabled.mechanisms": "SCRAM-SHA-256"},
    ) as broker:
        plain, secured = broker.bootstrap_servers.split(",")
        assert accepts_login(secured, "bob", "builder")
        assert accepts_login(secured, "al", "paca")
        assert not accepts_login(secured, "bob", "guess")
        make("carol", "singer")
        wait_until(lambda: accepts_login(secured, "carol", "singer"), "the broker to follow")
        make("dave", "diver", None)
        wait_until(lambda: accepts_login(secured, "dave", "diver"), "the broker to follow")
        described = (*there, "--describe", *entity(["users", "dave"]))
        assert configs(*described) == old.configs(*described).lines
        at_broker = ("--bootstrap-server", plain)
        lines = newer.configs(*at_broker, "--describe", *of_types(["users"])).lines
        assert lines == [
            f"SCRAM credential configs for user-principal '{user}' are "
            "SCRAM-SHA-256=iterations=4096"
            for user in ("al", "bob", "carol", "dave")
        ]
        gone = ("--alter", *entity(["users", "bob"]), "--delete-config", "SCRAM-SHA-256")
        assert newer.configs(*there, *gone).code == 0
        wait_until(lambda: not accepts_login(secured, "bob", "builder"), "the broker to follow")
        configs(*there, "--alter", *entity(["users", "al"]), "--delete-config", "SCRAM-SHA-256")
        wait_until(lambda: not accepts_login(secured, "al", "paca"), "the broker to follow")
