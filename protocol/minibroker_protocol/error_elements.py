"""Responses, and elements of responses, to what a request names and does not get.

Owns what a response with an error says about a request, by the meanings in the schema. It must
never know why a request fails. Invariant: an error is in the outermost struct that has an error
code in the version; where that is an element of an array, there is one for each element of the
request. Kafka has this as ``AbstractRequest.getErrorResponse`` of each API.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from functools import cache
from typing import Any, Final

from minibroker_protocol.entities import element_of, generic_meaning, is_entity_array
from minibroker_protocol.meanings import Meaning, NameByType
from minibroker_protocol.schema import Array, Field, Struct

UNKNOWN_NUMBERS: Final = frozenset(
    {
        Meaning.OFFSET,
        Meaning.BASE_OFFSET,
        Meaning.GENERATION,
        Meaning.PRODUCER_ID,
        Meaning.PRODUCER_EPOCH,
        Meaning.BROKER,
        Meaning.PORT,
    }
)
"""Numbers that are -1 in a response with an error."""

NAMES: Final = frozenset(
    {
        Meaning.TOPIC,
        Meaning.TOPIC_ID,
        Meaning.PARTITION,
        Meaning.GROUP,
        Meaning.TRANSACTIONAL_ID,
        Meaning.RESOURCE,
        Meaning.USER,
        Meaning.LOG_DIR,
        Meaning.COORDINATOR_KEY,
        Meaning.QUOTA_ENTITY,
    }
)
"""Names that an element of a response has from that of the request."""


def error_response(
    cls: type[Struct], version: int, request: Struct, code: int, text: str | None = None
) -> Any:
    """Return the response that rejects a request as a whole; what may be null in it is null."""
    response = _fill(cls(), version, request, code, text)
    for item in _fields(cls, version):
        if item.nullable.has(version) and item.means is not Meaning.MESSAGE:
            setattr(response, item.name, None)
    return response


def error_element(
    cls: type[Struct], version: int, requested: Any, code: int, text: str | None = None
) -> Any:
    """Return the element of a response about one of the request: a struct, or only a name."""
    element = cls()
    for item in _names(cls, version):
        value = requested
        if isinstance(requested, Struct):
            value = _value(requested, item)
        setattr(element, item.name, value)
    return _fill(element, version, requested, code, text)


def array_about(
    response: type[Struct], version: int, array: Field
) -> tuple[str, type[Struct]] | None:
    """Return the name and the class of the array that has the results of a request's array."""
    names = _names_in(array, version)
    for item in _arrays(response, version):
        cls = element_of(item)
        if names & _meanings(cls, version):
            return item.name, cls
    return None


def _fill(struct: Any, version: int, requested: Any, code: int, text: str | None) -> Any:
    """Put an error into a struct, or into its elements about those of the request."""
    cls: type[Struct] = type(struct)
    fields = _fields(cls, version)
    for item in fields:
        if item.means in UNKNOWN_NUMBERS and getattr(struct, item.name) == 0:
            setattr(struct, item.name, -1)
    errors = [item for item in fields if item.means is Meaning.ERROR]
    for item in errors:
        setattr(struct, item.name, int(code))
    for item in fields:
        if errors and item.means is Meaning.MESSAGE:
            setattr(struct, item.name, text)
    for array in () if errors else _arrays(cls, version):
        inner = element_of(array)
        if _meanings(inner, version) or any(
            item.means is Meaning.ERROR for item in _fields(inner, version)
        ):
            about = _requested_by(inner, version, requested)
            elements = [error_element(inner, version, each, code, text) for each in about]
            setattr(struct, array.name, elements)
    return struct


def _requested_by(cls: type[Struct], version: int, requested: Any) -> Iterator[Any]:
    """The elements of a request that elements of a class are about."""
    if not isinstance(requested, Struct):
        return
    names = _meanings(cls, version)
    for item in _fields(type(requested), version):
        if not isinstance(item.kind, Array):
            continue
        elements = getattr(requested, item.name) or ()
        if (not names and is_entity_array(item)) or names & _names_in(item, version):
            yield from elements
        elif is_entity_array(item):
            for element in elements:
                yield from _requested_by(cls, version, element)


@cache
def _names_in(array: Field, version: int) -> Set[Meaning | None]:
    """What the elements of an array name."""
    if is_entity_array(array):
        return _meanings(element_of(array), version)
    return {generic_meaning(array)} & NAMES


@cache
def _meanings(cls: type[Struct], version: int) -> Set[Meaning | None]:
    return {generic_meaning(item) for item in _names(cls, version)} & NAMES


@cache
def _names(cls: type[Struct], version: int) -> tuple[Field, ...]:
    """The fields that name something, and those with the types of names."""
    fields = _fields(cls, version)
    types = {item.means.type_field for item in fields if isinstance(item.means, NameByType)}
    return tuple(item for item in fields if generic_meaning(item) in NAMES or item.name in types)


@cache
def _arrays(cls: type[Struct], version: int) -> tuple[Field, ...]:
    return tuple(item for item in _fields(cls, version) if is_entity_array(item))


@cache
def _fields(cls: type[Struct], version: int) -> tuple[Field, ...]:
    return tuple(item for item in cls.__fields__ if item.versions.has(version))


def _value(requested: Struct, named: Field) -> Any:
    """What a struct of the request has for a field of the response."""
    for item in requested.__fields__:
        meaning = generic_meaning(named)
        if item.name == named.name if meaning is None else generic_meaning(item) is meaning:
            return getattr(requested, item.name)
    return named.make_default()
