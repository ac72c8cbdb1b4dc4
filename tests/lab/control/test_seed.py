"""Seeds from files and folders, at a broker that runs and at one that starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minibroker.client.control import Control
from minibroker.client.kafka_client import KafkaClient
from minibroker.testing import ControlError, MiniBroker
from minibroker_protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from minibroker_protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)

ORDERS = """
[settings]
"log.retention.ms" = 60000

[topics.orders]
partitions = 3
configs = {"cleanup.policy" = ["compact", "delete"]}
records = [
  {key = "7", value = {state = "paid"}, headers = {trace = "1"}, timestamp_ms = 5},
  {key_base64 = "/w==", value = "x", partition = 2},
]

[users]
alice = "secret"
bob = {password = "secret", mechanisms = ["SCRAM-SHA-512"]}

[[quotas]]
user = "alice"
client_id = "<default>"
producer_byte_rate = 1024
"""


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    file = tmp_path / "orders.toml"
    file.write_text(ORDERS)
    return file


def test_seed_is_created_once(orders: Path) -> None:
    with MiniBroker(seed=orders) as broker:
        paid, other = broker.messages("orders")
        assert (paid.key, paid.json()) == (b"7", {"state": "paid"})
        assert paid.headers == (("trace", b"1"),)
        assert (other.key, other.partition) == (b"\xff", 2)
        topic = broker.control.get("v1", "topics", "orders")
        assert len(topic["partitions"]) == 3
        assert topic["configs"] == {"cleanup.policy": "compact,delete"}
        result = broker.seed(orders)
        assert result == {"topics": [], "existing": ["orders"], "records": 0}
        assert len(broker.messages("orders")) == 2
        with KafkaClient(broker.bootstrap_servers) as client:
            request = DescribeClientQuotasRequest(components=[], strict=False)
            (quota,) = client.send(request, DescribeClientQuotasResponse).entries or []
            assert [value.value for value in quota.values] == [1024]
            named = [(part.entity_type, part.entity_name) for part in quota.entity]
            assert sorted(named) == [("client-id", None), ("user", "alice")]
            users = client.send(
                DescribeUserScramCredentialsRequest(users=None),
                DescribeUserScramCredentialsResponse,
            )
        mechanisms = {
            user.user: [info.mechanism for info in user.credential_infos] for user in users.results
        }
        assert mechanisms == {"alice": [1, 2], "bob": [2]}


def test_folder_has_files_and_records_by_topic(tmp_path: Path, minibroker: MiniBroker) -> None:
    (tmp_path / "a.toml").write_text("[topics.seed-a]\npartitions = 2\n")
    (tmp_path / "b.toml").write_text('[topics.seed-b]\nrecords = ["one"]\n')
    (tmp_path / "seed-a.jsonl").write_text('"two"\n\n{"key": "k", "value": {"id": 3}}\n')
    result = minibroker.seed(tmp_path)
    assert result == {"topics": ["seed-a", "seed-b"], "existing": [], "records": 3}
    assert {message.text for message in minibroker.messages("seed-a")} == {"two", '{"id": 3}'}
    for name in result["topics"]:
        minibroker.delete_topic(name)


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        ({"settings": {"log.dirs": "/x"}}, "settings: Cannot update these configs dynamically"),
        ({"topics": {"a/b": {}}}, "topic a/b: "),
        ({"topics": {"t": {"records": [{"partition": 9}]}}}, "topic t: records.0.partition"),
        ({"quotas": [{"user": "a", "producer_byte_rate": -1}]}, "quotas: "),
        ({"users": {"a": {"password": "b", "mechanisms": ["PLAIN"]}}}, "users.0.mechanisms"),
    ],
)
def test_rejected_entry_is_named(seed: dict[str, Any], expected: str) -> None:
    with MiniBroker() as broker, pytest.raises(ControlError) as rejected:
        broker.seed(seed)
    assert expected in rejected.value.text


def start(*options: str | Path) -> dict[str, Any]:
    """Start a broker that ends at once after its ready line, and return that line."""
    command = [sys.executable, "-m", "minibroker", "start", "--json", "--exit-with-parent"]
    listener = "PLAINTEXT://127.0.0.1:0"
    with subprocess.Popen(
        [*command, "--listener", listener, *options],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        line: dict[str, Any] = json.loads(process.stdout.readline())
        if line["event"] == "ready":
            with Control(line["control_url"]) as control:
                line["topics"] = control.get("v1", "topics")["topics"]
                line["records"] = control.get("v1", "topics", "orders", "records")["records"]
        process.stdin.close()  # type: ignore[union-attr]
    return line


def test_started_broker_is_ready_with_its_seed(orders: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for _ in range(2):  # The second start finds the topic, and adds nothing.
        ready = start("--seed", orders, "--data-dir", data)
        assert len(ready["records"]) == 2


def test_start_fails_with_the_reason_if_the_seed_is_rejected(orders: Path) -> None:
    orders.write_text(ORDERS.replace("partitions = 3", "partitions = 0"))
    failed = start("--seed", orders)
    assert failed["event"] == "error"
    assert "the seed can't be applied: topics.0.partitions: must be from 1" in failed["message"]
    orders.write_text("[topic]")
    assert "did you mean 'topics'?" in start("--seed", orders)["message"]
