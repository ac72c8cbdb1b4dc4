"""The SQLite store: files that are not a store, formats, and a killed process."""

from __future__ import annotations

import errno
import sqlite3
import stat
from pathlib import Path

import pytest

from minibroker.broker.metadata.store import sqlite as reserve
from minibroker.broker.metadata.store.sqlite import (
    FORMAT,
    RESERVE_BYTES,
    SUFFIX,
    Reserve,
    SqliteStore,
)
from minibroker.broker.metadata.store.tree import (
    Delete,
    NoNodeError,
    StoreError,
    UnavailableError,
    UnwritableError,
)


def test_unusable_store_file_is_rejected_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "store"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(StoreError, match="store: cannot be used as config store"):
        SqliteStore(path)
    with pytest.raises(StoreError, match="cannot be used as config store"):
        SqliteStore(tmp_path / "missing" / "store")


def test_store_with_other_format_version_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "store"
    database = sqlite3.connect(path)
    database.execute(f"PRAGMA user_version = {FORMAT + 1}")
    database.close()
    with pytest.raises(StoreError, match=f"has format {FORMAT + 1}, this program reads {FORMAT}"):
        SqliteStore(path)


def test_foreign_database_is_rejected_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "store"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE photos (name TEXT)")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="store: is a database of another program"):
        SqliteStore(path)
    assert path.read_bytes() == before


def test_store_path_with_symlink_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "store").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match=r"cannot be used as config store: .*symbolic links"):
        SqliteStore(tmp_path / "store")
    assert not (tmp_path / "elsewhere").exists()


def test_store_files_are_readable_by_their_owner_alone(tmp_path: Path) -> None:
    died = SqliteStore(tmp_path / "store")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"store", "store-wal", "store-shm", f"store{SUFFIX}"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    for path in tmp_path.glob("store*"):
        if path.suffix != SUFFIX:
            path.chmod(0o644)  # as a version that left it to the umask
    store = SqliteStore(tmp_path / "store")
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}
    store._db.close()
    died._db.close()


async def test_ephemeral_nodes_of_dead_process_are_removed(tmp_path: Path) -> None:
    died = SqliteStore(tmp_path / "store")
    await died.create("/kept")
    await died.create("/e", ephemeral=True)
    died._db.close()
    store = SqliteStore(tmp_path / "store")
    assert await store.exists("/kept")
    assert not await store.exists("/e")
    await store.close()


def fill_up(store: SqliteStore) -> None:
    """Allow the file not one page more, as on a full disk."""
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")


async def test_full_store_rejects_writes_and_keeps_its_data(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store")
    await store.create("/a", b"kept")
    fill_up(store)
    with pytest.raises(UnwritableError, match=r"store: cannot be written: .*full.*bytes are free"):
        await store.create("/b", bytes(100_000))
    assert (await store.get("/a")).data == b"kept"
    with pytest.raises(NoNodeError):
        await store.get("/b")
    await store.delete("/a")
    await store.close()


async def test_deletion_on_a_full_disk_uses_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    store = SqliteStore(path)
    await store.create("/a")
    reserve = path.with_name(path.name + SUFFIX)
    real = store._transaction
    attempts = []

    def full_while_reserved(operations: object) -> object:
        attempts.append(reserve.stat().st_size)
        if attempts[-1]:
            raise sqlite3.OperationalError("database or disk is full")
        return real(operations)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_transaction", full_while_reserved)
    with pytest.raises(UnwritableError):
        await store.create("/b")
    assert reserve.stat().st_size > 0
    await store.multi([Delete("/a")])
    assert len(attempts) == 3
    monkeypatch.undo()
    assert not await store.exists("/a")
    await store.close()


async def test_store_that_runs_full_reports_the_system_error(tmp_path: Path) -> None:
    failures: list[tuple[str, int | None]] = []
    path = tmp_path / "store"
    store = SqliteStore(path, lambda at, error: failures.append((at, error.errno)))
    (pages,) = store._db.execute("PRAGMA page_count").fetchone()
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(UnwritableError, match=r"database or disk is full; \d+ bytes are free"):
        await store.create("/a", bytes(100_000))
    assert failures == [(str(path), errno.ENOSPC)]
    assert not await store.exists("/a")
    store._db.execute("PRAGMA query_only = on")
    with pytest.raises(UnwritableError):
        await store.create("/a")
    assert failures[1:] == [(str(path), errno.EROFS)]
    await store.close()


async def test_store_that_cannot_be_read_is_unavailable(tmp_path: Path) -> None:
    failures: list[int | None] = []
    store = SqliteStore(tmp_path / "store", lambda _, error: failures.append(error.errno))
    await store.create("/a")
    store._db.execute("DROP TABLE node")  # SQLite raises the same error as for a failed read.
    for read in (store.get, store.exists, store.children):
        with pytest.raises(UnavailableError, match="cannot be read"):
            await read("/a")
    assert failures == [errno.EIO] * 3
    await store.close()


async def test_damaged_copy_is_not_restored(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.sqlite")
    await store.create("/a", b"kept")
    for name, content in (("empty", b""), ("other", b"no database" * 1000)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(StoreError):
            await store.restore(str(tmp_path / name))
    assert (await store.get("/a")).data == b"kept"
    await store.close()


def test_reserve_takes_space_gives_it_back_once_and_takes_it_again(tmp_path: Path) -> None:
    path = tmp_path / f"store{SUFFIX}"
    held = Reserve(str(tmp_path / "store"))
    held.restore()
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES
    assert held.release()
    assert path.stat().st_size == 0
    assert not held.release()
    held.restore()
    assert path.stat().st_size == RESERVE_BYTES


def test_reserve_is_not_taken_while_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "free_bytes", lambda _: 2 * RESERVE_BYTES - 1)
    held = Reserve(str(tmp_path / "store"))
    held.restore()
    assert list(tmp_path.iterdir()) == []
    assert not held.release()


def test_reserve_of_an_earlier_run_can_be_released(tmp_path: Path) -> None:
    Reserve(str(tmp_path / "store")).restore()
    assert Reserve(str(tmp_path / "store")).release()


def test_store_in_memory_has_no_reserve() -> None:
    assert not Reserve(None).release()
