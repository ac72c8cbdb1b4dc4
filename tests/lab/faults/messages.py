"""Requests of every served API, made from the schemas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, TypeVar

from minibroker.broker.apis.registry import APIS
from minibroker.broker.apis.registry import served_versions as versions_of_apis
from minibroker_protocol import registry
from minibroker_protocol.entities import fields_of, frozen
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Message, Struct
from minibroker_protocol.types import ZERO_UUID

SERVED: Final = versions_of_apis(APIS)
"""The lowest and the highest version of each API."""

StructT = TypeVar("StructT", bound=Struct)


def served_versions() -> Iterator[tuple[ApiKey, int]]:
    """Every API in every served version."""
    for key, (low, high) in SERVED.items():
        for version in range(low, high + 1):
            yield ApiKey(key), version


def numbered(cls: type[StructT], version: int, number: int = 1) -> StructT:
    """A struct with two elements in every array, whose keys differ by their numbers."""
    struct = cls()
    for item, key in fields_of(cls, version):
        kind = item.kind
        if isinstance(kind, Array):
            numbers = (2 * number, 2 * number + 1)
            values = [_value(kind.element, version, each) for each in numbers]
            setattr(struct, item.name, values)
        elif key is not None:
            setattr(struct, item.name, _value(kind, version, number))
    return struct


def _value(kind: Any, version: int, number: int) -> Any:
    if isinstance(kind, type):
        return numbered(kind, version, number)
    default = kind.default
    if isinstance(default, bytes) and default == ZERO_UUID:
        return number.to_bytes(16, "big")
    if isinstance(default, str) or default is None:
        return f"n{number}"
    return number if isinstance(default, int) else default


def request_of(key: ApiKey, version: int) -> Message:
    """A request with different entities."""
    return numbered(registry.schema(key).request, version)


def keys_in(struct: Struct, version: int) -> list[tuple[Meaning, Any]]:
    """All keys in a struct."""
    found: list[tuple[Meaning, Any]] = []
    for item, key in fields_of(type(struct), version):
        value = getattr(struct, item.name)
        if key is not None and not isinstance(item.kind, Array):
            found.append((key, frozen(value)))
        elif isinstance(item.kind, Array):
            for element in value or ():
                if isinstance(element, Struct):
                    found += keys_in(element, version)
                elif key is not None:
                    found.append((key, element))
    return found
