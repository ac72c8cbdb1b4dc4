"""Rules for ACLs: which may be created, what a filter matches, and what remains.

Owns the validation of requests and the text of each rejection; the meaning of ACLs is in
``security.acl``. Invariant: an accepted ACL is matched by the filter that repeats it. Kafka's
``AclControlManager`` and ``AclBindingFilter``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from minibroker.broker.metadata.image import AclsChanged, ChangeRejected, Image, Plan, plan_of
from minibroker.broker.security.acl import (
    CLUSTER_NAME,
    WILDCARD,
    AclRule,
    Acls,
    Operation,
    Pattern,
    PatternType,
    Permission,
    Resource,
)
from minibroker.broker.security.principal import BadPrincipal, parse
from minibroker_protocol.errors import ErrorCode

_NO_FILTER: Final = ChangeRejected(
    ErrorCode.INVALID_REQUEST, "The filter has an element that is not known."
)


MatchingAcls = list[tuple[Pattern, AclRule]]
"""The ACLs that a filter matches."""


class Binding(NamedTuple):
    """An ACL as requested; its numbers may be invalid."""

    resource: int
    name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class Filter(NamedTuple):
    """Conditions on ACLs; null means any."""

    resource: int
    name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int


def as_filter(message: Any, resource_type: int) -> Filter:
    """The filter of a request, or of one of its elements."""
    return Filter(
        resource_type,
        message.resource_name_filter,
        message.pattern_type_filter,
        message.principal_filter,
        message.host_filter,
        message.operation,
        message.permission_type,
    )


def check_binding(wanted: Binding) -> tuple[Pattern, AclRule] | ChangeRejected:
    """Return the pattern and the rule of a valid ACL, or the reason why it is invalid."""
    problem = _problem(wanted)
    if problem is not None:
        return ChangeRejected(ErrorCode.INVALID_REQUEST, problem)
    pattern = Pattern(Resource(wanted.resource), wanted.name, PatternType(wanted.pattern_type))
    rule = AclRule(
        str(parse(wanted.principal)),
        wanted.host,
        Operation(wanted.operation),
        Permission(wanted.permission),
    )
    return pattern, rule


def _problem(wanted: Binding) -> str | None:
    known = (
        ("resourceType", wanted.resource, list(Resource)[2:]),
        ("patternType", wanted.pattern_type, [PatternType.LITERAL, PatternType.PREFIXED]),
        ("operation", wanted.operation, list(Operation)[2:]),
        ("permissionType", wanted.permission, [Permission.DENY, Permission.ALLOW]),
    )
    for what, value, allowed in known:
        if value not in allowed:
            return f"Invalid {what} {value}"
    if not wanted.name or not wanted.host:
        return f"{'Host' if wanted.name else 'Resource name'} should not be empty"
    if wanted.resource == Resource.CLUSTER and wanted.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    try:
        parse(wanted.principal)
    except BadPrincipal as bad:
        return f"Could not parse principal: {bad}"
    return None


def plan_acl_creation(
    image: Image, wanted: Sequence[Binding]
) -> Plan[tuple[ChangeRejected | None, ...]]:
    """Plan the new ACLs of each pattern; answer with the rejection of each ACL."""
    plans: list[AclsChanged | ChangeRejected] = []
    after: dict[Pattern, tuple[AclRule, ...]] = {}
    for one in wanted:
        checked = check_binding(one)
        if isinstance(checked, ChangeRejected):
            plans.append(checked)
            continue
        pattern, rule = checked
        rules = after.get(pattern, image.acls.get(pattern, ()))
        after[pattern] = rules if rule in rules else (*rules, rule)
        plans.append(AclsChanged(pattern, after[pattern]))
    return plan_of(plans)


def check_search(wanted: Filter) -> ChangeRejected | None:
    """Return why a filter for a search is invalid, or None if it is valid.

    Numbers that only newer clients know are valid and match nothing.
    """
    numbers = (wanted.resource, wanted.pattern_type, wanted.operation, wanted.permission)
    return None if all(numbers) else _NO_FILTER


def check_filter(wanted: Filter) -> ChangeRejected | None:
    """Return why a filter for a deletion is invalid, or None if it is valid."""
    known = (
        (wanted.resource, Resource),
        (wanted.pattern_type, PatternType),
        (wanted.operation, Operation),
        (wanted.permission, Permission),
    )
    if all(value and value in list(kind) for value, kind in known):
        return None
    return _NO_FILTER


def find(acls: Acls, wanted: Filter) -> Iterator[tuple[Pattern, AclRule]]:
    """Yield the ACLs that match a filter, sorted by pattern."""
    for pattern, rules in sorted(acls.items()):
        if _matches_pattern(pattern, wanted):
            for rule in rules:
                if _matches_rule(rule, wanted):
                    yield pattern, rule


def _matches_pattern(pattern: Pattern, wanted: Filter) -> bool:
    if wanted.resource not in (Resource.ANY, pattern.resource):
        return False
    any_or_match = (PatternType.ANY, PatternType.MATCH)
    if wanted.pattern_type not in (*any_or_match, pattern.type):
        return False
    if wanted.name is None or pattern.name == wanted.name:
        return True
    return wanted.pattern_type == PatternType.MATCH and (
        pattern.matches(wanted.name) if wanted.name != WILDCARD else False
    )


def _matches_rule(rule: AclRule, wanted: Filter) -> bool:
    return (
        wanted.principal in (None, rule.principal)
        and wanted.host in (None, rule.host)
        and wanted.operation in (Operation.ANY, rule.operation)
        and wanted.permission in (Permission.ANY, rule.permission)
    )


def plan_acl_deletion(
    image: Image, wanted: Sequence[Filter]
) -> Plan[list[MatchingAcls | ChangeRejected]]:
    """Plan the new ACLs of the patterns; answer with what each filter matches, or its rejection."""
    answers: list[MatchingAcls | ChangeRejected] = []
    deleted: dict[Pattern, set[AclRule]] = {}
    for one in wanted:
        found = check_filter(one) or list(find(image.acls, one))
        answers.append(found)
        if not isinstance(found, ChangeRejected):
            for pattern, rule in found:
                deleted.setdefault(pattern, set()).add(rule)
    changes = [
        AclsChanged(pattern, tuple(rule for rule in image.acls[pattern] if rule not in rules))
        for pattern, rules in deleted.items()
    ]
    return Plan(answers, changes)


def differing_acls(
    image: Image, stored: Mapping[Pattern, tuple[AclRule, ...]]
) -> list[AclsChanged]:
    """Return the stored ACLs of patterns that differ from the image."""
    return [
        AclsChanged(pattern, rules)
        for pattern, rules in stored.items()
        if set(rules) != set(image.acls.get(pattern, ()))
    ]
