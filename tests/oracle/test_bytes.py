"""Our bytes, read by others and written by them again: they must be the same bytes.

kio reads and writes every API; kafka-python those it has classes for. Nobody translates between
our objects and theirs, so only the bytes are compared. Values are kept to what kio's types hold:
error codes that exist, times that are none before 1970.
"""

from __future__ import annotations

import importlib
import io
import pkgutil
import random
from collections.abc import Callable
from typing import Any

import kafka.protocol
import pytest
from kafka.protocol.api_message import ApiMessage
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from protocol import compiler
from protocol.errors import ErrorCode
from protocol.messages.api_versions import ApiVersionsResponse
from protocol.registry import ApiKey, schema
from protocol.schema import Array, Field, Message, Struct
from protocol.types import Type

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
        return rng.choice(list(ErrorCode)).value
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


def samples(cls: type[Message], seed: int, project: Project) -> list[tuple[int, bytes]]:
    rng = random.Random(f"{cls.__name__} {seed}")
    made = []
    for version in versions_of(cls):
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


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_kio_reads_and_writes_our_bytes(
    cls: type[Message], seed: int, project_message: Project
) -> None:
    for version, data in samples(cls, seed, project_message):
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
    for version, data in samples(cls, seed, project_message):
        read = theirs.decode(data, version=version)
        read._header = None  # decoding leaves it unset, and encoding asks for it
        assert bytes(read.encode(version=version)) == data


def test_kafka_python_has_the_apis_of_clients() -> None:
    assert len(KAFKA_PYTHON) >= 80
