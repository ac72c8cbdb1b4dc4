"""Fields of messages as JSON, for rules that select by them or change them.

Owns the conversion of JSON values to the fields of a message, and the fields that a rule can find
at what a message names: those of the message itself, and of the elements of its arrays. It must
never know an API. Invariant: what ``response_faults`` and ``element_faults`` accept, ``set_fields``
can set and the message can encode. Kafka's ``JsonConverter`` classes.
"""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from minibroker.lab.schema import Fault, unknown_field
from minibroker_protocol.compiler import encode
from minibroker_protocol.entities import element_of, is_entity_array
from minibroker_protocol.errors import EncodeError
from minibroker_protocol.schema import NO_VERSIONS, Array, Field, Message, Struct, Versions
from minibroker_protocol.types import uuid_from_text

_STRING_BYTES_MAX: Final = 2**15 - 1
"""The longest text in versions that are not flexible."""

_INTEGERS: Final = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 17, "uint32": 33}


def response_faults(
    cls: type[Struct], fields: Mapping[str, object], path: str = "response"
) -> Iterator[Fault]:
    """Yield what is wrong with JSON fields of a struct."""
    known = {item.name: item for item in cls.__fields__}
    for name, value in fields.items():
        item = known.get(name)
        if item is None:
            yield unknown_field(f"{path}.{name[:60]}", name, known)
        else:
            yield from _value_faults(item, value, f"{path}.{name}")


def set_fields(struct: Struct, fields: Mapping[str, object]) -> None:
    """Set fields of a struct to JSON values that were checked."""
    known = {item.name: item for item in type(struct).__fields__}
    for name, value in fields.items():
        setattr(struct, name, _value(known[name].kind, value))


# Fields of elements -------------------------------------------------------------------------------


class ElementField(NamedTuple):
    """A field of a message, or of the elements of its arrays."""

    field: Field
    arrays: tuple[Field, ...]
    """The arrays around it, from the outside."""

    def versions(self) -> range:
        around = [self.field.versions, *(array.versions for array in self.arrays)]
        least, greatest = max(each.low for each in around), min(each.high for each in around)
        return range(least, greatest + 1)


@cache
def element_fields(cls: type[Struct]) -> Mapping[str, tuple[ElementField, ...]]:
    """All fields of a message that have one value for an element, by name."""
    found: defaultdict[str, list[ElementField]] = defaultdict(list)

    def walk(struct: type[Struct], arrays: tuple[Field, ...]) -> None:
        for item in struct.__fields__:
            if is_entity_array(item):
                walk(element_of(item), (*arrays, item))
            else:
                found[item.name].append(ElementField(item, arrays))

    walk(cls, ())
    return {name: tuple(fields) for name, fields in found.items()}


def element_faults(cls: type[Struct], fields: Mapping[str, object], path: str) -> Iterator[Fault]:
    """Yield what is wrong with JSON fields that elements of a message should have."""
    known = element_fields(cls)
    for name, value in fields.items():
        if name not in known:
            yield unknown_field(f"{path}.{name[:60]}", name, known)
            continue
        faults = [[*_value_faults(each.field, value, f"{path}.{name}")] for each in known[name]]
        if all(faults):
            yield from faults[-1]


def can_patch(cls: type[Message], name: str, value: object, version: int) -> bool:
    """Whether a field of that name can have a value in a version of a message."""
    return any(
        version in each.versions() and _can_encode_element(cls, each, value, version)
        for each in element_fields(cls)[name]
    )


def _can_encode_element(
    cls: type[Message], found: ElementField, value: object, version: int
) -> bool:
    if [*_value_faults(found.field, value, "")]:
        return False
    message = cls()
    struct: Struct = message
    for array in found.arrays:
        element = element_of(array)()
        setattr(struct, array.name, [element])
        struct = element
    set_fields(struct, {found.field.name: value})
    return _encodes(message, version)


def comparable(cls: type[Struct], name: str, value: object) -> frozenset[Any]:
    """The values of a JSON value in the fields of that name."""
    return frozenset(
        _value(each.field.kind, value)
        for each in element_fields(cls)[name]
        if not [*_value_faults(each.field, value, "")]
    )


@cache
def field_versions(cls: type[Struct], name: str) -> Versions:
    """The versions of a message that have a field."""
    return next((item.versions for item in cls.__fields__ if item.name == name), NO_VERSIONS)


def owner_of(structs: Sequence[Struct], name: str, version: int) -> Struct | None:
    """The innermost of nested structs that has a field in a version."""
    for struct_ in reversed(structs):
        if field_versions(type(struct_), name).has(version):
            return struct_
    return None


# Whole messages -----------------------------------------------------------------------------------


def can_encode(cls: type[Message], fields: Mapping[str, object], version: int) -> bool:
    """Whether a message with JSON fields that were checked can be encoded in a version."""
    message = cls()
    set_fields(message, fields)
    return _encodes(message, version)


def _encodes(message: Message, version: int) -> bool:
    try:
        encode(message, version)
    except EncodeError:
        return False
    return True


def copied(value: Any) -> Any:
    """A copy of a message, of which no struct or list is shared."""
    if isinstance(value, list):
        return [copied(element) for element in value]
    if not isinstance(value, Struct):
        return value
    copy = type(value)()
    for item in value.__fields__:
        setattr(copy, item.name, copied(getattr(value, item.name)))
    copy.unknown_tagged_fields = value.unknown_tagged_fields
    return copy


def _is_nullable(item: Field) -> bool:
    nullable: bool = item.nullable.low <= item.nullable.high
    return nullable or item.default is None or getattr(item.kind, "nullable", False)


def _value_faults(item: Field, value: object, path: str) -> Iterator[Fault]:
    if value is None:
        if not _is_nullable(item):
            yield Fault(path, "must not be null")
        return
    kind = item.kind
    if isinstance(kind, Array):
        if not isinstance(value, list):
            yield Fault(path, "must be a list")
            return
        for index, element in enumerate(value):
            yield from _kind_faults(kind.element, element, f"{path}[{index}]")
    else:
        yield from _kind_faults(kind, value, path)


def _kind_faults(kind: Any, value: object, path: str) -> Iterator[Fault]:
    if isinstance(kind, type):
        if isinstance(value, dict):
            yield from response_faults(kind, value, path)
        else:
            yield Fault(path, "must be an object")
        return
    try:
        _value(kind, value)
    except (ValueError, TypeError, binascii.Error) as error:
        yield Fault(path, str(error))


def _value(kind: Any, value: Any) -> Any:
    """Convert a JSON value to a value of a field. Raises ``ValueError`` or ``TypeError``."""
    if value is None:
        return None
    if isinstance(kind, Array):
        return [_value(kind.element, element) for element in value]
    if isinstance(kind, type):
        struct = kind()
        set_fields(struct, value)
        return struct
    return _primitive(kind.name.removeprefix("nullable "), value)


def _primitive(name: str, value: Any) -> Any:
    if name in _INTEGERS:
        bits = _INTEGERS[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError("must be a whole number")
        least = 0 if name.startswith("u") else -(2 ** (bits - 1))
        if not least <= value < 2 ** (bits - 1):
            raise ValueError(f"is not in the range of {name}")
        return value
    if name == "bool":
        if not isinstance(value, bool):
            raise TypeError("must be true or false")
        return value
    if name == "float64":
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise TypeError("must be a number")
        return float(value)
    if not isinstance(value, str):
        raise TypeError("must be a text")
    if name == "uuid":
        return uuid_from_text(value)
    if name == "string":
        if len(value.encode()) > _STRING_BYTES_MAX:
            raise ValueError(f"has more than {_STRING_BYTES_MAX} bytes")
        return value
    return base64.b64decode(value, validate=True)
