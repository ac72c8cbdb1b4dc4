"""What a caller may do, as the bit fields that responses carry (KIP-430).

Owns the operations that make sense for each kind of resource; who may do which of them is an
`Authorizer`'s to know, without which everybody may do everything.  The invariant: bit n stands for
the operation that Kafka numbers n.  Echoes ``AclEntry.supportedOperations``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from minibroker.security.acl import Operation, Resource

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
"""What can be done to each kind of resource."""


def bits(operations: Iterable[Operation]) -> int:
    """Operations as one number."""
    return sum(1 << operation for operation in operations)


NOT_ASKED: Final = -0x80000000
"""What a field holds when the request did not ask for operations."""

TOPIC_OPERATIONS: Final = bits(SUPPORTED[Resource.TOPIC])
GROUP_OPERATIONS: Final = bits(SUPPORTED[Resource.GROUP])
CLUSTER_OPERATIONS: Final = bits(SUPPORTED[Resource.CLUSTER])
