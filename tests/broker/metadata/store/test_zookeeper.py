"""The ZooKeeper store without a server; with a server, see ``system_tests/zookeeper``."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from minibroker.broker.metadata.store.tree import NODE_MAX_BYTES, Create, StoreError, TooLargeError
from minibroker.broker.metadata.store.zookeeper import ZooKeeperStore
from minibroker.broker.metadata.store.zookeeper_client import ZooKeeperAccess
from minibroker.broker.metadata.store.zookeeper_session import save_session
from minibroker.broker.settings.types import parse_connect_string

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
