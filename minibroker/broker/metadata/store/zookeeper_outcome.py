"""Determines from the tree whether a transaction was executed whose answer was lost.

Owns the conclusions. It must never write, or know how a node is read. Invariant: a transaction is
atomic, so one node that only it can have written proves that it was executed, and one without any
effect may be sent again. Kafka's ``KafkaZkClient`` does the same for nodes with versions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from minibroker.broker.metadata.store.tree import (
    Check,
    Create,
    Delete,
    Operation,
    Result,
    Set,
    parent_of,
)


class FoundNode(NamedTuple):
    """A node, with the numbers of the transactions that created it and last set its data.

    ``owner`` is the session that an ephemeral node belongs to, 0 for others.
    """

    data: bytes
    version: int
    created_by: int
    set_by: int
    owner: int


class Tree(NamedTuple):
    """Reads one node (None if it does not exist), and the names of its children."""

    look: Callable[[str], Awaitable[FoundNode | None]]
    children: Callable[[str], Awaitable[list[str]]]


async def find_outcome(
    operations: Sequence[Operation], tree: Tree, *, since: int, session: int
) -> list[Result] | None:
    """The results of operations sent when ``since`` was the newest transaction known; None if
    they were not done.

    ``session`` is ours now: ephemeral nodes of an earlier one are about to go.
    """
    results: list[Result] = []
    proven = False
    gone = True
    for number, operation in enumerate(operations):
        match operation:
            case Create(path, data, ephemeral, True):
                name = await _numbered(path, data, tree, since, session if ephemeral else 0)
                proven |= name is not None
                gone = False
                results.append(name or path)
            case Create(path, data, ephemeral):
                node = await tree.look(path)
                proven |= (
                    node is not None
                    and node.created_by > since
                    and (node.data == data or _sets_after(operations, number) > 0)
                    and node.owner == (session if ephemeral else 0)
                )
                gone &= node is None and _deletes_after(operations, number)
                results.append(path)
            case Set(path, data):
                node, later = await tree.look(path), _sets_after(operations, number)
                if node is not None:
                    proven |= node.set_by > since and (node.data == data or later > 0)
                gone &= node is None and _deletes_after(operations, number)
                results.append(0 if node is None else node.version - later)
            case Delete(path):
                node = await tree.look(path)
                gone &= node is None or node.created_by > since
                results.append(None)
            case Check():
                results.append(None)
    only_checks = all(isinstance(operation, Check) for operation in operations)
    return results if (proven or gone) and not only_checks else None


def _sets_after(operations: Sequence[Operation], number: int) -> int:
    path = operations[number].path
    return sum(isinstance(op, Set) and op.path == path for op in operations[number + 1 :])


def _deletes_after(operations: Sequence[Operation], number: int) -> bool:
    path = operations[number].path
    return any(isinstance(op, Delete) and op.path == path for op in operations[number + 1 :])


async def _numbered(path: str, data: bytes, tree: Tree, since: int, owner: int) -> str | None:
    """Find the sequential node that only this operation can have created."""
    parent, _, start = path.rpartition("/")
    for name in await tree.children(parent_of(path)):
        if name.startswith(start) and name.removeprefix(start).isdigit():
            node = await tree.look(f"{parent}/{name}")
            ours = node is not None and (node.data, node.owner) == (data, owner)
            if node is not None and ours and node.created_by > since:
                return f"{parent}/{name}"
    return None
