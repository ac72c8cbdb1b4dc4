"""Kafka's own tools for the operation of a cluster, and what they print.

Most of what they ask a single broker for changes nothing; the tests compare with what the tools
print for a Kafka of one node.
"""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from system_tests.harness.control import ask
from system_tests.harness.waiting import wait_until
from system_tests.security.conftest import PASSWORDS, Secured
from system_tests.security.test_tools import (
    CONFIGS,
    IN_JAVA,
    PRODUCER,
    TOPICS,
    Tool,
    logging_tools,
    tool,
)

__all__ = ["logging_tools", "tool"]

TOOLS = "org.apache.kafka.tools"
LOG_DIRS = f"{TOOLS}.LogDirsCommand"
REASSIGNMENT = f"{TOOLS}.reassign.ReassignPartitionsCommand"
ELECTION = f"{TOOLS}.LeaderElectionCommand"
TOKENS = f"{TOOLS}.DelegationTokenCommand"
CLIENT_METRICS = f"{TOOLS}.ClientMetricsCommand"
FEATURES = f"{TOOLS}.FeatureCommand"
QUORUM = f"{TOOLS}.MetadataQuorumCommand"

pytestmark = [pytest.mark.java, pytest.mark.minibroker]


@pytest.fixture
def topic(tool: Tool, secured: Secured) -> str:
    """A topic with two partitions."""
    name = f"tools-{uuid.uuid4().hex[:6]}"
    words = ("--create", "--topic", name, "--partitions", "2")
    code, printed = tool(TOPICS, secured.plaintext, *words)
    assert code == 0, printed
    return name


def succeed(tool: Tool, program: str, server: str, *words: str) -> str:
    code, printed = tool(program, server, *words)
    assert code == 0, printed
    return printed


def test_log_dirs_are_described(tool: Tool, secured: Secured, topic: str) -> None:
    code, printed = tool(PRODUCER, secured.plaintext, "--topic", topic, says="x" * 1000)
    assert code == 0, printed
    words = ("--describe", "--topic-list", topic)
    printed = succeed(tool, LOG_DIRS, secured.plaintext, *words)
    [line] = [line for line in printed.splitlines() if line.startswith("{")]
    [broker] = json.loads(line)["brokers"]
    [directory] = broker["logDirs"]
    sizes = {one["partition"]: one["size"] for one in directory["partitions"]}
    assert set(sizes) == {f"{topic}-0", f"{topic}-1"}
    # One partition has the record and its batch's header, the other one nothing.
    assert min(sizes.values()) == 0
    assert 1000 < max(sizes.values()) < 1100
    assert directory["error"] is None


def test_topic_is_described_page_by_page(tool: Tool, secured: Secured, topic: str) -> None:
    words = ("--describe", "--topic", topic, "--partition-size-limit-per-response", "1")
    printed = succeed(tool, TOPICS, secured.plaintext, *words)
    assert re.findall(r"Partition: (\d)\s+Leader: 1", printed) == ["0", "1"]


def test_reassignment_to_this_broker_is_complete(
    tool: Tool, secured: Secured, topic: str, tmp_path: Path
) -> None:
    def plan(*replicas: int) -> str:
        partition = {"topic": topic, "partition": 0, "replicas": list(replicas)}
        file = tmp_path / "plan.json"
        file.write_text(json.dumps({"version": 1, "partitions": [partition]}))
        return str(file)

    words = ("--reassignment-json-file", plan(1))
    printed = succeed(tool, REASSIGNMENT, secured.plaintext, *words, "--execute")
    assert f"Successfully started partition reassignment for {topic}-0" in printed
    printed = succeed(tool, REASSIGNMENT, secured.plaintext, *words, "--verify")
    assert f"Reassignment of partition {topic}-0 is completed." in printed
    printed = succeed(tool, REASSIGNMENT, secured.plaintext, "--list")
    assert "No partition reassignments found." in printed
    words = ("--reassignment-json-file", plan(2))
    code, printed = tool(REASSIGNMENT, secured.plaintext, *words, "--execute")
    assert code != 0
    assert "2" in printed


def test_preferred_leader_is_elected_already(tool: Tool, secured: Secured, topic: str) -> None:
    words = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    printed = succeed(tool, ELECTION, secured.plaintext, *words)
    assert f"Valid replica already elected for partitions {topic}-0" in printed


def test_quorum_is_described(tool: Tool, secured: Secured) -> None:
    printed = succeed(tool, QUORUM, secured.plaintext, "describe", "--status")
    assert re.search(r"LeaderId:\s+1\b", printed)
    printed = succeed(tool, QUORUM, secured.plaintext, "describe", "--replication")
    assert re.search(r"^1\s.*Leader", printed, re.MULTILINE)


def test_feature_level_is_changed(tool: Tool, secured: Secured) -> None:
    def finalized() -> str:
        printed = succeed(tool, FEATURES, secured.plaintext, "describe")
        found = re.search(r"transaction\.version.*FinalizedVersionLevel: (\d)", printed)
        assert found is not None, printed
        return found[1]

    feature = ("--feature", "transaction.version=1")
    assert finalized() == "2"
    code, printed = tool(FEATURES, secured.plaintext, "upgrade", *feature)
    assert code != 0
    assert "Can't downgrade" in printed
    succeed(tool, FEATURES, secured.plaintext, "downgrade", *feature)
    assert finalized() == "1"
    succeed(tool, FEATURES, secured.plaintext, "upgrade", "--feature", "transaction.version=2")
    assert finalized() == "2"


def test_configs_of_groups_and_loggers_are_changed(tool: Tool, secured: Secured) -> None:
    group = ("--entity-type", "groups", "--entity-name", "g/1")
    setting = "consumer.session.timeout.ms=50000"
    succeed(tool, CONFIGS, secured.plaintext, "--alter", *group, "--add-config", setting)
    assert setting in succeed(tool, CONFIGS, secured.plaintext, "--describe", *group)
    logger = ("--entity-type", "broker-loggers", "--entity-name", "1")
    level = "minibroker.storage=DEBUG"
    succeed(tool, CONFIGS, secured.plaintext, "--alter", *logger, "--add-config", level)
    assert level in succeed(tool, CONFIGS, secured.plaintext, "--describe", *logger)
    succeed(
        tool,
        CONFIGS,
        secured.plaintext,
        *("--alter", *logger, "--delete-config", "minibroker.storage"),
    )


def test_token_is_created_used_renewed_and_expired(
    tool: Tool, secured: Secured, tmp_path: Path
) -> None:
    alice = secured.client(tmp_path, "PLAIN", "alice", PASSWORDS["alice"], *IN_JAVA)
    config = ("--command-config", alice)
    words = ("--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob")
    printed = succeed(tool, TOKENS, secured.sasl_ssl, *config, *words)
    found = re.search(r"^([\w-]{22})\s+(\S+)\s+User:alice", printed, re.MULTILINE)
    assert found is not None, printed
    token_id, secret = found[1], found[2]
    described = ("--describe", "--owner-principal", "User:alice")
    assert token_id in succeed(tool, TOKENS, secured.sasl_ssl, *config, *described)

    def list_topics() -> tuple[int, str]:
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        options = f'username="{token_id}" password="{secret}" tokenauth="true"'
        lines = ("security.protocol=SASL_SSL", "sasl.mechanism=SCRAM-SHA-512")
        jaas = f"sasl.jaas.config={module} required {options};"
        (tmp_path / "token").mkdir(exist_ok=True)
        file = secured.proven(tmp_path / "token", *lines, jaas, *IN_JAVA)
        return tool(TOPICS, secured.sasl_ssl, "--command-config", file, "--list")

    code, printed = list_topics()
    assert code == 0, printed
    renewal = ("--renew", "--renew-time-period", "-1", "--hmac", secret)
    succeed(tool, TOKENS, secured.sasl_ssl, *config, *renewal)
    expiry = ("--expire", "--expiry-time-period", "-1", "--hmac", secret)
    succeed(tool, TOKENS, secured.sasl_ssl, *config, *expiry)
    code, printed = list_topics()
    assert code != 0
    assert "SaslAuthenticationException" in printed
    assert token_id not in succeed(tool, TOKENS, secured.sasl_ssl, *config, *described)


def test_java_producer_pushes_the_metrics_of_a_subscription(
    tool: Tool, secured: Secured, topic: str
) -> None:
    words = ("--name", "of-java", "--metrics", "org.apache.kafka.producer.", "--interval", "1000")
    succeed(tool, CLIENT_METRICS, secured.plaintext, "--alter", *words)
    printed = succeed(tool, CLIENT_METRICS, secured.plaintext, "--describe", "--name", "of-java")
    assert "interval.ms=1000" in printed
    assert "of-java" in succeed(tool, CLIENT_METRICS, secured.plaintext, "--list")
    says = "".join(f"record {n}\n" for n in range(1000))
    produced = ("--topic", topic, "--command-property", "client.id=pushing")

    def pushed() -> Any:
        # Most producers that end within the first interval push nothing, also not at their end.
        code, printed = tool(PRODUCER, secured.plaintext, *produced, says=says)
        assert code == 0, printed
        instances = ask(secured.broker, "GET", "/v1/client-metrics")["instances"]
        of_client = (one for one in instances if one["client_id"] == "pushing" and one["points"])
        return next(of_client, None)

    instance = wait_until(pushed, "the metrics of the producer")
    assert instance["software_name"] == "apache-kafka-java"
    names = {point["name"] for point in instance["points"]}
    assert any(name.startswith("org.apache.kafka.producer.") for name in names)
    succeed(tool, CLIENT_METRICS, secured.plaintext, "--delete", "--name", "of-java")
