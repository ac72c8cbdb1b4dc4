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
