"""What is SQLite's own: files that are no store, formats, and a process that died."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from minibroker.cluster.store.sqlite import FORMAT, SqliteStore
from minibroker.cluster.store.tree import StoreError


def test_a_file_that_is_no_store_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="store: cannot be used as config store"):
        SqliteStore(path)
    with pytest.raises(StoreError, match="cannot be used as config store"):
        SqliteStore(tmp_path / "missing" / "store")


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    with pytest.raises(StoreError, match=f"has format {FORMAT + 1}, this program reads {FORMAT}"):
        SqliteStore(path)


async def test_ephemeral_nodes_of_a_process_that_died_are_gone(tmp_path: Path) -> None:
    died = SqliteStore(tmp_path / "store")
    await died.create("/kept")
    await died.create("/e", ephemeral=True)
    died._db.close()
    store = SqliteStore(tmp_path / "store")
    assert await store.exists("/kept")
    assert not await store.exists("/e")
    await store.close()
