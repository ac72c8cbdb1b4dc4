"""The command for ACLs: its options in Kafka's terms, and a broker with an authorizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from minibroker.cli.acls import read_acls
from minibroker.cli.output import InvalidUsage
from minibroker.client.errors import BrokerError
from minibroker.testing import MiniBroker

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """The address of a broker with an authorizer, whose users may do anything without an ACL."""
    settings = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with MiniBroker(settings=settings) as broker:
        yield broker.bootstrap_servers


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()[1:]]


def test_acls_are_added_listed_and_removed(command: Any, guarded: str) -> None:
    who = ("--allow-principal", "User:alice")
    read = ("--operation", "Read", "--operation", "describe", "--topic", "orders")
    added = [
        ["TOPIC", "orders", "LITERAL", "User:alice", "*", "READ", "ALLOW"],
        ["TOPIC", "orders", "LITERAL", "User:alice", "*", "DESCRIBE", "ALLOW"],
    ]
    assert rows(command("acls", "add", *who, *read, "-b", guarded).stdout) == added
    assert rows(command("acls", "list", "--topic", "orders", "-b", guarded).stdout) == added
    assert rows(command("acls", "remove", *who, *read, "-b", guarded).stdout) == added
    listed = command("acls", "list", "-b", guarded)
    assert (listed.stdout, listed.stderr) == (
        "",
        "no ACLs; add one with `minibroker acls add`\n",
    )


def test_acls_are_filtered_by_principal_and_pattern(command: Any, guarded: str) -> None:
    prefixed = ("--topic", "log-", "--resource-pattern-type", "prefixed")
    command("acls", "add", "--deny-principal", "User:eve", *prefixed, "-b", guarded)
    command("acls", "add", "--allow-principal", "User:bob", "--topic", "log-1", "-b", guarded)
    match = ("--topic", "log-1", "--resource-pattern-type", "match")
    found = command("acls", "list", *match, "--json", "-b", guarded).stdout.splitlines()
    assert {json.loads(line)["principal"] for line in found} == {"User:bob", "User:eve"}
    of_eve = command("acls", "list", "--principal", "User:eve", "--json", "-b", guarded).stdout
    assert json.loads(of_eve) == {
        "resource_type": "TOPIC",
        "name": "log-",
        "pattern_type": "PREFIXED",
        "principal": "User:eve",
        "host": "*",
        "operation": "ALL",
        "permission": "DENY",
    }
    nothing = command("acls", "remove", "--topic", "log-", "-b", guarded)
    assert "no ACL matches" in nothing.stderr
    assert len(rows(command("acls", "remove", *match, "-b", guarded).stdout)) == 2


NOTHING: dict[str, Any] = {
    "allow_principal": (),
    "deny_principal": (),
    "allow_host": (),
    "deny_host": (),
    "operation": (),
    "producer": False,
    "idempotent": False,
    "consumer": False,
    "topic": (),
    "group": (),
    "transactional_id": (),
    "delegation_token": (),
    "cluster": False,
    "pattern_type": "literal",
}
ALICE = {"allow_principal": ("User:alice",)}


def operations(**given: Any) -> list[tuple[str, str]]:
    acls = read_acls({**NOTHING, **ALICE, **given})
    return [(acl.resource_type.name, acl.operation.name) for acl in acls]


def test_roles_stand_for_the_operations_that_kafka_lists() -> None:
    assert operations(producer=True, topic=("t",), idempotent=True) == [
        ("TOPIC", "WRITE"),
        ("TOPIC", "DESCRIBE"),
        ("TOPIC", "CREATE"),
        ("CLUSTER", "IDEMPOTENT_WRITE"),
    ]
    assert operations(consumer=True, topic=("t",), group=("g",)) == [
        ("TOPIC", "READ"),
        ("TOPIC", "DESCRIBE"),
        ("GROUP", "READ"),
    ]


def test_operation_is_all_unless_given() -> None:
    assert operations(cluster=True) == [("CLUSTER", "ALL")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": ("t",), "allow_principal": ()}, "say which principal"),
        ({}, "name a resource"),
        ({"topic": ("t",), "operation": ("Reed",)}, "--operation Reed: must be one of All, Read"),
        ({"topic": ("t",), "pattern_type": "match"}, "an ACL is literal or prefixed"),
        ({"topic": ("t",), "pattern_type": "x"}, "must be one of any, match, literal, prefixed"),
        ({"topic": ("t",), "consumer": True}, "--consumer needs --topic and --group"),
        ({"topic": ("t",), "deny_host": ("h",)}, "--deny-host belongs to --deny-principal"),
        (
            {"topic": ("t",), "producer": True, "operation": ("Read",)},
            "leave out --operation",
        ),
    ],
)
def test_invalid_options_are_rejected(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidUsage, match=message):
        operations(**given)


def test_broker_without_authorizer_names_the_setting(command: Any) -> None:
    with pytest.raises(BrokerError, match="SECURITY_DISABLED"):
        command("acls", "list")
