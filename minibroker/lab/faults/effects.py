"""Whether a rule can change anything for an API and version.

Owns what each action needs of a response. It must never know a request or a connection. Invariant:
a rule for which `effect_fault` has a fault would leave each response of that version as it is, and
delay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Final

from minibroker.lab.faults.actions import AFTER, CRC, TAGGED_FIELD, place_of_action
from minibroker.lab.faults.fault_rule import FaultRule
from minibroker.lab.faults.response_fields import can_encode
from minibroker.lab.schema import Fault
from minibroker_protocol import registry
from minibroker_protocol.entities import element_of, fields_of, is_entity_array
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.registry import ApiKey, ApiSchema
from minibroker_protocol.schema import HIGHEST_VERSION, NO_VERSIONS, Struct, Versions


def effect_fault(rule: FaultRule, api_key: int, version: int) -> Fault | None:
    """Say why a rule would change nothing for an API and version; None if it can."""
    check = _CHECKS.get(rule.action)
    return None if check is None else check(rule, registry.schema(api_key), version)


@cache
def field_versions(cls: type[Struct], name: str) -> Versions:
    """The versions of a message that have a field."""
    found = (item.versions for item in cls.__fields__ if item.name == name)
    return next(found, NO_VERSIONS)


def in_versions(versions: Versions) -> str:
    """Versions as the end of a sentence."""
    if versions == NO_VERSIONS:
        return "in no version"
    if versions.high == HIGHEST_VERSION:
        return f"from version {versions.low} on"
    return f"in versions {versions}"


def _throttle_fault(rule: FaultRule, schema: ApiSchema, version: int) -> Fault | None:
    versions = registry.throttle_versions(schema.key)
    name = schema.key.name
    if versions == NO_VERSIONS:
        return Fault(
            "api", f"responses of {name} have no throttle time; the action delay can delay them"
        )
    if rule.mute is False and not versions.has(version):
        return Fault(
            "mute",
            f"has no effect: responses of {name} have a throttle time {in_versions(versions)}; "
            "select those by version_min, or let the connection be muted",
        )
    return None


def _corrupt_fault(rule: FaultRule, schema: ApiSchema, version: int) -> Fault | None:
    if rule.part == CRC and schema.key != ApiKey.FETCH:
        return Fault("part", "only responses of FETCH have record batches")
    versions = schema.response.__flexible__
    if rule.part == TAGGED_FIELD and not versions.has(version):
        return Fault(
            "part",
            f"responses of {schema.key.name} have tagged fields {in_versions(versions)}; "
            "use another part or other versions",
        )
    return None


def _replace_fault(rule: FaultRule, schema: ApiSchema, version: int) -> Fault | None:
    fields = rule.response or {}
    if place_of_action(rule.action, rule.at) == AFTER:
        known = {name: field_versions(schema.response, name) for name in fields}
        if not any(each.has(version) for each in known.values()):
            first = next(iter(known))
            return Fault(
                f"response.{first}",
                f"is in responses of {schema.key.name} {in_versions(known[first])}",
            )
    if not can_encode(schema.response, fields, version):
        return Fault(
            "response", f"cannot be encoded in version {version} of {schema.key.name}; change it"
        )
    return None


def _error_fault(rule: FaultRule, schema: ApiSchema, version: int) -> Fault | None:
    del rule
    if _has_error(schema.response, version):
        return None
    name = schema.key.name
    return Fault("api", f"responses of {name} have no error code; use disconnect or never_answer")


@cache
def _has_error(cls: type[Struct], version: int) -> bool:
    fields = fields_of(cls, version)
    return any(item.means is Meaning.ERROR for item, _ in fields) or any(
        is_entity_array(item) and _has_error(element_of(item), version) for item, _ in fields
    )


_CHECKS: Final[Mapping[str, Callable[[FaultRule, ApiSchema, int], Fault | None]]] = {
    "throttle": _throttle_fault,
    "corrupt": _corrupt_fault,
    "replace": _replace_fault,
    "error": _error_fault,
}
