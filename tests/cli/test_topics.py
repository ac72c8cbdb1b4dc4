from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from minibroker.cli.app import app
from minibroker.cli.output import InvalidUsage
from minibroker.cli.topics import read_pair
from minibroker.client.errors import BrokerError
from minibroker.testing import MiniBroker
from minibroker_protocol.types import uuid_from_text


@pytest.fixture
def name(minibroker_group: str) -> str:
    """An unused topic name."""
    return minibroker_group


def test_topic_is_created_listed_described_and_deleted(command: Any, name: str) -> None:
    created = command("topics", "create", name, "--partitions", "2", "--config", "retention.ms=9")
    assert created.stdout == f"created topic {name}\n"
    assert [name, "2"] in [line.split() for line in command("topics", "list").stdout.splitlines()]
    described = command("topics", "describe", name).stdout.splitlines()
    assert described[0] == f"topic {name}, settings: retention.ms=9"
    assert [line.split() for line in described[2:]] == [
        ["0", "1", "1", "1", "0", "0"],
        ["1", "1", "1", "1", "0", "0"],
    ]
    assert command("topics", "delete", name).stdout == f"deleted topic {name}\n"
    assert name not in command("topics", "list").stdout


def test_topics_json_prints_one_object_per_line(command: Any, minibroker_topic: str) -> None:
    lines = command("topics", "list", "--json").stdout.splitlines()
    assert {"topic": minibroker_topic, "partitions": 1} in map(json.loads, lines)
    (line,) = command("topics", "describe", minibroker_topic, "--json").stdout.splitlines()
    described = json.loads(line)
    assert (described["topic"], described["end"]) == (minibroker_topic, 0)
    assert len(uuid_from_text(described["topic_id"])) == 16


def test_existing_topic_is_rejected_or_kept(command: Any, minibroker_topic: str) -> None:
    with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
        command("topics", "create", minibroker_topic)
    again = command("topics", "create", minibroker_topic, "--if-not-exists")
    assert again.stderr == f"topic {minibroker_topic} already exists\n"


def test_topics_create_reports_each_topic(
    command: Any, name: str, minibroker: MiniBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BrokerError, match="topic no such: INVALID_TOPIC_EXCEPTION"):
        command("topics", "create", name, "no such")
    assert minibroker.control.get("v1", "topics", name)


def test_missing_topic_is_reported(command: Any, name: str) -> None:
    for action in ("describe", "delete"):
        with pytest.raises(BrokerError, match=f"topic {name}: UNKNOWN_TOPIC_OR_PARTITION"):
            command("topics", action, name)


def test_invalid_topic_config_has_the_broker_s_message(command: Any, name: str) -> None:
    with pytest.raises(BrokerError, match=r"INVALID_CONFIG: .*retention"):
        command("topics", "create", name, "--config", "retention.ms=soon")


def test_topic_config_without_value_is_rejected() -> None:
    assert read_pair("a=b=c") == ("a", "b=c")
    with pytest.raises(InvalidUsage, match=r"--config a: must be NAME=VALUE"):
        read_pair("a")


def test_topic_is_altered(command: Any, name: str) -> None:
    command("topics", "create", name, "--config", "segment.ms=9000")
    changes = ("--partitions", "3", "--config", "retention.ms=9", "--delete-config", "segment.ms")
    assert command("topics", "alter", name, *changes).stdout == f"altered topic {name}\n"
    described = command("topics", "describe", name).stdout.splitlines()
    assert described[0] == f"topic {name}, settings: retention.ms=9"
    assert len(described) == 5


def test_rejected_alteration_changes_nothing(command: Any, name: str) -> None:
    command("topics", "create", name)
    changes = ("--partitions", "3", "--config", "retention.ms=soon")
    with pytest.raises(BrokerError, match=rf"topic {name}: INVALID_CONFIG"):
        command("topics", "alter", name, *changes)
    with pytest.raises(BrokerError, match="INVALID_PARTITIONS"):
        command("topics", "alter", name, "--partitions", "1")
    assert len(command("topics", "describe", name).stdout.splitlines()) == 3
    with pytest.raises(InvalidUsage, match="say what to alter"):
        command("topics", "alter", name)


def test_outcomes_as_json_include_rejections(
    minibroker: MiniBroker, name: str, minibroker_topic: str
) -> None:
    words = ["topics", "create", name, minibroker_topic, "--json"]
    result = CliRunner().invoke(app, [*words, "-b", minibroker.bootstrap_servers])
    first, second = map(json.loads, result.stdout.splitlines())
    assert first == {"topic": name, "outcome": "created"}
    assert second["outcome"] == "rejected"
    assert second["error"] == "TOPIC_ALREADY_EXISTS"
    assert isinstance(result.exception, BrokerError)
