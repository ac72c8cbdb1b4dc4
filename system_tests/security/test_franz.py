"""franz-go sets, describes and removes quotas, users and ACLs of every kind, and authenticates."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import product

import pytest

from system_tests.conftest import without_toolchain
from system_tests.harness.jars import ToolchainMissing
from system_tests.security.conftest import PASSWORDS, Secured
from system_tests.security.franz_go import ErrorAnswer, Franz, Rule

pytestmark = pytest.mark.minibroker

Dial = Callable[..., Franz]
Entity = dict[str, str | None]
BYTES = {"producer_byte_rate": 1e6, "consumer_byte_rate": 2e6}
OF_CLIENTS = {**BYTES, "request_percentage": 12.5, "controller_mutation_rate": 3.0}
OF_IPS = {"connection_creation_rate": 7.0}


@pytest.fixture
def franz(secured: Secured) -> Iterator[Dial]:
    """A client over PLAINTEXT, or with a mechanism, user and password."""
    with ExitStack() as stack:

        def dial(*proof: str) -> Franz:
            try:
                if proof:
                    made = Franz(secured.sasl_ssl, str(secured.authority), *proof)
                else:
                    made = Franz(secured.plaintext)
            except ToolchainMissing as missing:
                without_toolchain(missing)
                raise
            stack.callback(made.close)
            return made

        yield dial


def unique(word: str) -> str:
    return f"{word}-{uuid.uuid4().hex[:6]}"


def clients() -> list[Entity]:
    """An entity of each level."""
    names: tuple[str | None, ...] = (unique("franz"), None)
    single: list[Entity] = [{kind: name} for kind in ("user", "client-id") for name in names]
    return single + [{"user": user, "client-id": client} for user, client in product(names, names)]


def test_quotas_of_each_level_are_set_described_and_removed(franz: Dial) -> None:
    admin = franz()
    entities = [(entity, OF_CLIENTS) for entity in clients()]
    entities += [({"ip": "127.9.9.9"}, OF_IPS), ({"ip": None}, OF_IPS)]
    for entity, quotas in entities:
        # Defaults concern this very client, which is to get on.
        admin.ask("set_quotas", entity=entity, quotas=quotas)
        assert admin.ask("quotas", entity=entity, strict=True) == [[entity, quotas]]
        some = next(iter(quotas))
        admin.ask("set_quotas", entity=entity, quotas={some: quotas[some] + 1})
        changed = {**quotas, some: quotas[some] + 1}
        assert admin.ask("quotas", entity=entity, strict=True) == [[entity, changed]]
        admin.ask("set_quotas", entity=entity, quotas=dict.fromkeys(quotas))
        assert admin.ask("quotas", entity=entity, strict=True) == []


def test_quotas_are_found_by_kind(franz: Dial) -> None:
    admin = franz()
    user, client = unique("franz"), unique("franz")
    alone: Entity = {"user": user}
    together: Entity = {"user": user, "client-id": client}
    for entity in (alone, together):
        admin.ask("set_quotas", entity=entity, quotas=BYTES)
    assert admin.ask("quotas", entity=alone, strict=True) == [[alone, BYTES]]
    found = admin.ask("quotas", entity=alone)
    assert sorted(found, key=lambda each: len(each[0])) == [[alone, BYTES], [together, BYTES]]
    assert [together, BYTES] in admin.ask("quotas", any=["user", "client-id"], strict=True)
    assert [alone, BYTES] in admin.ask("quotas", any=["user"], strict=True)
    for entity in (alone, together):
        admin.ask("set_quotas", entity=entity, quotas=dict.fromkeys(BYTES))


def test_invalid_quota_is_rejected(franz: Dial) -> None:
    admin = franz()
    entity = {"user": unique("franz")}
    for wrong in ({"connection_creation_rate": 1.0}, {"no_such_rate": 1.0}):
        with pytest.raises(ErrorAnswer, match="INVALID_REQUEST"):
            admin.ask("set_quotas", entity=entity, quotas=wrong)
    assert admin.ask("quotas", entity=entity) == []


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_scram_user_is_created_authenticated_and_deleted(franz: Dial, mechanism: str) -> None:
    admin, user = franz(), "alice"
    admin.ask(
        "set_password", user=user, mechanism=mechanism, iterations=5000, password=PASSWORDS["bob"]
    )
    assert admin.ask("passwords", user=user)[mechanism] == 5000
    topic = unique("franz")
    client = franz(mechanism, user, PASSWORDS["bob"])
    assert client.ask("there_and_back", topic=topic, value="hello") == "hello"
    with pytest.raises(ErrorAnswer, match="SASL_AUTHENTICATION_FAILED"):
        franz(mechanism, user, PASSWORDS["alice"]).ask("quotas", any=["user"])
    admin.ask("set_password", user=user, mechanism=mechanism)
    with pytest.raises(ErrorAnswer, match="SASL_AUTHENTICATION_FAILED"):
        franz(mechanism, user, PASSWORDS["bob"]).ask("quotas", any=["user"])
    with pytest.raises(ErrorAnswer, match="RESOURCE_NOT_FOUND"):
        admin.ask("set_password", user=user, mechanism=mechanism)


RULES: list[Rule] = [
    {"resource": "TOPIC", "pattern": "LITERAL", "operation": "WRITE"},
    {"resource": "TOPIC", "pattern": "PREFIXED", "operation": "ALL"},
    {"resource": "GROUP", "pattern": "LITERAL", "operation": "READ", "denies": True},
    {"resource": "TRANSACTIONAL_ID", "pattern": "PREFIXED", "operation": "DESCRIBE"},
    {"resource": "CLUSTER", "pattern": "LITERAL", "operation": "ALTER_CONFIGS", "host": "10.0.0.9"},
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["resource"]))
def test_acls_are_created_described_and_deleted(franz: Dial, rule: Rule) -> None:
    name = "kafka-cluster" if rule["resource"] == "CLUSTER" else unique("franz")
    given = {"principal": f"User:{unique('franz')}", "host": "*", "name": name, "denies": False}
    wanted = {**given, **rule}
    admin = franz()
    admin.ask("add_rule", rule=wanted)
    assert wanted in admin.ask("rules")
    assert admin.ask("remove_rule", rule=wanted) == 1
    assert wanted not in admin.ask("rules")


def test_acl_grants_access_until_deleted(franz: Dial) -> None:
    admin, topic = franz(), unique("franz")
    admin.ask("there_and_back", topic=topic, value="made")
    bob = franz("PLAIN", "bob", PASSWORDS["bob"])
    with pytest.raises(ErrorAnswer, match="TOPIC_AUTHORIZATION_FAILED"):
        bob.ask("there_and_back", topic=topic, value="mine")
    rule = {
        "principal": "User:bob",
        "host": "*",
        "resource": "TOPIC",
        "name": topic,
        "pattern": "LITERAL",
        "operation": "ALL",
        "denies": False,
    }
    admin.ask("add_rule", rule=rule)
    assert bob.ask("there_and_back", topic=topic, value="mine") == "made"
    admin.ask("remove_rule", rule=rule)
    with pytest.raises(ErrorAnswer, match="TOPIC_AUTHORIZATION_FAILED"):
        bob.ask("there_and_back", topic=topic, value="mine")
