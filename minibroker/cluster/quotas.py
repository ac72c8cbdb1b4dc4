"""The rules for client quotas: who may have which, and whom a filter finds.

Owns the entities that can have quotas, the checks of their names and values, and the match types;
it must never look up a host or know a message.  The invariant: a quota that was accepted can be
found by the filter that names its entity.  Echoes Kafka's ``ClientQuotaControlManager`` and
``ClientQuotasImage``, but that a rate of zero, which shuts an address out, is allowed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from minibroker.cluster.configs import CONNECTION_CREATION_RATE
from minibroker.cluster.image import EMPTY, IP, ConfigChanged, Image
from minibroker.cluster.topics import Refusal
from minibroker.config.dynamic import DEFAULT_NAME
from minibroker.config.types import INT_MAX
from protocol.errors import ErrorCode

IP_TYPE = "ip"
TYPES = (IP_TYPE, "user", "client-id")
"""The types of entities that Kafka knows; only addresses have quotas here."""

_FRACTION_MAX = 1e-6


class Match(enum.IntEnum):
    """How a filter's component matches, with Kafka's numbers."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class Component(NamedTuple):
    """One part of a filter; ``match_type`` is what somebody sent, which may be no `Match`."""

    entity_type: str
    match_type: int
    match: str | None = None


class QuotaChange(NamedTuple):
    """What somebody wants of one entity: parts are (type, name), a default has no name.

    Operations are (key, value), with None to remove it.
    """

    entity: tuple[tuple[str, str | None], ...]
    operations: tuple[tuple[str, float | None], ...]


def plan_change(
    image: Image, wanted: QuotaChange, unresolvable: Collection[str]
) -> ConfigChanged | Refusal:
    """What an entity has from now on, or why nothing changes.

    ``unresolvable`` are the names in it that stand for no address.
    """
    problem = _entity_problem(wanted.entity)
    if problem is not None:
        return Refusal(ErrorCode.INVALID_REQUEST, problem)
    types = {entity_type for entity_type, _ in wanted.entity}
    if types != {IP_TYPE}:
        text = "Quotas of users and clients are not served yet; those of the type ip are."
        return Refusal(ErrorCode.UNSUPPORTED_VERSION, text)
    [(_, name)] = wanted.entity
    if name in unresolvable:
        text = f"{name} is not a valid IP or resolvable host."
        return Refusal(ErrorCode.INVALID_REQUEST, text)
    key = (IP, DEFAULT_NAME if name is None else name)
    config = dict(image.configs.get(key, EMPTY))
    seen: set[str] = set()
    for quota, value in wanted.operations:
        problem = f"Duplicate quota key {quota}" if quota in seen else _value_problem(quota, value)
        if problem is not None:
            return Refusal(ErrorCode.INVALID_REQUEST, problem)
        seen.add(quota)
        if value is None:
            config.pop(quota, None)
        else:
            config[quota] = str(round(value))
    return ConfigChanged(*key, config)


def _entity_problem(entity: Sequence[tuple[str, str | None]]) -> str | None:
    if not entity:
        return "Invalid empty client quota entity"
    types: set[str] = set()
    for entity_type, name in entity:
        if entity_type in types:
            return f"Invalid client quota entity, duplicate entity entry {entity_type}"
        if entity_type not in TYPES:
            return f"Unhandled client quota entity type: {entity_type}"
        if name == "":
            return f"Empty {entity_type} not supported"
        if name == DEFAULT_NAME or (name is not None and "/" in name):
            return f"The name {name} cannot be that of an entity"
        types.add(entity_type)
    if IP_TYPE in types and len(types) > 1:
        return "Invalid quota entity combination, ip cannot be combined with user or client-id"
    return None


def _value_problem(quota: str, value: float | None) -> str | None:
    if value is None:
        return None
    if quota != CONNECTION_CREATION_RATE:
        return f"Invalid configuration key {quota}"
    if not math.isfinite(value) or value < 0:
        return f"Quota {quota} must be 0 or more"
    if value > INT_MAX:
        return f"Proposed value for {quota} is too large for an INT."
    if abs(value - round(value)) > _FRACTION_MAX:
        return f"{quota} cannot be a fractional value."
    return None


def filter_problem(components: Sequence[Component]) -> Refusal | None:
    """Why a filter is none, or None if it is one."""
    types: set[str] = set()
    for entity_type, match_type, match in components:
        if not entity_type:
            return Refusal(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if entity_type in types:
            text = f"Entity type {entity_type} cannot appear more than once in the filter."
            return Refusal(ErrorCode.INVALID_REQUEST, text)
        if entity_type not in TYPES:
            text = f"Unsupported entity type {entity_type}"
            return Refusal(ErrorCode.UNSUPPORTED_VERSION, text)
        problem = _match_problem(match_type, match)
        if problem is not None:
            return Refusal(ErrorCode.INVALID_REQUEST, problem)
        types.add(entity_type)
    if IP_TYPE in types and len(types) > 1:
        text = "Invalid entity filter component combination: ip cannot stand with user or client-id"
        return Refusal(ErrorCode.INVALID_REQUEST, text)
    return None


def _match_problem(match_type: int, match: str | None) -> str | None:
    if match_type not in list(Match):
        return f"Unknown match type {match_type}"
    if match_type == Match.EXACT and match is None:
        return "Request specified MATCH_TYPE_EXACT, but set match string to null."
    if match_type != Match.EXACT and match is not None:
        name = Match(match_type).name
        return f"Request specified MATCH_TYPE_{name}, but also specified a match string."
    return None


def find(
    image: Image, components: Sequence[Component], *, strict: bool
) -> Iterator[tuple[str | None, Mapping[str, float]]]:
    """The addresses that a filter finds (None is the default), by name, with their quotas.

    A strict filter finds the entities that have exactly its types; any other those that have them
    at least, which is everything if it has none.
    """
    types = {component.entity_type for component in components}
    if types - {IP_TYPE} or (strict and not types):
        return
    for (kind, name), config in sorted(image.configs.items(), key=lambda entry: entry[0]):
        if kind != IP or not all(_matches(component, name) for component in components):
            continue
        yield (
            None if name == DEFAULT_NAME else name,
            {quota: float(text) for quota, text in config.items()},
        )


def _matches(component: Component, name: str) -> bool:
    if component.match_type == Match.EXACT:
        return component.match == name != DEFAULT_NAME
    return component.match_type == Match.SPECIFIED or name == DEFAULT_NAME
