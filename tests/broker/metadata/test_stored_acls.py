"""Access rules in the store: Kafka's paths and words, in both directions."""

from __future__ import annotations

import json

import pytest

from minibroker.broker.metadata.acls import (
    ACL_PATHS,
    acl_path,
    acl_steps,
    decode_acl_change,
    decode_acls,
    encode_acl_change,
    encode_acls,
    load_all_acls,
)
from minibroker.broker.metadata.image import AclsChanged
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
