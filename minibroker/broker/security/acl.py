"""Access control lists: which principals may perform which operations on which resources.

Owns operations and resources with Kafka's numbers, the matching of patterns, principals, hosts and
operations, and the decision. It must never know where ACLs are stored or what a request is.
Invariant: DENY takes precedence over ALLOW, and without a matching ACL only super users are
allowed. Kafka's ``AclAuthorizer`` and ``StandardAuthorizerData``.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from minibroker.broker.security.principal import Principal


class Operation(enum.IntEnum):
    """Operations, with Kafka's numbers."""

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
    """Types of resources."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """How the name of a pattern matches resource names."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(enum.IntEnum):
    """The effect of an ACL."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


WILDCARD: Final = "*"
ANYBODY: Final = "User:*"
"""In an ACL: every principal, of any type."""
CLUSTER_NAME: Final = "kafka-cluster"

_DESCRIBING: Final = frozenset(
    {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
)
IMPLIES: Final[Mapping[Operation, frozenset[Operation]]] = {
    Operation.DESCRIBE: _DESCRIBING,
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS}),
}
"""Operations that are implied by others: any of these is sufficient."""


class Pattern(NamedTuple):
    """The resources that an ACL applies to."""

    resource: Resource
    name: str
    type: PatternType = PatternType.LITERAL

    def matches(self, name: str) -> bool:
        """Whether a resource name matches the pattern."""
        if self.type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (name, WILDCARD)


class AclRule(NamedTuple):
    """One ACL, without its pattern."""

    principal: str
    host: str
    operation: Operation
    permission: Permission


Acls = Mapping[Pattern, tuple[AclRule, ...]]
"""All ACLs by pattern."""


DESCRIBERS_MAX: Final = 100
"""Principals at hosts whose topics an authorizer keeps."""


class Authorizer:
    """Decides by one set of ACLs."""

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
        """Lengths of the prefixes by resource type."""
        self._topics: dict[tuple[Principal, str], tuple[Collection[str], frozenset[str]]] = {}
        """Topics, and those of them that a principal at a host may describe."""

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource: Resource, name: str
    ) -> bool:
        """Whether a principal at a host may perform an operation on one resource."""
        if principal in self._super_users:
            return True
        rules = [rule for found in self._found(resource, name) for rule in found]
        if not rules:
            return self._allow_if_none
        who, where = (str(principal), ANYBODY), _hosts(host)
        matching = [rule for rule in rules if rule.principal in who and rule.host in where]
        if any(_denies(rule, operation) for rule in matching):
            return False
        return any(_allows(rule, operation) for rule in matching)

    def described_topics(
        self, principal: Principal, host: str, topics: Collection[str]
    ) -> frozenset[str]:
        """Topics that a principal at a host may describe; found once for topics that stay."""
        known = self._topics.get((principal, host))
        if known is None or known[0] is not topics:
            if len(self._topics) >= DESCRIBERS_MAX:
                self._topics.clear()
            allows = partial(self.allows, principal, host, Operation.DESCRIBE, Resource.TOPIC)
            known = self._topics[principal, host] = topics, frozenset(filter(allows, topics))
        return known[1]

    def allows_any(
        self, principal: Principal, host: str, operation: Operation, resource: Resource
    ) -> bool:
        """Whether the principal may perform the operation on any resource of the type."""
        if principal in self._super_users:
            return True
        who, where = (str(principal), ANYBODY), _hosts(host)
        allowed, denied = list[Pattern](), list[Pattern]()
        for pattern, rules in self._acls.items():
            if pattern.resource is not resource:
                continue
            matching = [one for one in rules if one.principal in who and one.host in where]
            if any(_denies(rule, operation) for rule in matching):
                denied.append(pattern)
            if any(_allows(rule, operation) for rule in matching):
                allowed.append(pattern)
        if Pattern(resource, WILDCARD) in denied:
            return False
        if self._allow_if_none:
            return True
        return any(not _is_covered(pattern, denied) for pattern in allowed)

    def _found(self, resource: Resource, name: str) -> Iterator[tuple[AclRule, ...]]:
        acls = self._acls
        for literal in dict.fromkeys((name, WILDCARD)):
            yield acls.get(Pattern(resource, literal), ())
        for length in self._lengths[resource]:
            if length > len(name):
                return
            yield acls.get(Pattern(resource, name[:length], PatternType.PREFIXED), ())


def _hosts(host: str) -> tuple[str, ...]:
    """Return the spellings of an address in ACLs; Java writes long IPv6 addresses without
    ``::``.
    """
    if ":" not in host:
        return host, WILDCARD
    numbers = ipaddress.IPv6Address(host).exploded.split(":")
    return host, ":".join(f"{int(number, 16):x}" for number in numbers), WILDCARD


def _denies(rule: AclRule, operation: Operation) -> bool:
    applies = rule.operation in (operation, Operation.ALL)
    return rule.permission is Permission.DENY and applies


def _allows(rule: AclRule, operation: Operation) -> bool:
    if rule.permission is not Permission.ALLOW:
        return False
    implying = IMPLIES.get(operation, (operation,))
    return rule.operation is Operation.ALL or rule.operation in implying


def _is_covered(allowed: Pattern, denied: Iterable[Pattern]) -> bool:
    """Whether all resources of a pattern are denied."""
    for pattern in denied:
        if pattern.type is PatternType.PREFIXED:
            if allowed.name != WILDCARD and allowed.name.startswith(pattern.name):
                return True
        elif allowed == pattern:
            return True
    return False


# Authorized operations ----------------------------------------------------------------------------
#
# They are bit fields of responses (KIP-430): bit n is the operation with Kafka's number n. In
# Kafka: ``AclEntry.supportedOperations``.

SUPPORTED_OPERATIONS: Final = {
    Resource.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.GROUP: (
        Operation.READ,
        Operation.DESCRIBE,
        Operation.DELETE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    Resource.CLUSTER: (
        Operation.CREATE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
        Operation.ALTER,
        Operation.DESCRIBE,
    ),
}
"""Supported operations of each resource type."""


def operation_bits(operations: Iterable[Operation]) -> int:
    """Operations as a bit field."""
    return sum(1 << operation for operation in operations)


OPERATIONS_NOT_ASKED: Final = -0x80000000
"""Value of the field if the request does not ask for operations."""

TOPIC_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[Resource.TOPIC])
GROUP_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[Resource.GROUP])
CLUSTER_OPERATIONS: Final = operation_bits(SUPPORTED_OPERATIONS[Resource.CLUSTER])
