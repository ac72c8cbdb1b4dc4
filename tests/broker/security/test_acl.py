"""The decision: denial before permission, patterns, hosts, and what implies what."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.security.acl import (
    CLUSTER_OPERATIONS,
    DESCRIBERS_MAX,
    GROUP_OPERATIONS,
    IMPLIES,
    TOPIC_OPERATIONS,
    AclRule,
    Acls,
    Authorizer,
    Operation,
    Pattern,
    PatternType,
    Permission,
    Resource,
)
from minibroker.broker.security.principal import Principal

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.0.0.1"
PREFIXED = PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY
READ, WRITE, DESCRIBE, ALL = (
    Operation.READ,
    Operation.WRITE,
    Operation.DESCRIBE,
    Operation.ALL,
)


def rule(
    operation: Operation = READ,
    permission: Permission = ALLOW,
    principal: str = "User:alice",
    host: str = "*",
) -> AclRule:
    return AclRule(principal, host, operation, permission)


def topics(**rules: tuple[AclRule, ...]) -> Acls:
    """Rules by topic; a trailing underscore makes a prefix, ``any`` is the wildcard."""
    return {
        Pattern(Resource.TOPIC, "*" if name == "any" else name.rstrip("_"), kind): found
        for name, found in rules.items()
        for kind in [PREFIXED if name.endswith("_") else PatternType.LITERAL]
    }


def may(
    acls: Acls,
    operation: Operation = READ,
    name: str = "cats",
    *,
    who: Principal = ALICE,
    host: str = HOST,
    allow_if_none: bool = False,
) -> bool:
    authorizer = Authorizer(acls, [Principal("User", "root")], allow_if_none=allow_if_none)
    return authorizer.allows(who, host, operation, Resource.TOPIC, name)


def test_access_without_matching_acl_is_denied() -> None:
    assert not may({})
    assert may({}, allow_if_none=True)
    assert may({}, who=Principal("User", "root"))
    assert not may(topics(dogs=(rule(),)))
    assert not may(topics(cats=(rule(principal="User:bob"),)), allow_if_none=True)


@pytest.mark.parametrize("name", ["cats", "ca_", "cats_", "any"])
@pytest.mark.parametrize("principal", ["User:alice", "User:*"])
@pytest.mark.parametrize("host", [HOST, "*"])
def test_patterns_principals_and_hosts(name: str, principal: str, host: str) -> None:
    acls = topics(**{name: (rule(principal=principal, host=host),)})
    assert may(acls)
    assert may(acls, host="10.0.0.2") is (host == "*")
    assert may(acls, who=BOB) is (principal == "User:*")
    assert may(acls, name="c") is (name == "any")
    assert may(acls, who=Principal("Group", "alice")) is (principal == "User:*")


def test_user_wildcard_matches_any_principal_type() -> None:
    group = Principal("Group", "cats")
    everybody, nobody = (rule(principal="User:*"),), (rule(permission=DENY, principal="User:*"),)
    assert may(topics(cats=everybody), who=group)
    assert not may(topics(ca_=(rule(principal="Group:cats"),), cats=nobody), who=group)
    assert not may(topics(cats=(rule(principal="Group:*"),)), who=group)


@pytest.mark.parametrize("host", ["2001:db8::7", "2001:db8:0:0:0:0:0:7", "*"])
def test_ipv6_address_in_java_form_is_accepted(host: str) -> None:
    acls = topics(cats=(rule(host=host),))
    assert may(acls, host="2001:db8::7")
    assert may(acls, host="2001:db8::8") is (host == "*")


@pytest.mark.parametrize(("deny", "allow"), list(itertools.permutations(["cats", "ca_", "any"], 2)))
def test_denial_wins_in_any_order(deny: str, allow: str) -> None:
    assert not may(topics(**{deny: (rule(permission=DENY),), allow: (rule(),)}))
    assert may(topics(**{deny: (rule(permission=DENY, principal="User:bob"),), allow: (rule(),)}))


def test_allowed_operation_implies_describe_but_denial_does_not() -> None:
    for wanted, implying in IMPLIES.items():
        for operation in Operation:
            acls = topics(cats=(rule(operation),))
            assert may(acls, wanted) is (operation in implying or operation is ALL)
    both = (rule(READ, DENY), rule(WRITE))
    assert may(topics(cats=both), DESCRIBE)
    assert not may(topics(cats=(rule(ALL, DENY), rule(ALL))), DESCRIBE)
    assert not may(topics(cats=(rule(DESCRIBE),)), READ)


def any_topic(acls: Acls, operation: Operation = WRITE, allow_if_none: bool = False) -> bool:
    authorizer = Authorizer(acls, [], allow_if_none=allow_if_none)
    return authorizer.allows_any(ALICE, HOST, operation, Resource.TOPIC)


def test_whether_there_could_be_any_resource() -> None:
    write, never = (rule(WRITE),), (rule(WRITE, DENY),)
    assert not any_topic({})
    assert any_topic({}, allow_if_none=True)
    assert any_topic(topics(cats=write))
    assert any_topic(topics(ca_=write))
    assert not any_topic(topics(cats=write, any=never))
    assert not any_topic(topics(any=never), allow_if_none=True)
    assert not any_topic(topics(cats=write, ca_=never))
    assert not any_topic(topics(cats=(*write, *never)))
    assert any_topic(topics(ca_=write, cats_=never))
    assert any_topic(topics(any=write, ca_=never))
    assert not any_topic(topics(cats=(rule(READ),)))


NAMES = st.text("ab", min_size=1, max_size=3)
PATTERNS = st.builds(
    Pattern,
    st.just(Resource.TOPIC),
    NAMES | st.just("*"),
    st.sampled_from([PatternType.LITERAL, PREFIXED]),
)
RULES = st.builds(
    AclRule,
    st.sampled_from(["User:alice", "User:bob", "User:*"]),
    st.sampled_from([HOST, "*", "10.9.9.9"]),
    st.sampled_from([READ, WRITE, DESCRIBE, ALL]),
    st.sampled_from([ALLOW, DENY]),
)


@given(st.dictionaries(PATTERNS, st.lists(RULES, max_size=3).map(tuple), max_size=5), NAMES)
def test_authorization_equals_scan_of_all_acls(acls: Acls, name: str) -> None:
    for operation in (READ, WRITE, DESCRIBE):
        mine = [
            one
            for pattern, rules in acls.items()
            if pattern.matches(name)
            for one in rules
            if one.principal in ("User:alice", "User:*") and one.host in (HOST, "*")
        ]
        denied = any(r.permission is DENY and r.operation in (operation, ALL) for r in mine)
        implying = {*IMPLIES.get(operation, ()), operation, ALL}
        allowed = any(r.permission is ALLOW and r.operation in implying for r in mine)
        assert may(acls, operation, name) is (allowed and not denied)


def test_operation_bits_match_kafka_operation_codes() -> None:
    def bits(field: int) -> list[int]:
        return [number for number in range(32) if field >> number & 1]

    assert bits(TOPIC_OPERATIONS) == [3, 4, 5, 6, 7, 8, 10, 11]
    assert bits(GROUP_OPERATIONS) == [3, 6, 8, 10, 11]
    assert bits(CLUSTER_OPERATIONS) == [5, 7, 8, 9, 10, 11, 12]


def test_topics_that_may_be_described_are_found_once_for_the_same_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    authorizer = Authorizer(topics(cats_=(rule(DESCRIBE),), dogs=(rule(DESCRIBE),)))
    existing = {"cats": 1, "cats2": 2, "dogs": 3, "mice": 4}
    found = authorizer.described_topics(ALICE, HOST, existing)
    assert found == {"cats", "cats2", "dogs"}
    assert authorizer.described_topics(BOB, HOST, existing) == set()
    monkeypatch.setattr(authorizer, "allows", None)
    assert authorizer.described_topics(ALICE, HOST, existing) is found
    monkeypatch.undo()
    assert authorizer.described_topics(ALICE, HOST, {"dogs": 3, "mice": 4}) == {"dogs"}


def test_described_topics_of_many_callers_are_forgotten() -> None:
    authorizer = Authorizer({}, allow_if_none=True)
    existing = {"t": 1}
    first = authorizer.described_topics(ALICE, "0", existing)
    for host in range(DESCRIBERS_MAX):
        assert authorizer.described_topics(ALICE, str(host), existing) == {"t"}
    authorizer.described_topics(ALICE, "another", existing)
    assert authorizer.described_topics(ALICE, "0", existing) is not first
