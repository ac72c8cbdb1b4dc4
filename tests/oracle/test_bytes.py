"""Encoded messages, read by other libraries and written by them again, are the same bytes.

kio reads and writes every API of Kafka 4; kafka-python those it has classes for. Objects are not
converted, so only the bytes are compared. The APIs of Kafka's ZooKeeper mode are compared with
bytes written by the classes of Kafka 3.9, and versions that are newer than the libraries with bytes
written by those of Kafka 4.4; both are beside this file. Values are limited to those
of kio's types: error codes that it knows, no times before 1970.
"""

from __future__ import annotations

import importlib
import io
import json
import pkgutil
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kafka.protocol
import pytest
from kafka.protocol.api_message import ApiMessage
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from minibroker_protocol import compiler
from minibroker_protocol.messages.api_versions import ApiVersionsResponse
from minibroker_protocol.registry import ApiKey, schema
from minibroker_protocol.schema import Array, Field, Message, Struct
from minibroker_protocol.types import Type, uuid_text
from tests.oracle.test_schemas import KAFKA_4_4, NEWER_KEYS

MESSAGES = [cls for key in ApiKey for cls in (schema(key).request, schema(key).response)]
SAMPLES = 3

Project = Callable[[Message, int], Message]


def versions_of(cls: type[Message]) -> range:
    return range(cls.__versions__.low, cls.__versions__.high + 1)


def sample(cls: type[Struct], rng: random.Random) -> Any:
    """An object with every field set, lists and all."""
    return cls(**{item.name: sample_field(item, item.kind, rng) for item in cls.__fields__})


def sample_field(item: Field, kind: Any, rng: random.Random) -> Any:
    if isinstance(kind, Array):
        return [sample_field(item, kind.element, rng) for _ in range(rng.randrange(1, 3))]
    if isinstance(kind, type):
        return sample(kind, rng)
    assert isinstance(kind, Type)
    name = kind.name.removeprefix("nullable ")
    if item.name.endswith("error_code"):
        return int(rng.choice(list(KioErrorCode)))
    if name.startswith(("int", "uint")):
        return rng.randrange(1, 120)
    choices: dict[str, Callable[[], Any]] = {
        "string": lambda: rng.choice(["", "text", "é" * 150]),
        "bytes": lambda: rng.choice([b"", b"data", bytes(200)]),
        "records": lambda: rng.choice([b"", b"data", bytes(200)]),
        "bool": lambda: rng.random() < 0.5,
        "float64": rng.random,
        "uuid": lambda: rng.randbytes(16),
    }
    return choices[name]()


def samples(
    cls: type[Message], seed: int, project: Project, newest: int
) -> list[tuple[int, bytes]]:
    rng = random.Random(f"{cls.__name__} {seed}")
    made = []
    for version in versions_of(cls):
        if version > newest:
            break
        for _ in range(SAMPLES):
            message = project(sample(cls, rng), version)
            if isinstance(message, ApiVersionsResponse):
                message.error_code = 0  # with an error, clients read it as version 0
            made.append((version, compiler.encode(message, version)))
    return made


def kio_copy(cls: type[Message], version: int, data: bytes) -> bytes:
    key = cls.__api_key__
    assert key is not None
    entity = EntityType.request if cls is schema(key).request else EntityType.response
    module, _, name = schema_name_map[api_key_map[key]][version][entity].partition(":")  # type: ignore[index]
    theirs = getattr(importlib.import_module(module), name)
    read, size = entity_reader(theirs)(data, 0)
    assert size == len(data)
    written = io.BytesIO()
    entity_writer(theirs)(written, read)
    return written.getvalue()


@pytest.mark.parametrize(
    "cls", [cls for cls in MESSAGES if cls.__api_key__ in api_key_map], ids=lambda cls: cls.__name__
)
def test_kio_reads_and_writes_our_bytes(
    cls: type[Message], seed: int, project_message: Project
) -> None:
    assert cls.__api_key__ is not None
    newest = max(schema_name_map[api_key_map[cls.__api_key__]])
    for version, data in samples(cls, seed, project_message, newest):
        assert kio_copy(cls, version, data) == data


def kafka_python_classes() -> dict[str, Any]:
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate" not in module.name:
            importlib.import_module(module.name)
    return {cls.__name__: cls for cls in ApiMessage.__subclasses__()}


KAFKA_PYTHON = kafka_python_classes()


@pytest.mark.parametrize(
    "cls", [cls for cls in MESSAGES if cls.__name__ in KAFKA_PYTHON], ids=lambda cls: cls.__name__
)
def test_kafka_python_reads_and_writes_our_bytes(
    cls: type[Message], seed: int, project_message: Project
) -> None:
    theirs = KAFKA_PYTHON[cls.__name__]
    for version, data in samples(cls, seed, project_message, theirs.max_version):
        read = theirs.decode(data, version=version)
        read._header = None  # decoding leaves it unset, and encoding asks for it
        assert bytes(read.encode(version=version)) == data


def test_kafka_python_has_the_apis_of_clients() -> None:
    assert len(KAFKA_PYTHON) >= 80


def written_by_kafka(file: str) -> list[tuple[type[Message], int, bytes, Any]]:
    of_name = {cls.__name__: cls for cls in MESSAGES}
    found = []
    _, *lines = Path(__file__).with_name(file).read_text().splitlines()
    for line in lines:
        name, version, data, said = line.split(" ", 3)
        found.append((of_name[name], int(version), bytes.fromhex(data), json.loads(said)))
    return found


def as_kafka_says(value: Any, version: int) -> Any:
    """Return what Kafka's ``JsonConverter`` makes of the same object."""
    if isinstance(value, list):
        return [as_kafka_says(element, version) for element in value]
    if isinstance(value, Struct):
        return {
            camel(item.name): as_kafka_says(getattr(value, item.name), version)
            for item in value.__fields__
            if item.versions.has(version)
        }
    return uuid_text(value) if isinstance(value, bytes) else value


def camel(name: str) -> str:
    first, *rest = name.replace("kraft", "k_raft").split("_")
    return first + "".join(word.capitalize() for word in rest)


@pytest.mark.parametrize(
    ("cls", "version", "data", "said"),
    [*written_by_kafka("zookeeper_mode.txt"), *written_by_kafka("kafka_4_4.txt")],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_kafka_wrote_is_read_and_written_alike(
    cls: type[Message], version: int, data: bytes, said: Any
) -> None:
    message = compiler.decode(cls, version, data)
    assert as_kafka_says(message, version) == said
    assert compiler.encode(message, version) == data


def test_kafka_wrote_the_newest_versions() -> None:
    written = {(cls.__name__, version) for cls, version, _, _ in written_by_kafka("kafka_4_4.txt")}
    assert written == {
        (cls.__name__, cls.__versions__.high) for cls in MESSAGES if cls.__name__ in KAFKA_4_4
    }


def test_kafka_wrote_every_version_of_its_zookeeper_mode() -> None:
    written = {(cls, version) for cls, version, _, _ in written_by_kafka("zookeeper_mode.txt")}
    assert {cls.__api_key__ for cls, _ in written} == set(map(int, ApiKey)) - set(
        api_key_map
    ) - set(NEWER_KEYS)
    assert written == {(cls, version) for cls, _ in written for version in versions_of(cls)}
