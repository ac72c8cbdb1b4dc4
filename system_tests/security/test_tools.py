"""Kafka's own kafka-configs.sh, kafka-acls.sh and Java clients: users, ACLs, and their effects."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from system_tests.harness.jvm import ERRORS
from system_tests.harness.kafka_tools import KafkaTools
from system_tests.security.conftest import MODULES, PASSWORDS, Secured

Tool = Callable[..., tuple[int, str]]
IN_JAVA = (
    "ssl.truststore.type=PEM",
    "request.timeout.ms=10000",
    "default.api.timeout.ms=15000",
)
"""Settings of a Java client in addition to its credentials."""
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
ACLS = "org.apache.kafka.tools.AclCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
TOPICS = "org.apache.kafka.tools.TopicCommand"

pytestmark = [pytest.mark.java, pytest.mark.minibroker]


@pytest.fixture(scope="module")
def logging_tools(kafka_libs: Path) -> Iterator[KafkaTools]:
    """The programs with their log, which has the names of exceptions."""
    tools = KafkaTools(logging=ERRORS)
    yield tools
    tools.close()


@pytest.fixture
def tool(logging_tools: KafkaTools) -> Tool:
    """Run a tool; gives its exit status and all that it printed."""

    def run(program: str, server: str, *words: str, says: str = "") -> tuple[int, str]:
        done = logging_tools.run(program, "--bootstrap-server", server, *words, says=says)
        return done.code, done.printed

    return run


def set_password(tool: Tool, at: Secured, user: str, mechanism: str) -> None:
    add = f"{mechanism}=[iterations=8192,password={PASSWORDS['bob']}]"
    words = ("--alter", "--entity-type", "users", "--entity-name", user, "--add-config", add)
    code, printed = tool(CONFIGS, at.plaintext, *words)
    assert code == 0, printed


def test_users_are_created_described_and_deleted(tool: Tool, secured: Secured) -> None:
    user = f"user-{uuid.uuid4().hex[:6]}"
    set_password(tool, secured, user, "SCRAM-SHA-512")
    entity = ("--entity-type", "users", "--entity-name", user)
    _, printed = tool(CONFIGS, secured.plaintext, "--describe", *entity)
    wanted = f"SCRAM credential configs for user-principal '{user}' are"
    assert f"{wanted} SCRAM-SHA-512=iterations=8192" in printed
    gone = ("--alter", *entity, "--delete-config", "SCRAM-SHA-512")
    assert tool(CONFIGS, secured.plaintext, *gone)[0] == 0
    _, printed = tool(CONFIGS, secured.plaintext, "--describe", *entity)
    assert wanted not in printed


@pytest.mark.parametrize("mechanism", MODULES)
def test_java_client_authenticates(
    tool: Tool, secured: Secured, tmp_path: Path, mechanism: str
) -> None:
    if mechanism.startswith("SCRAM"):
        set_password(tool, secured, "alice", mechanism)
        password = PASSWORDS["bob"]
    else:
        password = PASSWORDS["alice"]
    name = f"java-{mechanism.lower()}"
    config = secured.client(tmp_path, mechanism, "alice", password, *IN_JAVA)
    words = ("--command-config", config, "--create", "--topic", name)
    code, printed = tool(TOPICS, secured.sasl_ssl, *words)
    assert code == 0, printed
    assert f"Created topic {name}." in printed
    if mechanism != "OAUTHBEARER":
        config = secured.client(tmp_path, mechanism, "alice", "not it", *IN_JAVA)
        code, printed = tool(
            TOPICS, secured.sasl_ssl, "--command-config", config, "--list", "--topic", name
        )
        assert code != 0
        assert "SaslAuthenticationException" in printed


@pytest.mark.parametrize("mechanism", MODULES)
def test_java_client_produces_and_consumes(
    tool: Tool, secured: Secured, tmp_path: Path, mechanism: str
) -> None:
    password = PASSWORDS["alice"]
    if mechanism.startswith("SCRAM"):
        set_password(tool, secured, "alice", mechanism)
        password = PASSWORDS["bob"]
    config = secured.client(tmp_path, mechanism, "alice", password, *IN_JAVA)
    topic = f"java-{uuid.uuid4().hex[:6]}"
    words = ("--topic", topic, "--command-config", config)
    code, printed = tool(PRODUCER, secured.sasl_ssl, *words, says="hello\n")
    assert code == 0, printed
    first = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "20000")
    code, printed = tool(CONSUMER, secured.sasl_ssl, *words, *first)
    assert code == 0, printed
    assert printed.startswith("hello\n")


def test_acls_are_created_enforced_listed_and_deleted(
    tool: Tool, secured: Secured, tmp_path: Path
) -> None:
    topic = f"ruled-{uuid.uuid4().hex[:6]}"
    assert tool(TOPICS, secured.plaintext, "--create", "--topic", topic)[0] == 0
    bob = secured.client(tmp_path, "PLAIN", "bob", PASSWORDS["bob"], *IN_JAVA)
    look = ("--command-config", bob, "--list")
    assert topic not in tool(TOPICS, secured.sasl_ssl, *look)[1]

    code, printed = tool(
        ACLS,
        secured.plaintext,
        *("--add", "--allow-principal", "User:bob", "--operation", "Read"),
        *("--topic", "ruled-", "--resource-pattern-type", "prefixed"),
    )
    assert code == 0, printed
    assert topic in tool(TOPICS, secured.sasl_ssl, *look)[1]
    denied = ("--command-config", bob, "--delete", "--topic", topic)
    code, printed = tool(TOPICS, secured.sasl_ssl, *denied)
    assert code != 0
    assert "TopicAuthorizationException" in printed
    match = ("--topic", topic, "--resource-pattern-type", "match")
    _, printed = tool(ACLS, secured.plaintext, "--list", *match)
    assert "(principal=User:bob, host=*, operation=READ, permissionType=ALLOW)" in printed

    _, printed = tool(ACLS, secured.sasl_ssl, "--command-config", bob, "--list")
    assert "ClusterAuthorizationException" in printed
    code, printed = tool(
        ACLS,
        secured.plaintext,
        *("--remove", "--force", "--topic", "ruled-", "--resource-pattern-type", "prefixed"),
    )
    assert code == 0, printed
    assert topic not in tool(TOPICS, secured.sasl_ssl, *look)[1]
