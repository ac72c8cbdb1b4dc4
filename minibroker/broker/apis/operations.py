"""Authorized operations as the bit fields of responses (KIP-430).

Defines the operations that each resource type supports; an `Authorizer` decides which of them are
authorized. Without one, all are. Invariant: bit n is the operation with Kafka's number n. In Kafka:
``AclEntry.supportedOperations``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from minibroker.broker.security.acl import Operation, Resource

SUPPORTED: Final = {
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


def bits(operations: Iterable[Operation]) -> int:
    """Operations as a bit field."""
    return sum(1 << operation for operation in operations)


NOT_ASKED: Final = -0x80000000
"""Value of the field if the request does not ask for operations."""

TOPIC_OPERATIONS: Final = bits(SUPPORTED[Resource.TOPIC])
GROUP_OPERATIONS: Final = bits(SUPPORTED[Resource.GROUP])
CLUSTER_OPERATIONS: Final = bits(SUPPORTED[Resource.CLUSTER])
