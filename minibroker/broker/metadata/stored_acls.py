"""ACLs in the store: their nodes, their JSON, and notifications of their changes.

Owns which nodes a pattern's ACLs use, in Kafka's two trees; their meaning is in ``security.acl``.
Invariant: it reads what Kafka's tools of ZooKeeper mode write and they read what it writes, except
that characters and names that cannot be part of a path are percent-encoded, where Kafka loses or
rejects them. Kafka's ``ZkAclStore`` and ``AclEntry``.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import IntEnum
from typing import Final, TypeVar
from urllib.parse import quote, unquote

from minibroker.broker.metadata.image import AclsChanged
from minibroker.broker.metadata.layout import LayoutError
from minibroker.broker.metadata.store.tree import Create, Delete, NoNodeError, Set, Store
from minibroker.broker.metadata.store.tree import Operation as Step
from minibroker.broker.security.acl import (
    AclRule,
    Operation,
    Pattern,
    PatternType,
    Permission,
    Resource,
)

E = TypeVar("E", bound=IntEnum)

_NO_PATH_CHARACTER: Final = re.compile("[%/\x00-\x1f\x7f-\x9f\ue000-\uf8ff\ufff0-\uffff]")
"""Characters that ZooKeeper does not allow in a path, and those of the encoding itself."""

RESOURCES: Final = tuple(Resource)[2:]
ROOTS: Final[Mapping[PatternType, str]] = {
    PatternType.LITERAL: "/kafka-acl",
    PatternType.PREFIXED: "/kafka-acl-extended/prefixed",
}
CHANGES: Final[Mapping[PatternType, str]] = {
    PatternType.LITERAL: "/kafka-acl-changes",
    PatternType.PREFIXED: "/kafka-acl-extended-changes",
}
PERSISTENT_PATHS: Final = (*ROOTS.values(), *CHANGES.values())
"""Nodes that exist once there are rules to keep."""


def _word(value: IntEnum) -> str:
    """``TransactionalId`` for TRANSACTIONAL_ID."""
    return value.name.title().replace("_", "")


def _from_word(kind: type[E], word: str) -> E:
    for value in kind:
        if word.upper() in (_word(value).upper(), value.name):
            return value
    raise ValueError(f"{word} is not a {kind.__name__}")


def path_of(pattern: Pattern) -> str:
    """The node that holds a pattern's rules."""
    name = _NO_PATH_CHARACTER.sub(lambda found: quote(found[0], safe=""), pattern.name)
    if name in (".", ".."):
        name = "%2E" * len(name)
    return f"{ROOTS[pattern.type]}/{_word(pattern.resource)}/{name}"


def encode(rules: Sequence[AclRule]) -> bytes:
    """Encode the data of such a node."""
    acls = [
        {
            "principal": rule.principal,
            "permissionType": _word(rule.permission),
            "operation": _word(rule.operation),
            "host": rule.host,
        }
        for rule in rules
    ]
    return json.dumps({"version": 1, "acls": acls}, separators=(",", ":")).encode()


def decode(path: str, data: bytes) -> tuple[AclRule, ...]:
    """Decode the rules in such data. Raises `LayoutError`."""
    try:
        return tuple(
            AclRule(
                str(found["principal"]),
                str(found["host"]),
                _from_word(Operation, found["operation"]),
                _from_word(Permission, found["permissionType"]),
            )
            for found in (json.loads(data)["acls"] if data else ())
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LayoutError(f"{path}: cannot be read as access rules: {error!r}") from None


def encode_change(pattern: Pattern) -> bytes:
    """Encode the notification that a pattern's rules were written."""
    if pattern.type is PatternType.LITERAL:
        return f"{pattern.resource.name}:{pattern.name}".encode()
    fields = {
        "version": 1,
        "resourceType": pattern.resource.name,
        "name": pattern.name,
        "patternType": pattern.type.name,
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_change(path: str, data: bytes) -> Pattern:
    """Decode the pattern in such a notification. Raises `LayoutError`."""
    try:
        if data.startswith(b"{"):
            fields = json.loads(data)
            resource, name = fields["resourceType"], fields["name"]
            pattern_type = _from_word(PatternType, fields["patternType"])
        else:
            resource, name = data.decode().split(":", 1)
            pattern_type = PatternType.LITERAL
        return Pattern(_from_word(Resource, resource), str(name), pattern_type)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LayoutError(f"{path}: does not name a pattern: {error!r}") from None


async def load(store: Store, pattern: Pattern) -> tuple[AclRule, ...]:
    """Read the rules of a pattern, which may be empty. Raises `LayoutError`."""
    path = path_of(pattern)
    try:
        return decode(path, (await store.get(path)).data)
    except NoNodeError:
        return ()


async def load_all(store: Store) -> AsyncIterator[AclsChanged]:
    """Read all rules. Raises `LayoutError`."""
    for pattern_type, root in ROOTS.items():
        for resource in RESOURCES:
            try:
                names = await store.children(f"{root}/{_word(resource)}")
            except NoNodeError:
                continue
            for found in names:
                name = unquote(found)
                pattern = Pattern(resource, name, pattern_type)
                yield AclsChanged(pattern, await load(store, pattern))


async def steps_with_notifications(store: Store, changes: Sequence[AclsChanged]) -> list[Step]:
    """Return the operations that store the last of several changes of each pattern, and notify
    of it.
    """
    for path in PERSISTENT_PATHS if changes else ():
        await store.ensure(path)
    steps: list[Step] = []
    for pattern, rules in dict(changes).items():
        path = path_of(pattern)
        is_there = await store.exists(path)
        if rules:
            await store.ensure(path.rpartition("/")[0])
            steps.append(Set(path, encode(rules)) if is_there else Create(path, encode(rules)))
        elif is_there:
            steps.append(Delete(path))
        path = f"{CHANGES[pattern.type]}/acl_changes_"
        steps.append(Create(path, encode_change(pattern), sequential=True))
    return steps
