"""Messages of any kind for tests: how to draw one, and its value in each version.

A message is drawn with every field set, and is then written in all versions: `project` returns what
each version keeps. Both follow from the declarations alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import strategies as st

from minibroker_protocol.schema import Array, Field, Message, Struct
from minibroker_protocol.types import Type

Draw: TypeAlias = "Callable[[type[Struct]], st.SearchStrategy[Any]]"
Project: TypeAlias = "Callable[[Message, int], Message]"

_LONG = 300  # longer than a compact length of one byte can say
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.just("é" * _LONG)
_BYTES = st.binary(max_size=6) | st.just(bytes(_LONG))
_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": _TEXT,
    "bytes": _BYTES,
    "records": _BYTES,
}
_UNKNOWN = st.none() | st.dictionaries(st.integers(100, 2**32 - 1), _BYTES, min_size=1, max_size=2)


def _of_kind(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, Type):
        return _PRIMITIVES[kind.name.removeprefix("plain ").removeprefix("nullable ")]
    if isinstance(kind, Array):
        return st.lists(_of_kind(kind.element), max_size=2)
    return draw(kind)


@functools.cache
def draw(cls: type[Struct]) -> st.SearchStrategy[Any]:
    """Objects of `cls` with every field set to anything that some version allows."""
    fields = {}
    for item in cls.__fields__:
        values = _of_kind(item.kind)
        may_be_null = item.nullable.high >= item.nullable.low or item.default is None
        may_be_null |= isinstance(item.kind, Type) and item.kind.nullable
        fields[item.name] = st.none() | values if may_be_null else values
    return st.builds(cls, **fields, unknown_tagged_fields=_UNKNOWN)


def project(message: Message, version: int) -> Message:
    """What of `message` is left when it was written in `version` and read again."""
    kept: Message = _project(message, version, type(message).__flexible__.has(version))
    return kept


def _project(value: Any, version: int, flexible: bool) -> Any:
    if isinstance(value, list):
        return [_project(element, version, flexible) for element in value]
    if not isinstance(value, Struct):
        return value
    fields = {
        item.name: _project_field(item, getattr(value, item.name), version, flexible)
        if item.versions.has(version)
        else item.make_default()
        for item in value.__fields__
    }
    unknown = value.unknown_tagged_fields if flexible else None
    return type(value)(**fields, unknown_tagged_fields=unknown)


def _project_field(item: Field, value: Any, version: int, flexible: bool) -> Any:
    tagged_struct = item.tagged.has(version) and isinstance(item.kind, type)
    if value is None and not _nullable(item, version) and not tagged_struct:
        value = [] if isinstance(item.kind, Array) else item.kind.default  # type: ignore[union-attr]
    kept = _project(value, version, flexible)
    if tagged_struct and isinstance(item.kind, type) and kept == item.kind():
        return None
    return kept


def _nullable(item: Field, version: int) -> bool:
    return item.nullable.has(version) or (isinstance(item.kind, Type) and item.kind.nullable)


@pytest.fixture(scope="session")
def draw_message() -> Draw:
    """Give a message class, get a hypothesis strategy for its objects."""
    return draw


@pytest.fixture(scope="session")
def project_message() -> Project:
    """Give a message and a version, get what that version keeps of it."""
    return project
