"""Access rules in the store: Kafka's paths and words, in both directions."""

from __future__ import annotations

import json

import pytest

from minibroker.broker.metadata.image import AclsChanged
from minibroker.broker.metadata.layout import LayoutError
from minibroker.broker.metadata.store.sqlite import MEMORY, SqliteStore
from minibroker.broker.metadata.stored_acls import (
    PERSISTENT_PATHS,
    decode,
    decode_change,
    encode,
    encode_change,
    load_all,
    path_of,
    steps_with_notifications,
)
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
    assert path_of(LITERAL) == "/kafka-acl/TransactionalId/tx"
    assert path_of(PREFIXED) == "/kafka-acl-extended/prefixed/Topic/a:b"
    assert path_of(Pattern(Resource.GROUP, "a/b%")) == "/kafka-acl/Group/a%2Fb%25"
    assert json.loads(encode([RULE])) == {
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
    assert decode("/p", encode([RULE])) == (RULE,)
    assert decode("/p", b"") == ()


def test_notices_are_kafkas() -> None:
    assert encode_change(LITERAL) == b"TRANSACTIONAL_ID:tx"
    assert json.loads(encode_change(PREFIXED)) == {
        "version": 1,
        "resourceType": "TOPIC",
        "name": "a:b",
        "patternType": "PREFIXED",
    }
    for pattern in (LITERAL, PREFIXED, Pattern(Resource.TOPIC, "a:b")):
        assert decode_change("/p", encode_change(pattern)) == pattern
    assert decode_change("/p", b"Topic:x") == Pattern(Resource.TOPIC, "x")


@pytest.mark.parametrize("data", [b"x", b"{}", b"[]", b"null", b'{"acls":[{}]}', b"Thing:x"])
def test_invalid_acl_nodes_are_rejected_with_their_path(data: bytes) -> None:
    for read in (decode, decode_change):
        with pytest.raises(LayoutError, match="/p"):
            read("/p", data)


async def test_acl_changes_are_stored_and_notified() -> None:
    store = SqliteStore(MEMORY)
    for path in PERSISTENT_PATHS:
        await store.ensure(path)
    slashed = Pattern(Resource.GROUP, "a/b%2F")
    changes = [AclsChanged(pattern, (RULE,)) for pattern in (LITERAL, PREFIXED, slashed)]
    await store.multi(await steps_with_notifications(store, changes))
    assert [change async for change in load_all(store)] == [changes[2], changes[0], changes[1]]
    assert len(await store.children("/kafka-acl-changes")) == 2
    assert len(await store.children("/kafka-acl-extended-changes")) == 1
    twice = [AclsChanged(LITERAL, (RULE, RULE)), AclsChanged(LITERAL, ())]
    await store.multi(await steps_with_notifications(store, [*twice, AclsChanged(slashed, ())]))
    assert [change async for change in load_all(store)] == [changes[1]]
    await store.close()


@pytest.mark.parametrize("name", [".", "..", "...", "a\0b", "\x7fü\ufffd", "50%41"])
async def test_acl_of_a_name_that_is_no_part_of_a_path_is_stored(name: str) -> None:
    store = SqliteStore(MEMORY)
    for path in PERSISTENT_PATHS:
        await store.ensure(path)
    change = AclsChanged(Pattern(Resource.GROUP, name), (RULE,))
    await store.multi(await steps_with_notifications(store, [change]))
    assert [found async for found in load_all(store)] == [change]
    await store.close()
