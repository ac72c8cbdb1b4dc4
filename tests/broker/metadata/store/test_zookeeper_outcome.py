"""Whether a transaction without answer was executed, as the tree shows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from minibroker.broker.metadata.store.tree import Check, Create, Delete, Operation, Result, Set
from minibroker.broker.metadata.store.zookeeper_outcome import FoundNode, Tree, find_outcome

SINCE, SESSION = 100, 7
BEFORE, AFTER = 99, 101


def tree(nodes: dict[str, FoundNode]) -> Tree:
    async def look(path: str) -> FoundNode | None:
        return nodes.get(path)

    async def children(path: str) -> list[str]:
        start = path.rstrip("/") + "/"
        return [name.removeprefix(start) for name in nodes if name.startswith(start)]

    return Tree(look, children)


def node(data: bytes = b"x", *, version: int = 0, at: int = AFTER, owner: int = 0) -> FoundNode:
    return FoundNode(data, version, at, at, owner)


@pytest.mark.parametrize(
    ("operations", "nodes", "results"),
    [
        ([Create("/a", b"x")], {"/a": node()}, ["/a"]),
        ([Create("/a", b"x")], {}, None),
        ([Create("/a", b"x")], {"/a": node(at=BEFORE)}, None),
        ([Create("/a", b"x")], {"/a": node(b"another's")}, None),
        ([Create("/a", b"x", True)], {"/a": node(owner=SESSION)}, ["/a"]),
        ([Create("/a", b"x", True)], {"/a": node(owner=SESSION - 1)}, None),
        ([Set("/a", b"x", 3)], {"/a": node(version=4)}, [4]),
        ([Set("/a", b"x", 3)], {"/a": node(version=3, at=BEFORE)}, None),
        ([Set("/a", b"x"), Set("/a", b"y")], {"/a": node(b"y", version=5)}, [4, 5]),
        ([Delete("/a")], {}, [None]),
        ([Delete("/a")], {"/a": node(at=BEFORE)}, None),
        ([Delete("/a")], {"/a": node(b"made anew")}, [None]),
        ([Delete("/b"), Create("/a", b"x")], {}, None),
        ([Create("/a", b"x"), Delete("/b")], {"/a": node()}, ["/a", None]),
        ([Create("/a", b"y"), Set("/a", b"x")], {"/a": node(version=1)}, ["/a", 1]),
        ([Check("/a")], {"/a": node()}, None),
        ([Create("/q/n-", b"x", False, True)], {"/q/n-0000000003": node()}, ["/q/n-0000000003"]),
        ([Create("/q/n-", b"x", False, True)], {"/q/n-0000000003": node(at=BEFORE)}, None),
        ([Create("/q/n-", b"x", False, True)], {"/q/n-other": node()}, None),
    ],
)
async def test_unknown_outcome_is_inferred_from_nodes(
    operations: Sequence[Operation], nodes: dict[str, FoundNode], results: list[Result] | None
) -> None:
    found = await find_outcome(operations, tree(nodes), since=SINCE, session=SESSION)
    assert found == results
