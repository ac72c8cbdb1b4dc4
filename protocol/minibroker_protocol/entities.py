"""What a message names: the one walker over fields, by their meanings in the schema.

Owns the search for fields with a meaning, and the list of entities that a message is about. It must
never know rules, names of fields, or a particular message. Invariant: everything follows from the
meanings that the schema declares, so a message that is added is covered without a change here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from functools import cache
from typing import Any, Final, NamedTuple

from minibroker_protocol.meanings import Meaning, NameByType
from minibroker_protocol.schema import Array, Field, Message, Struct

ENTITIES: Final = frozenset(
    {
        Meaning.TOPIC,
        Meaning.TOPIC_ID,
        Meaning.PARTITION,
        Meaning.GROUP,
        Meaning.MEMBER,
        Meaning.TRANSACTIONAL_ID,
        Meaning.PRODUCER_ID,
        Meaning.RESOURCE,
        Meaning.USER,
        Meaning.FEATURE,
        Meaning.LOG_DIR,
        Meaning.QUOTA_ENTITY,
        Meaning.COORDINATOR_KEY,
    }
)
"""What a message can be about."""

_NOT_WALKED: Final = frozenset({Meaning.QUOTA_ENTITY, Meaning.FORGOTTEN})
"""Arrays of structs that are an entity themselves, or that the message is not about."""

Keys = Mapping[Meaning, Any]


def struct_in(field: Field) -> type[Struct] | None:
    """The class of a field that is a struct or an array of structs; None for values."""
    kind = field.kind.element if isinstance(field.kind, Array) else field.kind
    return kind if isinstance(kind, type) else None


# Fields with a meaning ----------------------------------------------------------------------------


class Mark(NamedTuple):
    """A field with a meaning, in a struct of a message."""

    struct: Struct
    field: Field
    meaning: Meaning

    @property
    def value(self) -> Any:
        """What the field holds."""
        return getattr(self.struct, self.field.name)

    def replace(self, value: Any) -> None:
        """Change what the field holds."""
        setattr(self.struct, self.field.name, value)


def marks(
    message: Struct, version: int, meanings: Set[Meaning], request: Struct | None = None
) -> Iterator[Mark]:
    """All fields of a message with one of the meanings, those of a struct before those inside it.

    ``request`` has the type of a name that a response leaves out.
    """
    for field in marked_fields(type(message), version, frozenset(meanings)):
        meaning = meaning_in(message, field, request)
        if meaning is not None and meaning in meanings:
            yield Mark(message, field, meaning)
        if struct_in(field) is not None:
            for struct in structs_of(message, field):
                yield from marks(struct, version, meanings, request)


def values(
    message: Struct, version: int, meanings: Set[Meaning], request: Struct | None = None
) -> Iterator[Any]:
    """The values of all fields with one of the meanings, and the elements of arrays of them."""
    for mark in marks(message, version, meanings, request):
        if isinstance(mark.value, list):
            yield from mark.value
        else:
            yield mark.value


@cache
def marked_fields(
    cls: type[Struct], version: int, meanings: frozenset[Meaning]
) -> tuple[Field, ...]:
    """The fields of a version of a struct that have one of the meanings, or may contain one."""
    return tuple(
        field
        for field in cls.__fields__
        if field.versions.has(version)
        and (
            not meanings.isdisjoint(possible_meanings(field))
            or ((inner := struct_in(field)) is not None and marked_fields(inner, version, meanings))
        )
    )


def possible_meanings(field: Field) -> frozenset[Meaning]:
    """All meanings that a field can have."""
    if isinstance(field.means, NameByType):
        return frozenset({field.means.generic, *field.means.meanings.values()})
    return frozenset() if field.means is None else frozenset({field.means})


def generic_meaning(field: Field) -> Meaning | None:
    """The meaning of a field without the type that another field may give it."""
    return field.means.generic if isinstance(field.means, NameByType) else field.means


def meaning_in(struct: Struct, field: Field, request: Struct | None = None) -> Meaning | None:
    """The meaning of a field of a struct, where it depends on a type: what that says."""
    means = field.means
    if not isinstance(means, NameByType):
        return means
    return means.of(getattr(struct, means.type_field, getattr(request, means.type_field, None)))


def structs_of(message: Struct, field: Field) -> list[Struct]:
    """The structs in a field of a message: the elements of its array, or its one struct."""
    value = getattr(message, field.name)
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


@cache
def has_secrets(cls: type[Struct]) -> bool:
    """Whether messages of a class, in any version, have a secret."""
    return any(
        field.secret or ((inner := struct_in(field)) is not None and has_secrets(inner))
        for field in cls.__fields__
    )


# What a message is about --------------------------------------------------------------------------


class Step(NamedTuple):
    """A place in an array of a message."""

    array: str
    position: int


class MessageEntity(NamedTuple):
    """The innermost thing that a message names, with the keys of everything around it."""

    keys: Keys
    path: tuple[Step, ...]
    """Empty for the message itself."""


@cache
def fields_of(cls: type[Struct], version: int) -> tuple[tuple[Field, Meaning | None], ...]:
    """The fields of a struct in a version, with the entities that they name.

    A name whose meaning depends on a type has its generic meaning.
    """
    return tuple(
        (item, generic if (generic := generic_meaning(item)) in ENTITIES else None)
        for item in cls.__fields__
        if item.versions.has(version)
    )


def is_entity_array(field: Field) -> bool:
    """Whether a field is an array of structs that may have keys."""
    return (
        isinstance(field.kind, Array)
        and isinstance(field.kind.element, type)
        and field.means not in _NOT_WALKED
    )


@cache
def keys_below(cls: type[Struct], version: int) -> frozenset[Meaning]:
    """The keys of a struct and of everything in its arrays."""
    found: set[Meaning] = set()
    for item, key in fields_of(cls, version):
        if key is not None:
            found.add(key)
        elif is_entity_array(item):
            found |= keys_below(element_of(item), version)
    return frozenset(found)


@cache
def keys_by_type(cls: type[Struct], version: int) -> Mapping[Meaning, Meaning]:
    """The generic meaning by each entity that a name in requests of a class can be by its type."""
    found: dict[Meaning, Meaning] = {}
    for item, key in fields_of(cls, version):
        if key is not None and isinstance(item.means, NameByType):
            found |= dict.fromkeys(ENTITIES.intersection(item.means.meanings.values()), key)
        elif is_entity_array(item):
            found |= keys_by_type(element_of(item), version)
    return found


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


def entities(message: Struct, version: int) -> list[MessageEntity]:
    """The innermost entities that a message names, or the message itself if there are none."""
    return list(_walk(message, version, {}, ()))


def _walk(
    struct: Struct, version: int, around: Keys, path: tuple[Step, ...]
) -> Iterator[MessageEntity]:
    cls = type(struct)
    keys = dict(around)
    lists: list[tuple[Field, Meaning | None]] = []
    for item, key in fields_of(cls, version):
        is_array = isinstance(item.kind, Array)
        if key is None and is_entity_array(item):
            lists.append((item, None))
        elif key is not None and is_array and key is not Meaning.QUOTA_ENTITY:
            lists.append((item, key))
        elif key is not None and key not in keys:
            keys |= _named(struct, item, key, frozen(getattr(struct, item.name)))
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
                yield MessageEntity({**keys, **_named(struct, item, key, element)}, at)
    if is_innermost:
        yield MessageEntity(keys, path)


def _named(struct: Struct, field: Field, key: Meaning, value: Any) -> Keys:
    """A name by its meaning, and by what its type says that it is."""
    meaning = meaning_in(struct, field)
    return {key: value, meaning: value} if meaning in ENTITIES else {key: value}


def structs_around(message: Struct, entity: MessageEntity) -> list[Struct]:
    """The structs around an entity of a message, from the message itself to the innermost one."""
    found = [message]
    for step in entity.path:
        element = getattr(found[-1], step.array)[step.position]
        if isinstance(element, Struct):
            found.append(element)
    return found


def selectable(cls: type[Message], versions: Iterable[int] | None = None) -> frozenset[Meaning]:
    """The keys that requests of a class can have in these versions, by default in any."""
    found: set[Meaning] = set()
    declared = cls.__versions__
    for version in range(declared.low, declared.high + 1) if versions is None else versions:
        found |= keys_below(cls, version)
        found |= keys_by_type(cls, version).keys()
    if Meaning.TOPIC_ID in found:
        found.add(Meaning.TOPIC)
    return frozenset(found)


# ------------------- Responses, and elements of responses, to what a request names and does not get
# Owns what a response with an error says about a request, by the meanings in the schema. It must
# never know why a request fails. Invariant: an error is in the outermost struct that has an error
# code in the version; where that is an element of an array, there is one for each element of the
# request. Kafka has this as ``AbstractRequest.getErrorResponse`` of each API.


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
