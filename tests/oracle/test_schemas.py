"""Every field of every version of every API, compared with other descriptions of the protocol.

kafka-python contains Kafka's schema files of APIs for clients; kio contains classes generated from
Kafka's files for all APIs of Kafka 4. The schema files of Kafka's ZooKeeper mode, of Kafka 3.8 and
3.9, and those of Kafka 4.4 that are newer than both are in this folder. All are converted by
program to the same table of facts as the declarations, and the tables must be equal. `DIFFERENCES`
gives known differences of the oracles with their reasons, and fails as soon as one no longer
exists.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import importlib
import json
import re
import sys
import types
import typing
import uuid
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from minibroker_protocol.messages import consumer_protocol
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Array, Message, Struct, Versions
from minibroker_protocol.types import Type

# (oracle, message, path of the field) -> why it differs. No more than these may differ.
NULL_BY_DEFAULT = "null in Kafka's own schema file; kio gives arrays of structs no default"
DIFFERENCES: dict[tuple[str, str, str], str] = {
    ("kio", "ProduceResponse", "responses.partition_responses.log_append_time"): (
        "-1 says that there is no time, which kio's times say by being None"
    ),
    **{
        ("kio", "TxnOffsetCommitRequest", path): "renamed in Kafka 4.4; its own file says so"
        for path in ("generation_id", "generation_id_or_member_epoch")
    },
    **{
        ("kio", "StreamsGroupHeartbeatResponse", path): "renamed in Kafka 4.4; its own file says so"
        for path in ("acceptable_recovery_lag", "acceptable_recovery_lag_legacy")
    },
    **{
        ("kio", message, path): NULL_BY_DEFAULT
        for message, path in (
            ("ConsumerGroupHeartbeatRequest", "topic_partitions"),
            ("ListPartitionReassignmentsRequest", "topics"),
            ("StreamsGroupDescribeResponse", "groups.topology.subtopologies"),
            ("StreamsGroupHeartbeatRequest", "active_tasks"),
            ("StreamsGroupHeartbeatRequest", "client_tags"),
            ("StreamsGroupHeartbeatRequest", "standby_tasks"),
            ("StreamsGroupHeartbeatRequest", "task_end_offsets"),
            ("StreamsGroupHeartbeatRequest", "task_offsets"),
            ("StreamsGroupHeartbeatRequest", "warmup_tasks"),
            ("StreamsGroupHeartbeatResponse", "active_tasks"),
            ("StreamsGroupHeartbeatResponse", "partitions_by_user_endpoint"),
            ("StreamsGroupHeartbeatResponse", "standby_tasks"),
            ("StreamsGroupHeartbeatResponse", "warmup_tasks"),
        )
    },
}


class Fact(NamedTuple):
    """A fact about one field in a version of a schema."""

    type: str
    is_array: bool
    nullable: bool
    tag: int | None
    default: Any


Facts = dict[str, Fact]


def snake(name: str) -> str:
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return parted.lower().replace("k_raft", "kraft")


# ------------------------------------------------------------------------------------- ours


def our_facts(cls: type[Struct], version: int, path: str = "") -> Iterator[tuple[str, Fact]]:
    for item in cls.__fields__:
        if not item.versions.has(version):
            continue
        kind = item.kind.element if isinstance(item.kind, Array) else item.kind
        is_array = isinstance(item.kind, Array)
        assert isinstance(kind, (Type, type))
        nullable = item.nullable.has(version) or (isinstance(kind, Type) and kind.nullable)
        tag = item.tag if item.tagged.has(version) else None
        default: Any = item.make_default()
        if isinstance(kind, type):
            name = "struct"
            if not is_array and not nullable:
                default = "struct"  # absent is None for us, a struct of defaults for Kafka
        else:
            name = kind.name.replace("nullable ", "").replace("plain ", "")
        yield f"{path}{item.name}", fact(name, is_array, nullable, tag, default)
        if isinstance(kind, type):
            yield from our_facts(kind, version, f"{path}{item.name}.")


def fact(name: str, is_array: bool, nullable: bool, tag: int | None, default: Any) -> Fact:
    if name == "uuid" and not is_array:
        nullable = False  # kio reads the zero UUID as None, so its nullability means nothing
    if name == "records":
        default = None
    return Fact(name, is_array, nullable, tag, default)


# ----------------------------------------------------------------------- kafka-python's JSON


def load_schemas(name: str) -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name(name).read_text())
    return loaded


ZOOKEEPER_MODE = load_schemas("zookeeper_mode.json")
KAFKA_4_4 = load_schemas("kafka_4_4.json")
"""Messages with versions that the other oracles do not have."""
ZOOKEEPER_KEYS = (
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
)
ENDS = ("Request", "Response")
NEWER_KEYS = (ApiKey.STREAMS_GROUP_TOPOLOGY_DESCRIPTION_UPDATE,)
"""APIs that kio does not have; their messages are in `KAFKA_4_4`."""
KIO_KEYS = [key for key in ApiKey if key not in ZOOKEEPER_KEYS + NEWER_KEYS]


def load_json(name: str) -> dict[str, Any] | None:
    if name in ZOOKEEPER_MODE or name in KAFKA_4_4:
        return {**ZOOKEEPER_MODE, **KAFKA_4_4}[name]
    found = resources.files("kafka.protocol.schemas.resources") / f"{name}.json"
    if not found.is_file():
        return None
    text = re.sub(r"^\s*//.*$", "", found.read_text(), flags=re.MULTILINE)
    loaded: dict[str, Any] = json.loads(text)
    return loaded


_IMPLICIT = {"string": "", "bytes": b"", "bool": False, "float64": 0.0, "uuid": bytes(16)}


def json_facts(
    fields: list[dict[str, Any]], commons: dict[str, Any], version: int, path: str = ""
) -> Iterator[tuple[str, Fact]]:
    for item in fields:
        versions = item.get("versions") or item["taggedVersions"]
        if not Versions.parse(versions).has(version):
            continue
        name = item["type"].removeprefix("[]")
        is_array = item["type"].startswith("[]")
        is_struct = name[0].isupper()
        nullable = Versions.parse(item.get("nullableVersions", "")).has(version)
        tagged = Versions.parse(item.get("taggedVersions", "")).has(version)
        kind = "struct" if is_struct else name
        default = json_default(item.get("default"), kind, is_array)
        where = f"{path}{snake(item['name'])}"
        yield where, fact(kind, is_array, nullable, item["tag"] if tagged else None, default)
        if is_struct:
            inner = item.get("fields") or commons[name]["fields"]
            yield from json_facts(inner, commons, version, f"{where}.")


def json_default(default: Any, kind: str, is_array: bool) -> Any:
    if default == "null":
        return None
    if is_array:
        return []
    if default in (None, ""):
        return "struct" if kind == "struct" else _IMPLICIT.get(kind, 0)
    if kind == "bool":
        return str(default).lower() == "true"
    if kind == "string":
        return default
    return float(default) if kind == "float64" else int(str(default), 0)


# ------------------------------------------------------------------------------- kio's classes

_KIO_TYPES = {
    "error_code": "int16",
    "timedelta_i32": "int32",
    "timedelta_i64": "int64",
    "datetime_i64": "int64",
}


def kio_class(key: int, version: int, entity: EntityType) -> Any:
    module, _, name = schema_name_map[api_key_map[key]][version][entity].partition(":")  # type: ignore[index]
    return getattr(importlib.import_module(module), name)


def kio_facts(cls: Any, path: str = "") -> Iterator[tuple[str, Fact]]:
    hints = typing.get_type_hints(cls, vars(sys.modules[cls.__module__]))
    for item in dataclasses.fields(cls):
        hint, nullable, is_array = hints[item.name], False, False
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
            (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
            nullable = True
        if typing.get_origin(hint) is tuple:
            hint = typing.get_args(hint)[0]
            is_array = True
        kafka_type = item.metadata.get("kafka_type")
        # kio drops the unit from names of times, since its types know it.
        name = item.name.rstrip("_").replace("k_raft", "kraft")
        kind = _KIO_TYPES.get(kafka_type, kafka_type) if kafka_type else "struct"
        default = kio_default(item.default, kind, is_array)
        yield f"{path}{name}", fact(kind, is_array, nullable, item.metadata.get("tag"), default)
        if not kafka_type:
            yield from kio_facts(hint, f"{path}{name}.")


def kio_default(default: Any, kind: str, is_array: bool) -> Any:
    if is_array:
        return None if default is None else []
    if kind == "struct":
        return None if default is None else "struct"
    if default is dataclasses.MISSING:
        return _IMPLICIT.get(kind, 0)
    if kind == "uuid":
        return bytes(16) if default is None else default.bytes
    if isinstance(default, dt.timedelta):
        return default // dt.timedelta(milliseconds=1)
    if isinstance(default, enum.Enum):
        return default.value
    assert not isinstance(default, uuid.UUID)
    return default


# ------------------------------------------------------------------------------------ the tests


def without_units(path: str) -> str:
    return ".".join(part.removesuffix("_ms") for part in path.split("."))


def compare(oracle: str, message: str, ours: Facts, theirs: Facts) -> set[tuple[str, str, str]]:
    """Paths that differ, in any fact or in the order in which untagged fields are written."""
    differing = {path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)}
    order = [path for path, value in ours.items() if value.tag is None and path not in differing]
    their_order = [
        path for path, value in theirs.items() if value.tag is None and path not in differing
    ]
    assert order == their_order, f"{oracle} writes the fields of {message} in another order"
    for path in differing:
        if (oracle, message, path) not in DIFFERENCES:
            pytest.fail(f"{message}.{path}: ours {ours.get(path)}, {oracle}'s {theirs.get(path)}")
    return {(oracle, message, path) for path in differing}


def messages_of(key: ApiKey) -> list[tuple[type[Message], EntityType]]:
    api = schema(key)
    return [(api.request, EntityType.request), (api.response, EntityType.response)]


def versions_of(cls: type[Message]) -> range:
    return range(cls.__versions__.low, cls.__versions__.high + 1)


def json_differences(cls: type[Message]) -> set[tuple[str, str, str]]:
    loaded = load_json(cls.__name__)
    if loaded is None:
        return set()
    assert Versions.parse(loaded["validVersions"]) == cls.__versions__
    commons = {item["name"]: item for item in loaded.get("commonStructs", [])}
    found = set()
    for version in versions_of(cls):
        flexible = Versions.parse(loaded.get("flexibleVersions", "none")).has(version)
        assert flexible == cls.__flexible__.has(version)
        theirs = dict(json_facts(loaded["fields"], commons, version))
        found |= compare("kafka-python", cls.__name__, dict(our_facts(cls, version)), theirs)
    return found


def kio_differences(key: ApiKey, cls: type[Message], entity: EntityType) -> set[Any]:
    found = set()
    known = sorted(schema_name_map[api_key_map[key]])
    newer = range(known[-1] + 1, cls.__versions__.high + 1)
    assert [*known, *newer] == list(versions_of(cls))
    assert bool(newer) == (cls.__name__ in KAFKA_4_4)
    for version in known:
        theirs_class = kio_class(key, version, entity)
        assert theirs_class.__flexible__ == cls.__flexible__.has(version)
        header = schema(key).request_header_version(version)
        if entity is EntityType.response:
            header = schema(key).response_header_version(version)
        assert theirs_class.__header_schema__.__version__ == header
        ours = {without_units(path): value for path, value in our_facts(cls, version)}
        theirs = {without_units(path): value for path, value in kio_facts(theirs_class)}
        found |= compare("kio", cls.__name__, ours, theirs)
    return found


@pytest.mark.parametrize("key", list(ApiKey), ids=lambda key: key.name)
def test_fields_equal_kafkas_own(key: ApiKey) -> None:
    for cls, _ in messages_of(key):
        json_differences(cls)


@pytest.mark.parametrize("key", KIO_KEYS, ids=lambda key: key.name)
def test_fields_equal_kios(key: ApiKey) -> None:
    for cls, entity in messages_of(key):
        kio_differences(key, cls, entity)


@pytest.mark.parametrize(
    "cls",
    [consumer_protocol.ConsumerProtocolSubscription, consumer_protocol.ConsumerProtocolAssignment],
)
def test_fields_of_the_consumer_protocol_equal_kafka_pythons(cls: type[Message]) -> None:
    assert load_json(cls.__name__) is not None
    json_differences(cls)


def test_no_api_is_missing() -> None:
    assert {int(key) for key in KIO_KEYS} == set(api_key_map)
    assert {f"{schema(key).name}{end}" for key in ZOOKEEPER_KEYS for end in ENDS} == set(
        ZOOKEEPER_MODE
    )


def test_known_differences_are_still_there() -> None:
    found: set[Any] = set()
    for key in ApiKey:
        for cls, entity in messages_of(key):
            found |= json_differences(cls)
            if key in KIO_KEYS:
                found |= kio_differences(key, cls, entity)
    assert found == set(DIFFERENCES), "an entry that is no longer true must go"
