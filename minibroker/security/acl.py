"""Access rules: who may do what to which resource, and what follows from all rules together.

Owns the vocabulary with Kafka's numbers, the matching of patterns, principals, hosts and
operations, and the decision; it must never know where rules are kept or what a request is.  The
invariant: a rule that denies wins over all that allow, and what no rule speaks of is denied but for
super users.  Echoes ``AclAuthorizer`` and ``StandardAuthorizerData``.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from minibroker.security.principal import Principal


class Operation(enum.IntEnum):
    """What can be done, with Kafka's numbers."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14


class Resource(enum.IntEnum):
    """Kinds of what it can be done to."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """How a pattern's name stands for names."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(enum.IntEnum):
    """What a rule says."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


WILDCARD: Final = "*"
ANYBODY: Final = "User:*"
"""In a rule: everybody, whatever kind of name they have."""
CLUSTER_NAME: Final = "kafka-cluster"

_DESCRIBING: Final = frozenset(
    {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
)
IMPLIES: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: _DESCRIBING,
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""The operations of which each may be allowed so that these are, too."""


class Pattern(NamedTuple):
    """Which resources rules are about."""

    resource: Resource
    name: str
    type: PatternType = PatternType.LITERAL

    def matches(self, name: str) -> bool:
        """Whether a resource of this name is one of them."""
        if self.type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class Rule(NamedTuple):
    """Who may, or may not, do what; the pattern that it belongs to says to which resources."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


Acls = Mapping[Pattern, tuple[Rule, ...]]
"""All rules by pattern."""


class Authorizer:
    """Decides by one set of rules."""

    def __init__(
        self, acls: Acls, super_users: Collection[Principal] = (), *, allow_if_none: bool = False
    ) -> None:
        self._acls = acls
        self._super_users = frozenset(super_users)
        self._allow_if_none = allow_if_none
        prefixes = [pattern for pattern in acls if pattern.type is PatternType.PREFIXED]
        self._lengths = {
            resource: sorted({len(one.name) for one in prefixes if one.resource is resource})
            for resource in Resource
        }
        """The lengths of the prefixes of each kind of resource."""

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource: Resource, name: str
    ) -> bool:
        """Whether somebody at a host may do it to one resource."""
        if principal in self._super_users:
            return True
        rules = [rule for found in self._found(resource, name) for rule in found]
        if not rules:
            return self._allow_if_none
        who, where = (str(principal), ANYBODY), _hosts(host)
        mine = [rule for rule in rules if rule.principal in who and rule.host in where]
        if any(_denies(rule, operation) for rule in mine):
            return False
        return any(_allows(rule, operation) for rule in mine)

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource: Resource
    ) -> bool:
        """Whether there could be a resource of a kind to which somebody may do it."""
        if principal in self._super_users:
            return True
        who, where = (str(principal), ANYBODY), _hosts(host)
        allowed, denied = list[Pattern](), list[Pattern]()
        for pattern, rules in self._acls.items():
            if pattern.resource is not resource:
                continue
            mine = [one for one in rules if one.principal in who and one.host in where]
            if any(_denies(rule, operation) for rule in mine):
                denied.append(pattern)
            if any(_allows(rule, operation) for rule in mine):
                allowed.append(pattern)
        if Pattern(resource, WILDCARD) in denied:
            return False
        if self._allow_if_none:
            return True
        return any(not _is_covered(pattern, denied) for pattern in allowed)

    def _found(self, resource: Resource, name: str) -> Iterator[tuple[Rule, ...]]:
        acls = self._acls
        for literal in dict.fromkeys((name, WILDCARD)):
            yield acls.get(Pattern(resource, literal), ())
        for length in self._lengths[resource]:
            if length > len(name):
                return
            yield acls.get(Pattern(resource, name[:length], PatternType.PREFIXED), ())


def _hosts(host: str) -> tuple[str, ...]:
    """How rules may write an address; of a long one Java knows the spelling without ``::`` only."""
    if ":" not in host:
        return host, WILDCARD
    numbers = ipaddress.IPv6Address(host).exploded.split(":")
    return host, ":".join(f"{int(number, 16):x}" for number in numbers), WILDCARD


def _denies(rule: Rule, operation: Operation) -> bool:
    is_meant = rule.operation in (operation, Operation.ALL)
    return rule.permission is Permission.DENY and is_meant


def _allows(rule: Rule, operation: Operation) -> bool:
    if rule.permission is not Permission.ALLOW:
        return False
    implying = IMPLIES.get(operation, (operation,))
    return rule.operation is Operation.ALL or rule.operation in implying


def _is_covered(allowed: Pattern, denied: Iterable[Pattern]) -> bool:
    """Whether all that one pattern stands for is denied."""
    for pattern in denied:
        if pattern.type is PatternType.PREFIXED:
            if allowed.name != WILDCARD and allowed.name.startswith(pattern.name):
                return True
        elif allowed == pattern:
            return True
    return False
