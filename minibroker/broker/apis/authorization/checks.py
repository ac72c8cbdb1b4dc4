"""Checks requests against what their APIs require.

A check removes unauthorized items from a request. It returns a function that adds their errors to
the response, or the complete response if the whole request is denied. This module knows no API:
what a request names, and where an error goes, follows from the meanings in the schema. Invariant: a
resource that a request names twice is authorized once, and if the caller may not describe a
resource, the response does not reveal whether it exists. Kafka's class is ``AuthHelper``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.broker.apis.base import Context, Denied, Requires
from minibroker.broker.security.acl import (
    CLUSTER_NAME,
    SUPPORTED_OPERATIONS,
    Operation,
    Resource,
    operation_bits,
)
from minibroker_protocol import registry
from minibroker_protocol.entities import (
    array_about,
    error_element,
    error_response,
    generic_meaning,
    meaning_in,
    struct_in,
)
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.schema import Array, Field, Struct

T = TypeVar("T")

Finish = Callable[[Any], Any]
"""Turns an API's response into the one to send. Either is None if the API sends no response."""

AuthorizationCheck = Callable[[Context, Any], "Finish | Denied | None"]
"""Checks a request, and may remove items from it; None leaves the response as it is."""

ERRORS: Final[Mapping[Resource, ErrorCode]] = {
    Resource.TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    Resource.GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    Resource.CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    Resource.TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}

_RESOURCES: Final[Mapping[Meaning, Resource]] = {
    Meaning.TOPIC: Resource.TOPIC,
    Meaning.GROUP: Resource.GROUP,
    Meaning.TRANSACTIONAL_ID: Resource.TRANSACTIONAL_ID,
}


def check_requirements(
    ctx: Context, request: Any, requirements: Iterable[Requires]
) -> Finish | Denied | None:
    """Check a request against each requirement, in their order."""
    cls: type[Struct] = type(request)
    denied: list[_DeniedElements] = []
    for required in requirements:
        if required.or_cluster is not None and ctx.allows(
            required.or_cluster, Resource.CLUSTER, quietly=True
        ):
            continue
        place = place_of(cls, ctx.version, required.on)
        if place.array is not None:
            denied += _deny_elements(ctx, request, required, place, place.array)
            continue
        name = CLUSTER_NAME if place.field is None else getattr(request, place.field.name)
        assert place.resource is not None
        if name is not None and not ctx.allows(required.operation, place.resource, name):
            return Denied(_refuse(ctx, request, required, ERRORS[place.resource]))
    if not denied:
        return None

    def finish(response: Any) -> Any:
        if not getattr(response, "error_code", 0):
            for each in denied:
                getattr(response, each.array).extend(each.elements)
        return response

    return finish


class Place(NamedTuple):
    """Where a request names what an operation is on."""

    resource: Resource | None
    """The type of what is named; None if each element has a type."""
    field: Field | None
    """The field of the request or an element; None for the cluster, and if elements are names."""
    array: Field | None
    """The array of the request with the names; None if the request has one name."""


@cache
def place_of(cls: type[Struct], version: int, meaning: Meaning) -> Place:
    """Return where requests of a class name what a requirement is on."""
    if meaning is Meaning.CLUSTER:
        return Place(Resource.CLUSTER, None, None)
    resource = _RESOURCES.get(meaning)
    for item in _fields(cls, version):
        inner = struct_in(item)
        if generic_meaning(item) is meaning:
            is_array = isinstance(item.kind, Array)
            return Place(resource, None, item) if is_array else Place(resource, item, None)
        if isinstance(item.kind, Array) and inner is not None:
            named = _named(inner, version, meaning)
            if named is not None:
                return Place(resource, named, item)
    raise LookupError(f"{cls.__name__} of version {version} names no {meaning.value}")


@cache
def _named(cls: type[Struct], version: int, meaning: Meaning) -> Field | None:
    """The field of an element with a name, or with the id of a topic."""
    meanings = {meaning, Meaning.TOPIC_ID} if meaning is Meaning.TOPIC else {meaning}
    return next((item for item in _fields(cls, version) if generic_meaning(item) in meanings), None)


def _fields(cls: type[Struct], version: int) -> list[Field]:
    return [item for item in cls.__fields__ if item.versions.has(version)]


def _resource_of(ctx: Context, element: Any, place: Place) -> tuple[Resource, str | None]:
    """The type and the name of what an element of a request names."""
    resource, field, _ = place
    if field is None:
        assert resource is not None
        return resource, element
    value = getattr(element, field.name)
    if field.means is Meaning.TOPIC_ID:
        return Resource.TOPIC, ctx.image.topic_names.get(value)
    if resource is None:
        meaning = meaning_in(element, field)
        resource = None if meaning is None else _RESOURCES.get(meaning)
    return (Resource.CLUSTER, CLUSTER_NAME) if resource is None else (resource, value)


class _DeniedElements(NamedTuple):
    """Elements for an array of the response."""

    array: str
    elements: list[Any]


def _deny_elements(
    ctx: Context, request: Any, required: Requires, place: Place, array: Field
) -> list[_DeniedElements]:
    """Remove the denied elements of an array from a request, and return their errors."""
    permitted, denied = [], []
    known: dict[tuple[Resource, str | None], bool] = {}
    for element in getattr(request, array.name) or ():
        named = resource, name = _resource_of(ctx, element, place)
        is_repeated = named in known
        if not is_repeated:
            known[named] = name is None or ctx.allows(required.operation, resource, name)
        if known[named]:
            permitted.append(element)
        elif isinstance(element, Struct) or not is_repeated:
            denied.append((element, ERRORS[resource]))
    if not denied:
        return []
    setattr(request, array.name, permitted)
    about = array_about(registry.schema(ctx.header.api_key).response, ctx.version, array)
    assert about is not None
    elements = [
        error_element(about[1], ctx.version, element, error, required.text)
        for element, error in denied
    ]
    return [_DeniedElements(about[0], elements)]


def _refuse(ctx: Context, request: Any, required: Requires, error: ErrorCode) -> Any:
    if required.refusal is not None:
        return required.refusal(request, error)
    response = registry.schema(ctx.header.api_key).response
    return error_response(response, ctx.version, request, error, required.text)


# Parts of special checks --------------------------------------------------------------------------


def allowed(
    ctx: Context,
    operation: Operation,
    resource: Resource,
    items: Iterable[T],
    name: Callable[[T], str | None],
    *,
    quietly: bool = False,
) -> tuple[list[T], list[T]]:
    """Split items into authorized and denied ones; items without a name are authorized."""
    permitted, rejected = list[T](), list[T]()
    known: dict[str, bool] = {}
    for item in items:
        called = name(item)
        if called is None:
            permitted.append(item)
            continue
        if called not in known:
            known[called] = ctx.allows(operation, resource, called, quietly=quietly)
        (permitted if known[called] else rejected).append(item)
    return permitted, rejected


def authorized(ctx: Context, resource: Resource, name: str = CLUSTER_NAME) -> int:
    """Operations on a resource that the caller is authorized for, as a bit field."""
    may = (
        one
        for one in SUPPORTED_OPERATIONS[resource]
        if ctx.allows(one, resource, name, quietly=True)
    )
    return operation_bits(may)
