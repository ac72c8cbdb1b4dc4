"""Requested ACLs: invalid ones, matches of filters, and what remains."""

from __future__ import annotations

import json
from typing import Any

import pytest

from minibroker.broker.metadata.acls import (
    ACL_PATHS,
    Binding,
    Filter,
    acl_path,
    acl_steps,
    check_binding,
    check_filter,
    decode_acl_change,
    decode_acls,
    encode_acl_change,
    encode_acls,
    find,
    load_all_acls,
    plan_acl_creation,
    plan_acl_deletion,
)
from minibroker.broker.metadata.image import AclsChanged, ChangeRejected, Image, apply
from minibroker.broker.metadata.layout import LayoutError
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.security.acl import (
    AclRule,
    Operation,
    Pattern,
    PatternType,
    Permission,
    Resource,
)

GOOD = Binding(2, "cats", 3, "User:alice", "*", 3, 3)
ANY = Filter(1, None, 1, None, None, 1, 1)


def made(*bindings: Binding) -> Image:
    image = Image()
    for plan in plan_acl_creation(image, bindings).changes:
        assert isinstance(plan, AclsChanged)
        image = apply(image, plan)
    return image


def test_rule_is_kept_once() -> None:
    image = made(GOOD, GOOD, GOOD._replace(operation=4))
    rules = (
        AclRule("User:alice", "*", Operation.READ, Permission.ALLOW),
        AclRule("User:alice", "*", Operation.WRITE, Permission.ALLOW),
    )
    assert image.acls == {Pattern(Resource.TOPIC, "cats"): rules}


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource": 1},
        {"resource": 0},
        {"resource": 9},
        {"pattern_type": 1},
        {"pattern_type": 2},
        {"operation": 1},
        {"operation": 99},
        {"permission": 1},
        {"name": ""},
        {"host": ""},
        {"principal": "alice"},
        {"resource": 4, "name": "another-cluster"},
        {"resource": 4, "name": "*"},
    ],
)
def test_invalid_acl_is_rejected_and_valid_one_created(wrong: dict[str, Any]) -> None:
    rejections, changes = plan_acl_creation(Image(), [GOOD._replace(**wrong), GOOD])
    assert isinstance(rejections[0], ChangeRejected)
    assert rejections[1] is None
    assert [type(change) for change in changes] == [AclsChanged]
    assert isinstance(check_binding(GOOD._replace(**wrong)), ChangeRejected)


IMAGE = made(
    GOOD,
    GOOD._replace(name="ca", pattern_type=4),
    GOOD._replace(name="*", principal="User:bob", permission=2),
    GOOD._replace(resource=3, host="10.0.0.1", operation=8),
)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (ANY, {"cats", "ca", "*", "cats group"}),
        (ANY._replace(resource=2), {"cats", "ca", "*"}),
        (ANY._replace(resource=3), {"cats group"}),
        (ANY._replace(name="cats"), {"cats", "cats group"}),
        (ANY._replace(name="cats", pattern_type=2, resource=2), {"cats", "ca", "*"}),
        (ANY._replace(name="dogs", pattern_type=PatternType.MATCH), {"*"}),
        (ANY._replace(name="*", pattern_type=PatternType.MATCH), {"*"}),
        (ANY._replace(pattern_type=PatternType.PREFIXED), {"ca"}),
        (ANY._replace(name="ca", pattern_type=PatternType.LITERAL), set()),
        (ANY._replace(principal="User:bob"), {"*"}),
        (ANY._replace(host="10.0.0.1"), {"cats group"}),
        (ANY._replace(operation=8), {"cats group"}),
        (ANY._replace(permission=2), {"*"}),
    ],
)
def test_acl_filter_matches_expected_patterns(wanted: Filter, names: set[str]) -> None:
    found = {
        f"{pattern.name} group" if pattern.resource is Resource.GROUP else pattern.name
        for pattern, _ in find(IMAGE.acls, wanted)
    }
    assert found == names
    assert check_filter(wanted) is None


def test_matching_acls_are_deleted_and_invalid_filter_rejected() -> None:
    answers, changes = plan_acl_deletion(
        IMAGE, [ANY._replace(resource=2), ANY._replace(operation=99)]
    )
    assert isinstance(answers[0], list)
    assert len(answers[0]) == 3
    assert isinstance(answers[1], ChangeRejected)
    image = IMAGE
    for change in changes:
        image = apply(image, change)
    assert [pattern.resource for pattern in image.acls] == [Resource.GROUP]


RULE = AclRule("User:alice", "host1", Operation.IDEMPOTENT_WRITE, Permission.ALLOW)
LITERAL = Pattern(Resource.TRANSACTIONAL_ID, "tx")
PREFIXED = Pattern(Resource.TOPIC, "a:b", PatternType.PREFIXED)


def test_nodes_are_kafkas() -> None:
    assert acl_path(LITERAL) == "/kafka-acl/TransactionalId/tx"
    assert acl_path(PREFIXED) == "/kafka-acl-extended/prefixed/Topic/a:b"
    assert acl_path(Pattern(Resource.GROUP, "a/b%")) == "/kafka-acl/Group/a%2Fb%25"
    assert json.loads(encode_acls([RULE])) == {
        "version": 1,
        "acls": [
            {
                "principal": "User:alice",
                "permissionType": "Allow",
                "operation": "IdempotentWrite",
                "host": "host1",
            }
        ],
    }
    assert decode_acls("/p", encode_acls([RULE])) == (RULE,)
    assert decode_acls("/p", b"") == ()


def test_notices_are_kafkas() -> None:
    assert encode_acl_change(LITERAL) == b"TRANSACTIONAL_ID:tx"
    assert json.loads(encode_acl_change(PREFIXED)) == {
        "version": 1,
        "resourceType": "TOPIC",
        "name": "a:b",
        "patternType": "PREFIXED",
    }
    for pattern in (LITERAL, PREFIXED, Pattern(Resource.TOPIC, "a:b")):
        assert decode_acl_change("/p", encode_acl_change(pattern)) == pattern
    assert decode_acl_change("/p", b"Topic:x") == Pattern(Resource.TOPIC, "x")


@pytest.mark.parametrize("data", [b"x", b"{}", b"[]", b"null", b'{"acls":[{}]}', b"Thing:x"])
def test_invalid_acl_nodes_are_rejected_with_their_path(data: bytes) -> None:
    for read in (decode_acls, decode_acl_change):
        with pytest.raises(LayoutError, match="/p"):
            read("/p", data)


async def test_acl_changes_are_stored_and_notified() -> None:
    store = SqliteStore(MEMORY)
    for path in ACL_PATHS:
        await store.ensure(path)
    slashed = Pattern(Resource.GROUP, "a/b%2F")
    changes = [AclsChanged(pattern, (RULE,)) for pattern in (LITERAL, PREFIXED, slashed)]
    await store.multi(await acl_steps(store, changes))
    assert [change async for change in load_all_acls(store)] == [changes[2], changes[0], changes[1]]
    assert len(await store.children("/kafka-acl-changes")) == 2
    assert len(await store.children("/kafka-acl-extended-changes")) == 1
    twice = [AclsChanged(LITERAL, (RULE, RULE)), AclsChanged(LITERAL, ())]
    await store.multi(await acl_steps(store, [*twice, AclsChanged(slashed, ())]))
    assert [change async for change in load_all_acls(store)] == [changes[1]]
    await store.close()


@pytest.mark.parametrize("name", [".", "..", "...", "a\0b", "\x7fü\ufffd", "50%41"])
async def test_acl_of_a_name_that_is_no_part_of_a_path_is_stored(name: str) -> None:
    store = SqliteStore(MEMORY)
    for path in ACL_PATHS:
        await store.ensure(path)
    change = AclsChanged(Pattern(Resource.GROUP, name), (RULE,))
    await store.multi(await acl_steps(store, [change]))
    assert [found async for found in load_all_acls(store)] == [change]
    await store.close()
