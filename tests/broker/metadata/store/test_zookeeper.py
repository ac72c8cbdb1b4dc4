"""The ZooKeeper store without a server; with a server, see ``system_tests/zookeeper``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from minibroker.broker.metadata.store.tree import (
    NODE_MAX_BYTES,
    Check,
    Create,
    Delete,
    Operation,
    Result,
    Set,
    StoreError,
    TooLargeError,
)
from minibroker.broker.metadata.store.zookeeper import FoundNode, Tree, ZooKeeperStore, find_outcome
from minibroker.broker.metadata.store.zookeeper_client import ZooKeeperAccess, save_session
from minibroker.broker.settings.setting import parse_connect_string

NOBODY = ZooKeeperAccess(parse_connect_string("127.0.0.1:1"), 5.0, 0.2)


async def test_open_fails_at_its_timeout(tmp_path: Path) -> None:
    threads = threading.active_count()
    save_session(tmp_path / "session", (7, b"p" * 16))
    with pytest.raises(StoreError, match=r"no ZooKeeper answered at 127\.0\.0\.1:1 for"):
        await ZooKeeperStore.open(NOBODY, tmp_path / "session")
    assert threading.active_count() <= threads + 1  # trio keeps one for its next call


async def test_transaction_is_bounded_before_it_is_sent() -> None:
    store = ZooKeeperStore(NOBODY, None)
    with pytest.raises(TooLargeError, match="too large for ZooKeeper"):
        await store.multi(
            [Create("/a", bytes(NODE_MAX_BYTES)), Create("/b", bytes(NODE_MAX_BYTES))]
        )
    assert await store.multi([]) == []


async def test_closed_store_rejects_reads() -> None:
    store = ZooKeeperStore(NOBODY, None)
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="is closed"):
        await store.get("/a")


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
        ([Delete("/a")], {"/a": node(b"made again")}, [None]),
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
