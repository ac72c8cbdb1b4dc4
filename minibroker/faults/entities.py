"""Entities of requests and responses: topics, partitions, groups, transactions, resources.

Owns the rules by which fields of any message name entities, and the list of entities that a message
carries. It must never know rules or error codes. Invariant: everything follows from the schemas and
from the names of fields, so an API that is added is covered without a change here. Kafka marks such
fields with ``entityType`` in its message definitions.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from protocol.registry import ApiKey
from protocol.schema import Array, Field, Message, Struct


class EntityKey(enum.Enum):
    """What a field names."""

    TOPIC = "topic"
    TOPIC_ID = "topic_id"
    PARTITION = "partition"
    GROUP = "group"
    MEMBER = "member"
    TRANSACTIONAL_ID = "transactional_id"
    RESOURCE = "resource"
    USER = "user"
    FEATURE = "feature"
    LOG_DIR = "log_dir"
    PRODUCER_ID = "producer_id"
    QUOTA_ENTITY = "quota_entity"
    COORDINATOR_KEY = "coordinator_key"


_KEYS: Final = {
    "topic": EntityKey.TOPIC,
    "topic_name": EntityKey.TOPIC,
    "topic_names": EntityKey.TOPIC,
    "topic_id": EntityKey.TOPIC_ID,
    "partition": EntityKey.PARTITION,
    "partition_index": EntityKey.PARTITION,
    "partition_id": EntityKey.PARTITION,
    "partition_indexes": EntityKey.PARTITION,
    "group_id": EntityKey.GROUP,
    "group_ids": EntityKey.GROUP,
    "groups_names": EntityKey.GROUP,
    "member_id": EntityKey.MEMBER,
    "transactional_id": EntityKey.TRANSACTIONAL_ID,
    "transactional_ids": EntityKey.TRANSACTIONAL_ID,
    "v3_and_below_transactional_id": EntityKey.TRANSACTIONAL_ID,
    "resource_name": EntityKey.RESOURCE,
    "resource_name_filter": EntityKey.RESOURCE,
    "user": EntityKey.USER,
    "feature": EntityKey.FEATURE,
    "log_dir": EntityKey.LOG_DIR,
    "producer_id": EntityKey.PRODUCER_ID,
    "entity": EntityKey.QUOTA_ENTITY,
    "key": EntityKey.COORDINATOR_KEY,
    "coordinator_keys": EntityKey.COORDINATOR_KEY,
}

_PRIMITIVE_ARRAYS: Final = {"partitions": EntityKey.PARTITION, "groups": EntityKey.GROUP}
"""Arrays of numbers or texts whose name is that of an array of structs elsewhere."""

_NO_ENTITIES: Final = frozenset({"entity", "forgotten_topics_data"})
"""Arrays that are a key themselves, or that name what a request is not about."""

_GROUP_COORDINATOR: Final = 0
_TRANSACTION_COORDINATOR: Final = 1

Keys = Mapping[EntityKey, Any]


class Step(NamedTuple):
    """A place in an array of a message."""

    array: str
    position: int


class MessageEntity(NamedTuple):
    """The innermost thing that a message names, with the keys of everything around it."""

    keys: Keys
    path: tuple[Step, ...]
    """Empty for the message itself."""


def key_of(cls: type[Struct], field: Field) -> EntityKey | None:
    """The meaning of a field of a struct; None if it names no entity."""
    name, kind = field.name, field.kind
    if isinstance(kind, Array):
        if isinstance(kind.element, type):
            return EntityKey.QUOTA_ENTITY if name == "entity" else None
        return _PRIMITIVE_ARRAYS.get(name) or _KEYS.get(name)
    if isinstance(kind, type):
        return None
    if name == "name":
        return _named(cls.__name__)
    if name == "index":
        return EntityKey.PARTITION if "Partition" in cls.__name__ else None
    if name == "key" and "Coordinator" not in cls.__name__:
        return None
    return _KEYS.get(name)


def _named(cls: str) -> EntityKey | None:
    """The meaning of the field ``name`` in a class."""
    if "Topic" in cls and "Config" not in cls:
        return EntityKey.TOPIC
    return EntityKey.USER if "Scram" in cls or cls == "UserName" else None


def is_entity_array(field: Field) -> bool:
    """Whether a field is an array of structs that may have keys."""
    return (
        isinstance(field.kind, Array)
        and isinstance(field.kind.element, type)
        and field.name not in _NO_ENTITIES
    )


@cache
def fields_of(cls: type[Struct], version: int) -> tuple[tuple[Field, EntityKey | None], ...]:
    """The fields of a struct in a version, with their meanings."""
    return tuple((item, key_of(cls, item)) for item in cls.__fields__ if item.versions.has(version))


@cache
def keys_below(cls: type[Struct], version: int) -> frozenset[EntityKey]:
    """The keys of a struct and of everything in its arrays."""
    found: set[EntityKey] = set()
    for item, key in fields_of(cls, version):
        if key is not None:
            found.add(key)
        elif is_entity_array(item):
            found |= keys_below(element_of(item), version)
    return frozenset(found)


def element_of(field: Field) -> type[Struct]:
    """The class of an array's elements."""
    assert isinstance(field.kind, Array)
    assert isinstance(field.kind.element, type)
    return field.kind.element


def frozen(value: Any) -> Any:
    """A key's value in a form that compares equal in requests and responses."""
    if isinstance(value, list):
        return tuple(frozen(item) for item in value)
    if isinstance(value, Struct):
        return tuple(frozen(getattr(value, item.name)) for item in value.__fields__)
    return value


def entities(message: Struct, version: int, api_key: int | None = None) -> list[MessageEntity]:
    """The innermost entities that a message names, or the message itself if there are none."""
    found = list(_walk(message, version, {}, ()))
    if api_key == ApiKey.FIND_COORDINATOR:
        return [MessageEntity(_coordinated(message, entity.keys), entity.path) for entity in found]
    return found


def _walk(
    struct: Struct, version: int, around: Keys, path: tuple[Step, ...]
) -> Iterator[MessageEntity]:
    cls = type(struct)
    keys = dict(around)
    lists: list[tuple[Field, EntityKey | None]] = []
    for item, key in fields_of(cls, version):
        is_array = isinstance(item.kind, Array)
        if key is None and is_entity_array(item):
            lists.append((item, None))
        elif key is not None and is_array and key is not EntityKey.QUOTA_ENTITY:
            lists.append((item, key))
        elif key is not None and key not in keys:
            keys[key] = frozen(getattr(struct, item.name))
    is_innermost = True
    for item, key in lists:
        if key is None and not keys_below(element_of(item), version) - keys.keys():
            continue  # They name only what the struct itself names.
        for index, element in enumerate(getattr(struct, item.name) or ()):
            is_innermost = False
            at = (*path, Step(item.name, index))
            if key is None:
                yield from _walk(element, version, keys, at)
            else:
                yield MessageEntity({**keys, key: element}, at)
    if is_innermost:
        yield MessageEntity(keys, path)


def _coordinated(request: Struct, keys: Keys) -> Keys:
    """The keys of a coordinator request, whose key type says what its key names."""
    kinds = {
        _GROUP_COORDINATOR: EntityKey.GROUP,
        _TRANSACTION_COORDINATOR: EntityKey.TRANSACTIONAL_ID,
    }
    kind = kinds.get(getattr(request, "key_type", -1))
    if kind is None or EntityKey.COORDINATOR_KEY not in keys:
        return keys
    return {**keys, kind: keys[EntityKey.COORDINATOR_KEY]}


def selectable(
    cls: type[Message], api_key: int, versions: Iterable[int] | None = None
) -> frozenset[EntityKey]:
    """The keys that requests of a class can have in these versions, by default in any."""
    found: frozenset[EntityKey] = frozenset()
    declared = cls.__versions__
    for version in range(declared.low, declared.high + 1) if versions is None else versions:
        found |= keys_below(cls, version)
    if api_key == ApiKey.FIND_COORDINATOR:
        found |= {EntityKey.GROUP, EntityKey.TRANSACTIONAL_ID}
    if EntityKey.TOPIC_ID in found:
        found |= {EntityKey.TOPIC}
    return found
