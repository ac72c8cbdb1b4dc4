"""Fault rules that were checked: which requests they can match, and what their texts mean.

Owns the validation of a rule beyond the types of its fields, and the lookup of APIs and errors. It
must never count or decide. Invariant: a rule that is accepted can fire; a field that would have no
effect is rejected by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Final, NamedTuple, TypeAlias

from minibroker.broker.settings.names import similar_names
from minibroker.lab.faults.actions import (
    ACTIONS,
    AFTER,
    CONNECTION_ACTIONS,
    COUNTS,
    ENTITY_FIELDS,
    MIDDLE,
    SELECTORS,
    STORAGE_ACTIONS,
    WHEN_FIELDS,
    place_of_action,
)
from minibroker.lab.faults.effects import effect_fault, field_versions, in_versions
from minibroker.lab.faults.fault_rule import RULES_MAX, FaultRule
from minibroker.lab.faults.points import POINTS, is_inside, selectors_of
from minibroker.lab.faults.response_fields import response_faults
from minibroker.lab.schema import SIMILARITY_MIN, Fault, InvalidJson
from minibroker_protocol import registry
from minibroker_protocol.entities import selectable
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey
from minibroker_protocol.types import uuid_from_text

_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
_ALWAYS: Final = frozenset({"action", "name"})
_BYTES_PARTS: Final = frozenset({"bit", "truncate"})

ServedVersions: TypeAlias = Mapping[int, tuple[int, int]]
"""The lowest and the highest served version of each API."""


class ActiveRule(NamedTuple):
    """A rule that is set, with its id; it travels to every process."""

    id: str
    rule: FaultRule
    slot: int = -1
    """The place of its counts in the file that processes share; negative if there is none."""
    added: float = 0.0
    """When it was added, in seconds of the broker's clock."""

    @property
    def place(self) -> str:
        """Where in the course of a request the action happens."""
        return place_of(self.rule)


def place_of(rule: FaultRule) -> str:
    """Where in the course of a request the action of a rule happens."""
    if rule.point is not None:
        return POINTS[rule.point].place
    return place_of_action(rule.action, rule.at)


def given_fields(rule: FaultRule) -> dict[str, Any]:
    """The fields of a rule that are set, without the action."""
    return {
        name: value
        for name, value in rule._asdict().items()
        if name != "action" and value is not None
    }


def check_rule(rule: FaultRule, served: ServedVersions) -> None:
    """Raise ``InvalidJson`` with all fields that make no sense; ``served`` are the served APIs."""
    faults = [*_field_faults(rule), *_value_faults(rule, served)]
    if not faults:
        faults = [*_api_faults(rule, served)]
    if faults:
        raise InvalidJson(faults)


# Checks -------------------------------------------------------------------------------------------


def _field_faults(rule: FaultRule) -> Iterator[Fault]:
    kind = ACTIONS[rule.action]
    given = given_fields(rule)
    for name in kind.needed:
        if name not in given:
            yield Fault(name, f"is missing: the action {rule.action} needs it")
    for name in given.keys() - _ALWAYS:
        if name in SELECTORS:
            yield from _selector_faults(rule, name)
        elif name not in WHEN_FIELDS and name not in kind.fields:
            yield Fault(name, f"does not belong to the action {rule.action}")
    if rule.at is not None and kind.places and rule.at not in kind.places:
        yield Fault("at", f"must be {' or '.join(kind.places)} for the action {rule.action}")
    if rule.at is not None and rule.point is not None:
        yield Fault("at", "has no effect at a hold point")
    counts = [name for name in COUNTS if name in given]
    for name in counts[1:]:
        yield Fault(name, f"excludes {counts[0]}")
    if rule.seed is not None and rule.probability is None:
        yield Fault("seed", "has no effect without probability")
    if rule.bytes is not None and not _uses_bytes(rule):
        yield Fault("bytes", "has no effect here")


def _selector_faults(rule: FaultRule, name: str) -> Iterator[Fault]:
    if name not in ACTIONS[rule.action].selectors:
        yield Fault(name, f"cannot select for the action {rule.action}")
    elif name not in (selectors_of(rule) or SELECTORS):
        yield Fault(name, f"cannot select at the point {rule.point}")


def _uses_bytes(rule: FaultRule) -> bool:
    if rule.action == "disconnect":
        return rule.at == MIDDLE
    if rule.action == "fail_append":
        return True
    return rule.part in _BYTES_PARTS


def _value_faults(rule: FaultRule, served: ServedVersions) -> Iterator[Fault]:
    if rule.name is not None and not _NAME.fullmatch(rule.name):
        yield Fault("name", "may have letters, digits, `.`, `_` and `-` only")
    if rule.name is not None and rule.name.isdecimal():
        yield Fault("name", "must not be a number: those are ids of rules without a name")
    if rule.api is not None and api_of(rule.api) is None:
        yield Fault("api", f"there is no API {rule.api!r}{_nearest(rule.api, ApiKey)}")
    elif rule.api is not None and api_of(rule.api) not in served:
        yield Fault("api", "is not served by this broker")
    if rule.error is not None and error_of(rule.error) is None:
        yield Fault("error", f"there is no error {rule.error!r}{_nearest(rule.error, ErrorCode)}")
    if rule.address is not None and network_of(rule.address) is None:
        yield Fault("address", "must be an IP address or a network")
    if rule.topic_id is not None:
        try:
            uuid_from_text(rule.topic_id)
        except ValueError:
            yield Fault("topic_id", "must be a topic id in base64url")
    if None not in (rule.version_min, rule.version_max) and rule.version_min > rule.version_max:  # type: ignore[operator]
        yield Fault("version_max", "must not be less than version_min")
    if rule.until_ms is not None and rule.until_ms <= (rule.after_ms or 0):
        yield Fault("until_ms", "must be greater than after_ms")
    yield from _idle_faults(rule)


def _idle_faults(rule: FaultRule) -> Iterator[Fault]:
    """Faults of values with which a rule never fires, or changes nothing when it does."""
    if rule.probability == 0:
        yield Fault("probability", "must be greater than 0, or the rule never fires")
    if rule.action == "close" and rule.after_ms:
        yield Fault("after_ms", "must not be set: close acts when the rule is added only")
    if rule.part == "truncate" and rule.bytes == 0:
        yield Fault("bytes", "must be at least 1, or nothing is cut")


def _api_faults(rule: FaultRule, served: ServedVersions) -> Iterator[Fault]:
    """Faults of fields whose meaning depends on the API."""
    key = None if rule.api is None else api_of(rule.api)
    if key is None:
        if rule.response is not None:
            yield Fault("api", "is missing: fields of a response depend on it")
        for name in ("version_min", "version_max"):
            if getattr(rule, name) is not None:
                yield Fault("api", f"is missing: {name} depends on it")
                return
        return
    low, high = served[key]
    if (rule.version_min or 0) > high:
        yield Fault("version_min", f"{key.name} is served in versions {low} to {high}")
        return
    if rule.version_max is not None and rule.version_max < low:
        yield Fault("version_max", f"{key.name} is served in versions {low} to {high}")
        return
    low = max(low, rule.version_min or 0)
    high = high if rule.version_max is None else min(high, rule.version_max)
    faults = [*_selection_faults(rule, key, range(low, high + 1))]
    if rule.response is not None:
        schema = registry.schema(key)
        faults += response_faults(schema.response, rule.response)
        faults = faults or [*_replacement_faults(rule, key, low, high)]
    yield from faults or _effect_faults(rule, key, range(low, high + 1))


def _selection_faults(rule: FaultRule, key: ApiKey, versions: Sequence[int]) -> Iterator[Fault]:
    """Faults of selectors of entities that no selected version has."""
    schema = registry.schema(key)
    known, ever = (selectable(schema.request, each) for each in (versions, None))
    for name, entity in ENTITY_FIELDS.items():
        if getattr(rule, name) is None or entity in known:
            continue
        if entity in ever:
            yield Fault(name, f"requests of {key.name} have no {name} in these versions")
        else:
            yield Fault(name, f"requests of {key.name} have no {name}")


def _replacement_faults(rule: FaultRule, key: ApiKey, low: int, high: int) -> Iterator[Fault]:
    """Faults of a replacement that replaces nothing in any selected version of the response."""
    if not rule.response and place_of(rule) == AFTER:
        yield Fault("response", "must have a field, or nothing is replaced")
    for name in rule.response or {}:
        versions = field_versions(registry.schema(key).response, name)
        if versions.high < low or versions.low > high:
            yield Fault(
                f"response.{name}", f"is in responses of {key.name} {in_versions(versions)}"
            )


def _effect_faults(rule: FaultRule, key: ApiKey, versions: Sequence[int]) -> Iterator[Fault]:
    """The fault of a rule that can change nothing in any selected version."""
    faults = [effect_fault(rule, key, version) for version in versions]
    if faults[-1] is not None and all(faults):
        yield faults[-1]


def _nearest(given: str, names: type[ApiKey | ErrorCode]) -> str:
    folded = {_folded(member.name): member.name for member in names}
    suggestions = similar_names(_folded(given), folded, count_max=1, similarity_min=SIMILARITY_MIN)
    return f"; did you mean {folded[suggestions[0]]!r}?" if suggestions else ""


# Meanings of texts --------------------------------------------------------------------------------


def _folded(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


@cache
def _by_name(names: type[ApiKey | ErrorCode]) -> Mapping[str, int]:
    return {_folded(member.name): int(member) for member in names}


def _number(text: str) -> int | None:
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and digits.isascii() and len(digits) < 6 else None


def api_of(text: str) -> ApiKey | None:
    """Return the API of a name in any spelling, or of a key."""
    number = _number(text)
    if number is None:
        number = _by_name(ApiKey).get(_folded(text))
    if number is None or number not in _by_name(ApiKey).values():
        return None
    return ApiKey(number)


def error_of(text: str) -> int | None:
    """Return the code of an error's name in any spelling, or of a number."""
    number = _number(text)
    if number is None:
        number = _by_name(ErrorCode).get(_folded(text))
    return number if number in _by_name(ErrorCode).values() else None


@lru_cache(RULES_MAX)
def network_of(text: str) -> IPv4Network | IPv6Network | None:
    """Return the network of an address or of a network."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


def is_in_network(address: str, text: str) -> bool:
    """Whether an address is in the network of a selector."""
    network = network_of(text)
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return network is not None and found.version == network.version and found in network


def is_about_requests(rule: FaultRule) -> bool:
    """Whether a rule is about requests, instead of connections or the inside of the broker."""
    others = CONNECTION_ACTIONS | STORAGE_ACTIONS
    return rule.action not in others and not is_inside(rule)


def selected_api(rule: FaultRule) -> ApiKey | None:
    """The API that a rule selects, by its name or by a hold point."""
    if rule.point is not None:
        return POINTS[rule.point].api
    return None if rule.api is None else api_of(rule.api)


def selected_keys(rule: FaultRule) -> frozenset[Meaning]:
    """The keys of the entities that a rule selects by."""
    return frozenset(key for name, key in ENTITY_FIELDS.items() if getattr(rule, name) is not None)
