"""``minibroker configs``: output and errors of kafka-configs.sh, for each entity type."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.cli.configs import LINES_MAX
from minibroker.cli.output import CliError
from minibroker.runtime import system
from minibroker.testing import MiniBroker


@pytest.fixture
def own() -> Iterator[MiniBroker]:
    """A broker for these tests only."""
    with MiniBroker() as broker:
        yield broker


Configs = Callable[..., Any]


def configs_of(broker: MiniBroker) -> Configs:
    """Run the command; return its output, or the error message after asserting the exit code."""

    def run(*words: str) -> list[str] | str:
        env = {"MINIBROKER_BOOTSTRAP_SERVER": broker.bootstrap_servers}
        result = CliRunner().invoke(app, ["configs", *words], env=env)
        if isinstance(result.exception, CliError):
            assert result.exception.exit_code == 1
            return str(result.exception)
        if result.exit_code:
            assert result.exit_code == 1
            return result.stderr
        return result.stdout.splitlines()

    return run


@pytest.fixture
def configs(own: MiniBroker) -> Configs:
    return configs_of(own)


def test_topic_configs_are_altered_and_described(configs: Configs, own: MiniBroker) -> None:
    own.create_topic("cats")
    add = "retention.ms=60000,cleanup.policy=[compact,delete]"
    assert configs("--topic", "cats", "--alter", "--add-config", add) == [
        "Completed updating config for topic cats."
    ]
    long = ("--entity-type", "topics", "--entity-name", "cats")
    assert configs(*long, "--describe") == [
        "Dynamic configs for topic cats are:",
        (
            "  cleanup.policy=compact,delete sensitive=false synonyms={"
            "DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, "
            "DEFAULT_CONFIG:log.cleanup.policy=delete}"
        ),
        (
            "  retention.ms=60000 sensitive=false synonyms={"
            "DYNAMIC_TOPIC_CONFIG:retention.ms=60000, "
            "DEFAULT_CONFIG:log.retention.hours=168}"
        ),
    ]
    both = ("--delete-config", "cleanup.policy", "--add-config", "segment.bytes=1000")
    assert configs(*long, "--alter", *both) == ["Completed updating config for topic cats."]
    described = configs("--entity-type", "topics", "--describe")
    assert "Dynamic configs for topic __consumer_offsets are:" in described
    assert [
        line.split("=")[0]
        for line in described[described.index("Dynamic configs for topic cats are:") + 1 :]
    ] == ["  retention.ms", "  segment.bytes"]
    everything = configs("--topic", "cats", "--describe", "--all")
    assert everything[0] == "All configs for topic cats are:"
    assert len(everything) > 20


def test_broker_configs_are_altered_for_one_or_all(configs: Configs) -> None:
    assert configs("--broker", "1", "--alter", "--add-config", "max.connections=500") == [
        "Completed updating config for broker 1."
    ]
    assert configs("--broker-defaults", "--alter", "--add-config", "max.connections=600") == [
        "Completed updating default config for brokers in the cluster."
    ]
    one, default = "DYNAMIC_BROKER_CONFIG", "DYNAMIC_DEFAULT_BROKER_CONFIG"
    described = [
        "Dynamic configs for broker 1 are:",
        (
            f"  max.connections=500 sensitive=false synonyms={{{one}:max.connections=500, "
            f"{default}:max.connections=600, DEFAULT_CONFIG:max.connections=2147483647}}"
        ),
        "Default configs for brokers in the cluster are:",
        f"  max.connections=600 sensitive=false synonyms={{{default}:max.connections=600}}",
    ]
    assert configs("--entity-type", "brokers", "--describe") == described
    assert configs("--entity-default", "--entity-type", "brokers", "--describe") == described[2:]
    configs("--broker", "1", "--alter", "--delete-config", "max.connections")
    assert configs("--broker", "1", "--describe") == described[:1]


def test_group_configs_are_altered_and_described(configs: Configs, own: MiniBroker) -> None:
    missing = "The group 'cats' doesn't exist and doesn't have dynamic config."
    assert configs("--group", "cats", "--describe") == [missing]
    add = "share.auto.offset.reset=earliest,share.delivery.count.limit=3"
    assert configs("--group", "cats", "--alter", "--add-config", add) == [
        "Completed updating config for group cats."
    ]
    long = ("--entity-type", "groups", "--entity-name", "cats")
    heading = "Dynamic configs for group cats are:"
    reset = (
        "  share.auto.offset.reset=earliest sensitive=false synonyms={"
        "DYNAMIC_GROUP_CONFIG:share.auto.offset.reset=earliest, "
        "DEFAULT_CONFIG:share.auto.offset.reset=latest}"
    )
    limit = (
        "  share.delivery.count.limit=3 sensitive=false synonyms={"
        "DYNAMIC_GROUP_CONFIG:share.delivery.count.limit=3, "
        "DEFAULT_CONFIG:group.share.delivery.count.limit=5}"
    )
    assert configs(*long, "--describe") == [heading, reset, limit]
    both = ("--delete-config", "share.auto.offset.reset,share.delivery.count.limit")
    assert configs(*long, "--alter", *both) == ["Completed updating config for group cats."]
    assert configs(*long, "--describe") == [missing]
    heading, *described = configs(*long, "--describe", "--all")
    assert heading == "All configs for group cats are:"
    assert any(line.startswith("  share.isolation.level=read_uncommitted ") for line in described)


def test_client_metrics_are_altered_and_described(configs: Configs) -> None:
    missing = "The client-metric 'all' doesn't exist and doesn't have dynamic config."
    assert configs("--client-metrics", "all", "--describe") == [missing]
    alter = ("--client-metrics", "all", "--alter")
    completed = ["Completed updating config for client-metric all."]
    assert configs(*alter, "--add-config", "interval.ms=1000") == completed
    described = [
        "Dynamic configs for client-metric all are:",
        (
            "  interval.ms=1000 sensitive=false synonyms={"
            "DYNAMIC_CLIENT_METRICS_CONFIG:interval.ms=1000}"
        ),
    ]
    assert configs("--entity-type", "client-metrics", "--describe") == described
    assert configs(*alter, "--delete-config", "interval.ms") == completed
    assert configs("--client-metrics", "all", "--describe") == [missing]


def test_all_groups_with_members_or_configs_are_described(
    configs: Configs, own: MiniBroker
) -> None:
    config = "consumer.heartbeat.interval.ms=6000"
    configs("--group", "dogs", "--alter", "--add-config", config)
    own.create_topic("pets")
    server = ("-b", own.bootstrap_servers)
    CliRunner().invoke(app, ["produce", "pets", "Tom", *server])
    taken = ["--group", "cats", "--from-beginning", "--max-messages", "1"]
    assert CliRunner().invoke(app, ["consume", "pets", *taken, *server]).exit_code == 0
    lines = configs("--entity-type", "groups", "--describe")
    assert [line.split("=")[0] for line in lines] == [
        "Dynamic configs for group cats are:",
        "Dynamic configs for group dogs are:",
        "  consumer.heartbeat.interval.ms",
    ]
    (shown,) = configs("--group", "dogs", "--describe", "--json")
    assert json.loads(shown)["source"] == "DYNAMIC_GROUP_CONFIG"
    assert json.loads(shown)["entity"] == {"group": "dogs"}


def test_user_and_client_quotas_are_altered_and_described(configs: Configs) -> None:
    both = ("--user", "u", "--client-defaults")
    assert configs(*both, "--alter", "--add-config", "producer_byte_rate=1024") == [
        "Completed updating config for user u."
    ]
    assert configs(
        "--entity-type", "users", "--alter", "--add-config", "request_percentage=50"
    ) == ["Completed updating default config for users in the cluster."]
    shown = [
        "Quota configs for user-principal 'u', the default client-id are producer_byte_rate=1024.0"
    ]
    assert configs(*both, "--describe") == shown
    assert configs("--entity-type", "users", "--entity-type", "clients", "--describe") == shown
    assert configs("--user-defaults", "--describe") == [
        "Quota configs for the default user-principal are request_percentage=50.0"
    ]
    assert configs(*both, "--alter", "--delete-config", "producer_byte_rate")
    assert configs("--user-defaults", "--alter", "--delete-config", "request_percentage")
    assert configs("--entity-type", "users", "--entity-type", "clients", "--describe") == []


def test_ip_quotas_are_altered_and_described(configs: Configs) -> None:
    rate = "connection_creation_rate"
    assert configs("--ip", "1.2.3.4", "--alter", "--add-config", f"{rate}=100") == [
        "Completed updating config for ip 1.2.3.4."
    ]
    assert configs("--ip-defaults", "--alter", "--add-config", f"{rate}=2e7") == [
        "Completed updating default config for ips in the cluster."
    ]
    assert configs("--entity-type", "ips", "--describe") == [
        f"Quota configs for ip '1.2.3.4' are {rate}=100.0",
        f"Quota configs for the default ip are {rate}=2.0E7",
    ]
    configs("--ip", "1.2.3.4", "--alter", "--delete-config", rate)
    assert configs("--entity-type", "ips", "--entity-name", "1.2.3.4", "--describe") == []


def test_add_config_file_sets_its_configs(configs: Configs, tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("max.connections=7\n")
    configs("--broker", "1", "--alter", "--add-config-file", str(file))
    assert "  max.connections=7 " in configs("--broker", "1", "--describe")[1]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--broker 1", "exactly one action"),
        ("--broker 1 --describe --alter", "exactly one action"),
        ("--broker 1 --alter", "At least one of --add-config"),
        ("--broker 1 --describe --add-config a=1", "require --alter"),
        ("--broker 1 --alter --all --delete-config a", "requires --describe"),
        ("--broker 1 --alter --add-config a=1 --add-config-file f", "Only one of --add-config"),
        ("--broker 1 --alter --add-config-file /nowhere", "cannot be read"),
        ("--broker 1 --alter --delete-config max.connections", "Invalid config(s): max.connectio"),
        ("--broker 2 --describe", "expected 1 or empty string, but received 2"),
        ("--broker 1 --alter --add-config max.connections=x", "INVALID_REQUEST: Invalid value x"),
        ("--broker 1 --alter --add-config num.io.threads=3", "Cannot update these configs dynam"),
        ("--entity-type groups --alter --add-config a=1", "name must be specified with groups"),
        ("--group g --alter --add-config colour=1", "Unknown group config name: colour"),
        ("--group g --alter --delete-config share.isolation.level", "Invalid config(s): share.is"),
        ("--zookeeper localhost:1 --group g --describe", "must be specified for groups"),
        ("--client-metrics m --alter --add-config colour=1", "Unknown client metrics config"),
        ("--topic gone --alter --add-config retention.ms=1", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("--ip A,B --describe", "valid IP or resolvable host"),
        ("--ip 1.2.3.4 --alter --add-config colour=1", "Unexpected config names: colour"),
        ("--ip 1.2.3.4 --alter --add-config connection_creation_rate=x", "Cannot parse quota"),
        ("--ip 1.2.3.4 --alter --add-config connection_creation_rate=-1", "must be 0 or more"),
        ("--ip 1.2.3.4 --alter --delete-config connection_creation_rate", "Invalid config(s): con"),
        ("--user u --client-defaults --alter --add-config colour=1", "Invalid configuration key"),
        ("--client c --alter --add-config request_percentage=0", "must be greater than 0"),
        ("--ip 1.2.3.4 --entity-type ips --describe", "should not be used in conjunction"),
        ("--zookeeper :0 --broker 1 --describe", "must be host:port"),
        ("--zookeeper localhost --broker 1 --describe --all", "must be specified for --all"),
        ("--zookeeper a:1 -b b:1 --broker 1 --describe", "Only one of --bootstrap-server or"),
        ("--colour red", "No such option"),
    ],
)
def test_rejected_command_exits_with_1(configs: Configs, words: str, expected: str) -> None:
    assert expected in configs(*words.split())


@pytest.mark.parametrize(
    ("add", "masked"),
    [
        ("SCRAM-SHA-256=[password=secret]", True),
        ("listener.name.a.ssl.key.password=secret", True),
        ("listener.name.a.plain.sasl.jaas.config=secret", True),
        ("retention.ms=1000", False),
    ],
)
def test_secrets_are_masked_in_the_process_list(
    monkeypatch: pytest.MonkeyPatch, add: str, masked: bool
) -> None:
    found: list[str] = []
    monkeypatch.setattr(system, "mask_arguments", found.extend)
    words = ["configs", "--user", "a", "--alter", "--add-config", add, "--bootstrap-server", ":1"]
    CliRunner().invoke(app, words)
    assert found == ([add] if masked else [])


def test_entry_point_exits_with_1(own: MiniBroker) -> None:
    command = [sys.executable, "-m", "minibroker", "configs", "-b", own.bootstrap_servers]
    for words in (["--broker", "2", "--describe"], ["--colour"], []):
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr


TEXT = """\
# what alice used, and a fifth more
--alter --entity-type users --entity-name 'a lice' --add-config producer_byte_rate=1024
--alter --user u --client-defaults --add-config request_percentage=12.5,consumer_byte_rate=5
--alter --client-defaults --add-config controller_mutation_rate=2
--alter --ip 127.0.0.9 --add-config connection_creation_rate=5
--alter --client-defaults --delete-config controller_mutation_rate
"""


@pytest.fixture(scope="module")
def quotas() -> Iterator[Configs]:
    """Run the command on a broker that the tests of quota files share."""
    with MiniBroker() as broker:
        yield configs_of(broker)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "quotas.txt"


def described(quotas: Configs) -> list[str]:
    found: list[str] = []
    for kinds in (["users"], ["clients"], ["users", "clients"], ["ips"]):
        lines = quotas("--describe", *(word for kind in kinds for word in ("--entity-type", kind)))
        assert isinstance(lines, list)
        found += lines
    return found


def test_quota_file_applies_and_prints_every_line(quotas: Configs, file: Path) -> None:
    file.write_text(TEXT)
    assert quotas("--alter", "--quota-file", str(file)) == [
        "user a lice: producer_byte_rate=1024",
        "user u, the default of clients: request_percentage=12.5, consumer_byte_rate=5",
        "the default of clients: controller_mutation_rate=2.0",
        "ip 127.0.0.9: connection_creation_rate=5",
        "the default of clients: no controller_mutation_rate",
        f"Applied 5 lines of {file}.",
    ]
    assert described(quotas) == [
        "Quota configs for user-principal 'a lice' are producer_byte_rate=1024.0",
        (
            "Quota configs for user-principal 'u', the default client-id are "
            "request_percentage=12.5, consumer_byte_rate=5.0"
        ),
        "Quota configs for ip '127.0.0.9' are connection_creation_rate=5.0",
    ]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        ("--user a --add-config producer_byte_rate=1", ":2: --alter is missing"),
        ("--alter --user a --add-config producer_byte_rate=0", ":2: producer_byte_rate=0: Quota"),
        (
            "--alter --user a --delete-config producer_byte_rate",
            ":2: user a has no producer_byte_rate to delete; nothing was changed",
        ),
        (
            "--alter --ip no.such.host.invalid --add-config connection_creation_rate=1",
            ":2: ip no.such.host.invalid: INVALID_REQUEST: no.such.host.invalid is not a valid IP ",
        ),
    ],
)
def test_quota_file_with_invalid_line_changes_nothing(
    quotas: Configs, file: Path, last: str, expected: str
) -> None:
    before = described(quotas)
    file.write_text(f"--alter --user never --add-config producer_byte_rate=1\n{last}\n")
    found = quotas("--alter", "--quota-file", str(file))
    assert isinstance(found, str)
    assert found.startswith(f"{file}{expected}")
    assert described(quotas) == before


def test_quota_file_is_split_into_requests(quotas: Configs, file: Path) -> None:
    count = LINES_MAX + 1
    add = [
        f"--alter --client many{n} --add-config producer_byte_rate={n + 1}" for n in range(count)
    ]
    file.write_text("\n".join(add))
    assert quotas("--alter", "--quota-file", str(file))[-1] == f"Applied {count} lines of {file}."
    lines = described(quotas)
    for n in range(count):
        expected = f"Quota configs for client-id 'many{n}' are producer_byte_rate={n + 1}.0"
        assert expected in lines
    file.write_text("\n".join(line.split("=")[0].replace("add", "delete") for line in add))
    assert quotas("--alter", "--quota-file", str(file))[-1] == f"Applied {count} lines of {file}."
    assert not any("many" in line for line in described(quotas))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--describe", "--quota-file", "f"], "combined with --alter"),
        (["--alter", "--quota-file", "f", "--user", "u"], "contain everything else"),
        (["--alter", "--quota-file", "f", "--zookeeper", "h:1"], "combined with --alter"),
        (["--alter", "--quota-file", "/nowhere/f"], "/nowhere/f: cannot be read (No such file"),
    ],
)
def test_quota_file_rejects_other_options(quotas: Configs, words: list[str], expected: str) -> None:
    assert expected in quotas(*words)


def test_empty_quota_file_is_rejected(quotas: Configs, file: Path) -> None:
    file.write_text("# nothing\n\n")
    assert "contains no --alter line" in quotas("--alter", "--quota-file", str(file))
    file.write_bytes(b"\xff")
    assert "not UTF-8" in quotas("--alter", "--quota-file", str(file))


def test_description_as_json_has_one_object_per_config_or_entity(configs: Configs) -> None:
    def lines(*words: str) -> list[Any]:
        found = configs(*words, "--json")
        assert not isinstance(found, str)
        return [json.loads(line) for line in found]

    set_max = ("--alter", "--add-config", "max.connections=7")
    assert lines("--broker-defaults", *set_max) == [
        {"entity": {"broker": None}, "outcome": "altered"}
    ]
    (config,) = lines("--broker-defaults", "--describe")
    assert (config["entity"], config["name"], config["value"]) == (
        {"broker": None},
        "max.connections",
        "7",
    )
    assert config["synonyms"][0]["source"] == "DYNAMIC_DEFAULT_BROKER_CONFIG"
    configs("--user", "alice", "--alter", "--add-config", "producer_byte_rate=1024")
    configs("--user", "alice", "--alter", "--add-config", "SCRAM-SHA-256=[password=secret]")
    assert lines("--user", "alice", "--describe") == [
        {"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 1024.0}},
        {"entity": {"user": "alice"}, "credentials": {"SCRAM-SHA-256": 4096}},
    ]
    elsewhere = ("--entity-type", "topics", "--describe", "--zookeeper", "there:2181")
    assert configs(*elsewhere, "--json") == "--json goes with --bootstrap-server, not --zookeeper"
