"""Error responses of any API, built from the schemas.

Owns the place of an error code in a response and everything else that a response with an error has.
It must never know why a request fails. Invariant: a response names exactly the entities that the
request named, as Kafka's ``AbstractRequest.getErrorResponse`` does for each API by hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from minibroker_protocol import registry
from minibroker_protocol.entities import (
    Keys,
    MessageEntity,
    element_of,
    fields_of,
    frozen,
    is_entity_array,
    keys_below,
    keys_by_type,
)
from minibroker_protocol.error_elements import UNKNOWN_NUMBERS
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.schema import Array, Field, Struct

_COPIED: Final = frozenset({"resource_type", "entity"})
"""Fields of a request's entity that its entity in the response has too."""

_ENTITY_ERRORS: Final = frozenset({ApiKey.FETCH, ApiKey.METADATA})
"""APIs whose error at the top of the response does not stand for errors of their entities."""

_TOP_ERRORS: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.REBOOTSTRAP_REQUIRED,
    }
)
"""Errors that those APIs have at the top of the response."""


class ErrorSite(NamedTuple):
    """A struct of a response that has an error code, and the arrays around it."""

    arrays: tuple[Field, ...]
    keys: frozenset[Meaning]
    field: str
    by_position: bool = False
    """Whether elements correspond to those of the request by their order only."""


class FailedEntity(NamedTuple):
    """An entity of a request that gets an error."""

    keys: Keys
    copied: Mapping[str, Any]
    position: int


class ErrorPlan(NamedTuple):
    """Where an error goes in the response to one request."""

    site: ErrorSite
    targets: tuple[FailedEntity, ...]
    is_whole: bool
    """Whether nothing is left of the request without these entities."""


def plan_error(
    header: tuple[int, int],
    request: Struct,
    found: Sequence[MessageEntity],
    selected: frozenset[Meaning],
    code: int,
    *,
    all_found: int,
    whole: bool = False,
) -> ErrorPlan | None:
    """Plan an error for the entities that a rule has found; ``all_found`` is their total number.

    ``header`` is API key and version; ``selected`` are the keys that the rule selects by. None if
    the response to this request has no place for it before the request is executed.
    """
    api_key, version = header
    prefers_top = api_key not in _ENTITY_ERRORS or code in _TOP_ERRORS or whole
    site = choose_site(api_key, version, selected, prefers_top=prefers_top, whole=whole)
    if site is None:
        return None
    if not site.arrays:
        return ErrorPlan(site, tuple(_targets(request, found, version)), is_whole=True)
    named = [entity for entity in found if entity.path]
    if not named:
        return None
    is_whole = len(named) == all_found
    return ErrorPlan(site, tuple(_targets(request, named, version)), is_whole)


def _targets(
    request: Struct, found: Iterable[MessageEntity], version: int
) -> Iterable[FailedEntity]:
    for entity in found:
        copied: dict[str, Any] = {}
        struct: Any = request
        for step in entity.path:
            struct = getattr(struct, step.array)[step.position]
            if isinstance(struct, Struct):
                copied |= {
                    item.name: getattr(struct, item.name)
                    for item, _ in fields_of(type(struct), version)
                    if item.name in _COPIED
                }
        position = entity.path[0].position if entity.path else 0
        yield FailedEntity(entity.keys, copied, position)


# Where the error code is --------------------------------------------------------------------------


@cache
def error_sites(api_key: int, version: int) -> tuple[ErrorSite, ...]:
    """All places of error codes in a response, the outermost first."""
    schema = registry.schema(api_key)
    found: list[ErrorSite] = []

    def walk(cls: type[Struct], arrays: tuple[Field, ...], keys: frozenset[Meaning]) -> None:
        keys |= {key for item, key in fields_of(cls, version) if key is not None and arrays}
        for item, _ in fields_of(cls, version):
            if item.means is Meaning.ERROR:
                found.append(ErrorSite(arrays, keys, item.name))
        for item, _ in fields_of(cls, version):
            if is_entity_array(item):
                walk(element_of(item), (*arrays, item), keys)

    walk(schema.response, (), frozenset())
    asked = keys_below(schema.request, version)
    usable = (_usable(site, schema.request, version, asked) for site in found)
    return tuple(sorted((site for site in usable if site), key=lambda site: len(site.arrays)))


def _usable(
    site: ErrorSite, request: type[Struct], version: int, asked: frozenset[Meaning]
) -> ErrorSite | None:
    """The site if a request says what its elements are."""
    if not site.arrays:
        return site
    if site.keys:
        known = _plain(asked) | {Meaning.PRODUCER_ID}  # Which says more, and names nothing.
        return site if _plain(site.keys) <= known else None
    arrays = [item for item, _ in fields_of(request, version) if is_entity_array(item)]
    if len(site.arrays) > 1 or len(arrays) != 1:
        return None
    return site._replace(keys=keys_below(element_of(arrays[0]), version), by_position=True)


def _plain(keys: Iterable[Meaning]) -> frozenset[Meaning]:
    """Keys with name and id of a topic as one."""
    return frozenset(Meaning.TOPIC if key is Meaning.TOPIC_ID else key for key in keys)


@cache
def choose_site(
    api_key: int,
    version: int,
    selected: frozenset[Meaning],
    *,
    prefers_top: bool = True,
    whole: bool = False,
) -> ErrorSite | None:
    """The outermost place whose struct is about what a rule selects; None if there is none."""
    sites = error_sites(api_key, version)
    if whole and sites and not sites[0].arrays:
        return sites[0]
    request = registry.schema(api_key).request
    around = {key for item, key in fields_of(request, version) if not isinstance(item.kind, Array)}
    generic = keys_by_type(request, version)
    selected = frozenset(generic.get(key, key) for key in selected)
    wanted = _plain(selected) - _plain(key for key in around if key is not None)
    covering = [site for site in sites if wanted <= _plain(site.keys)] or list(sites)
    if not prefers_top:
        covering.sort(key=lambda site: not site.arrays)
    return covering[0] if covering else None


# The response -------------------------------------------------------------------------------------


def error_response(
    header: tuple[int, int],
    plan: ErrorPlan,
    code: int,
    response: Struct | None = None,
    *,
    is_complete: bool = False,
) -> Struct:
    """Return the response with the errors of a plan, instead of what it has of these entities.

    ``response`` is that to the whole request (``is_complete``) or to what was left of it.
    """
    api_key, version = header
    cls = registry.schema(api_key).response
    site = plan.site
    if not site.arrays:
        keys = plan.targets[0].keys if plan.targets else {}
        member = {Meaning.MEMBER: keys[Meaning.MEMBER]} if Meaning.MEMBER in keys else {}
        return _new(cls, version, FailedEntity(member, {}, 0), site, code)
    if response is None:
        response = cls()
    for target in plan.targets:
        if site.by_position:
            elements = getattr(response, site.arrays[0].name)
            end = target.position + is_complete
            elements[target.position : end] = [
                _new(element_of(site.arrays[0]), version, target, site, code)
            ]
        else:
            _place(response, site, version, target, code)
    return response


def _place(
    response: Struct, site: ErrorSite, version: int, target: FailedEntity, code: int
) -> None:
    struct = response
    *outer, innermost = site.arrays
    for array in outer:
        elements = getattr(struct, array.name)
        index = _index(elements, version, target)
        if index is None:
            elements.append(_new(element_of(array), version, target))
            index = -1
        struct = elements[index]
    elements = getattr(struct, innermost.name)
    failed = _new(element_of(innermost), version, target, site, code)
    index = _index(elements, version, target)
    if index is None:
        elements.append(failed)
    else:
        elements[index] = failed


def _index(elements: Sequence[Struct], version: int, target: FailedEntity) -> int | None:
    """The element that is about an entity."""
    for index, element in enumerate(elements):
        same = [
            frozen(getattr(element, item.name)) == target.keys[key]
            for item, key in fields_of(type(element), version)
            if key is not None and target.keys.get(key) is not None
        ]
        if same and all(same):
            return index
    return None


def _new(
    cls: type[Struct],
    version: int,
    target: FailedEntity,
    site: ErrorSite | None = None,
    code: int = ErrorCode.NONE,
) -> Struct:
    struct = cls()
    for item, key in fields_of(cls, version):
        if item.name in target.copied:
            setattr(struct, item.name, target.copied[item.name])
        elif key is not None and key in target.keys:
            setattr(struct, item.name, target.keys[key])
        elif site is not None and item.name == site.field:
            setattr(struct, item.name, int(code))
        elif site is not None and item.name == "records":
            struct.records = b""  # type: ignore[attr-defined]
        elif item.means in UNKNOWN_NUMBERS and getattr(struct, item.name) == 0:
            setattr(struct, item.name, -1)
    return struct


def error_owner(
    structs: Sequence[Struct], version: int, selected: frozenset[Meaning]
) -> tuple[Struct, str] | None:
    """The outermost of nested structs of a response that is about what a rule selects and has an
    error code, and its field.
    """
    wanted = _plain(selected)
    for struct in structs:
        fields = _fields(struct, version)
        wanted -= _plain(key for _, key in fields if key is not None)
        for item, _ in fields:
            if item.means is Meaning.ERROR and not wanted:
                return struct, item.name
    return None


def fail_everything(header: tuple[int, int], response: Struct, code: int) -> None:
    """Put an error into a response whose request named nothing, e.g. Metadata of all topics."""
    version = header[1]
    level = [response]
    while level:
        fields = [(item, struct) for struct in level for item, _ in _fields(struct, version)]
        errors = [(item.name, struct) for item, struct in fields if item.means is Meaning.ERROR]
        is_top = level == [response]
        if errors and not (is_top and header[0] in _ENTITY_ERRORS and code not in _TOP_ERRORS):
            for name, struct in errors:
                setattr(struct, name, int(code))
            return
        level = [
            element
            for struct in level
            for item, _ in _fields(struct, version)
            if is_entity_array(item)
            for element in getattr(struct, item.name) or ()
        ]


def _fields(struct: Struct, version: int) -> tuple[tuple[Field, Meaning | None], ...]:
    return fields_of(type(struct), version)


def remove_entities(request: Struct, found: Iterable[MessageEntity]) -> None:
    """Remove entities from a request, and the arrays around them that have become empty."""
    paths = sorted({entity.path for entity in found if entity.path}, reverse=True)
    for path in paths:
        structs: list[Any] = [request]
        for step in path[:-1]:
            structs.append(getattr(structs[-1], step.array)[step.position])
        for struct, step in zip(reversed(structs), reversed(path), strict=True):
            elements = getattr(struct, step.array)
            del elements[step.position]
            if elements:
                break
