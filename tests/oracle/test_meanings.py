"""What fields mean, compared with the entity types in Kafka's message definitions.

kio's classes have a type of its own for each of Kafka's entity types, and kafka-python's schema
files and those of this folder have ``entityType`` itself.
"""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Iterator
from typing import Any, Final

import pytest
from kio.schema.index import api_key_map, schema_name_map

from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Message, Struct
from tests.oracle.test_schemas import (
    KIO_KEYS,
    kio_class,
    load_json,
    messages_of,
    snake,
    without_units,
)

KIO_ENTITIES: Final = {
    "TopicName": Meaning.TOPIC,
    "GroupId": Meaning.GROUP,
    "BrokerId": Meaning.BROKER,
    "ProducerId": Meaning.PRODUCER_ID,
    "TransactionalId": Meaning.TRANSACTIONAL_ID,
}
ENTITY_TYPES: Final = {
    "topicName": Meaning.TOPIC,
    "groupId": Meaning.GROUP,
    "brokerId": Meaning.BROKER,
    "producerId": Meaning.PRODUCER_ID,
    "transactionalId": Meaning.TRANSACTIONAL_ID,
}
OURS_ONLY: Final = {
    "ApiVersionsRequest.node_id",
    "controller_id",
    "current_leader.leader_id",
    "group_id",
    "preferred_successors",
    "voter_id",
}
"""Ends of the paths of fields that Kafka's definitions do not mark although they are such ids."""

Entities = Iterator[tuple[str, Meaning | None, Meaning | None]]


def struct_of(kind: Any) -> type[Struct]:
    found = kind.element if isinstance(kind, Array) else kind
    assert isinstance(found, type)
    return found


def entity_of(means: Any) -> Meaning | None:
    return means if means in ENTITY_TYPES.values() else None


def kio_entities(cls: type[Struct], theirs: Any, path: str = "") -> Entities:
    hints = typing.get_type_hints(theirs, vars(sys.modules[theirs.__module__]))
    ours = {without_units(item.name): item for item in cls.__fields__}
    for item in dataclasses.fields(theirs):
        hint = hints[item.name]
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
        if typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]
        name = item.name.rstrip("_").replace("k_raft", "kraft")
        if name not in ours:
            continue  # a name that Kafka has changed since; test_schemas has the list
        if item.metadata.get("kafka_type"):
            yield (
                f"{path}{name}",
                entity_of(ours[name].means),
                KIO_ENTITIES.get(getattr(hint, "__name__", "")),
            )
        else:
            yield from kio_entities(struct_of(ours[name].kind), hint, f"{path}{name}.")


def json_entities(
    cls: type[Struct], fields: list[dict[str, Any]], commons: dict[str, Any], path: str = ""
) -> Entities:
    ours = {item.name: item for item in cls.__fields__}
    for item in fields:
        name = snake(item["name"])
        if name not in ours:
            continue  # only versions that no broker serves have it
        if item["type"].removeprefix("[]")[0].isupper():
            inner = item.get("fields") or commons[item["type"].removeprefix("[]")]["fields"]
            yield from json_entities(struct_of(ours[name].kind), inner, commons, f"{path}{name}.")
        else:
            theirs = ENTITY_TYPES.get(item.get("entityType", ""))
            yield f"{path}{name}", entity_of(ours[name].means), theirs


def check(message: str, found: Entities) -> int:
    """Number of fields that the oracle marks; all of them must be marked alike here."""
    count = 0
    for path, ours, theirs in found:
        if theirs is None and f"{message}.{path}".endswith(tuple(OURS_ONLY)):
            continue
        assert ours == theirs, f"{message}.{path} means {ours}, in Kafka {theirs}"
        count += theirs is not None
    return count


def check_json(cls: type[Message]) -> int:
    loaded = load_json(cls.__name__)
    if loaded is None:
        return 0
    commons = {item["name"]: item for item in loaded.get("commonStructs", [])}
    return check(cls.__name__, json_entities(cls, loaded["fields"], commons))


def check_kio(key: ApiKey) -> int:
    return sum(
        check(cls.__name__, kio_entities(cls, kio_class(key, version, entity)))
        for cls, entity in messages_of(key)
        for version in sorted(schema_name_map[api_key_map[key]])
    )


@pytest.mark.parametrize("key", KIO_KEYS, ids=lambda key: key.name)
def test_entities_equal_kios(key: ApiKey) -> None:
    check_kio(key)


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_entities_equal_entity_types(key: ApiKey) -> None:
    for cls, _ in messages_of(key):
        check_json(cls)


def test_oracles_mark_hundreds_of_fields() -> None:
    assert sum(map(check_kio, KIO_KEYS)) > 700
    assert sum(check_json(cls) for key in ApiKey for cls, _ in messages_of(key)) > 50
