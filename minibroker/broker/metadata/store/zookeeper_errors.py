"""Maps ZooKeeper's errors to the store's.

Owns the table, and the choice of the operation that a transaction failed for. It must never know
how an error is handled. Invariant: every error of a server becomes a `StoreError` with its path,
except for `CONNECTION_ERRORS`, whose outcome is unknown. ZooKeeper's ``KeeperException.Code``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kazoo import exceptions as zk

from minibroker.broker.metadata.store.tree import (
    BadPathError,
    BadVersionError,
    Create,
    EphemeralParentError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    StoreError,
    parent_of,
)

CONNECTION_ERRORS: Final = (
    zk.ConnectionLoss,
    zk.SessionExpiredError,  # kazoo's ConnectionClosedError is one too
    zk.SessionMovedError,
    zk.OperationTimeoutError,
)
"""The server may or may not have executed the operation."""

_ROLLED_BACK: Final = (zk.RolledBackError, zk.RuntimeInconsistency)
"""Results of operations in a failed transaction that did not cause the failure."""


def failed_operation_error(
    operations: Sequence[Operation], answers: Sequence[Any]
) -> StoreError | None:
    """Return the error of the operation that failed a transaction; None if it succeeded."""
    wrong = [
        (isinstance(answer, _ROLLED_BACK), number)
        for number, answer in enumerate(answers)
        if isinstance(answer, Exception)
    ]
    if not wrong:
        return None
    _, number = min(wrong)
    operation, error = operations[number], answers[number]
    path = operation.path
    if isinstance(operation, Create) and not isinstance(error, zk.NodeExistsError):
        path = parent_of(path)
    return to_store_error(error, path)


_ERRORS: Final[dict[type[Exception], tuple[type[StoreError], str]]] = {
    zk.NoNodeError: (NoNodeError, "does not exist"),
    zk.NodeExistsError: (NodeExistsError, "exists already"),
    zk.BadVersionError: (BadVersionError, "has another version"),
    zk.NotEmptyError: (NotEmptyError, "has children"),
    zk.NoChildrenForEphemeralsError: (
        EphemeralParentError,
        "is ephemeral and can have no children",
    ),
    zk.BadArgumentsError: (BadPathError, "is no path for ZooKeeper"),
    zk.NoAuthError: (
        StoreError,
        "ZooKeeper denied access; check zookeeper.digest.username and its password",
    ),
    zk.InvalidACLError: (
        StoreError,
        "this connection has no ZooKeeper identity, so zookeeper.set.acl can't protect it",
    ),
    zk.UnimplementedError: (StoreError, "this ZooKeeper is too old; 3.6 or newer is needed"),
}


def to_store_error(error: Exception, path: str) -> StoreError:
    """Convert the error of an operation on ``path``."""
    kind, text = _ERRORS.get(type(error), (StoreError, f"ZooKeeper answered {error!r}"))
    return kind(path, text)
