"""The embedded store: one SQLite file, or none.

Owns the file, its one table, the watches of this process, and a small file next to the store that
reserves space, so that nodes can be deleted on a full disk. It must never know what nodes mean.
Invariant: a completed operation survives the death of the process and, because every commit is
synced, of the machine; a failed one changed nothing; the reserve is never larger than
``RESERVE_BYTES``, and it is missing only while the disk is full. Replaces ZooKeeper; one process at
a time uses a file.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Final

import trio

from minibroker.broker.log.errors import StorageFailed, free_bytes, ignore_failure
from minibroker.broker.metadata.store.tree import (
    ANY_VERSION,
    BadPathError,
    BadVersionError,
    Check,
    Create,
    Delete,
    EphemeralParentError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    Operation,
    Result,
    Set,
    Store,
    StoreError,
    StoreEvent,
    StoreEventKind,
    StoreNode,
    UnavailableError,
    UnwritableError,
    check_data,
    check_path,
    parent_of,
    sequence_text,
)
from minibroker.broker.metadata.store.watches import Watches
from minibroker.runtime.system import reserve_space

SUFFIX: Final = ".reserve"
RESERVE_BYTES: Final = 256 * 1024
"""Room for the write-ahead log of a few deletions; a node is smaller than a page as a rule."""


class Reserve:
    """The reserve next to a store's file; none for a store in memory."""

    def __init__(self, store: str | None) -> None:
        self._path = None if store is None else store + SUFFIX
        self._is_held = self._path is not None and _is_complete(self._path)

    def release(self) -> bool:
        """Give the space back; returns whether there was any."""
        if self._path is None or not self._is_held:
            return False
        self._is_held = False
        with suppress(OSError):
            os.truncate(self._path, 0)
            return True
        return False

    def restore(self) -> None:
        """Take the space again once there is twice as much."""
        if self._is_held or self._path is None or free_bytes(self._path) < 2 * RESERVE_BYTES:
            return
        with suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                reserve_space(fd, RESERVE_BYTES)
                self._is_held = True
            finally:
                os.close(fd)


def _is_complete(path: str) -> bool:
    try:
        return os.lstat(path).st_size == RESERVE_BYTES
    except OSError:
        return False


MEMORY = ":memory:"
_COMPANIONS = ("-wal", "-shm")
_MODE = 0o600
FORMAT = 1
"""Stored as SQLite's user_version; a file with another format is rejected."""

_SCHEMA = """
CREATE TABLE node (
    path TEXT PRIMARY KEY,
    parent TEXT NOT NULL,
    data BLOB NOT NULL,
    version INTEGER NOT NULL DEFAULT 0,
    created INTEGER NOT NULL DEFAULT 0,  -- how many children were ever created
    ephemeral INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX node_parent ON node (parent);
INSERT INTO node (path, parent, data) VALUES ('/', '', x'');
"""


_SYSTEM_ERRORS: Final = {
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_READONLY: errno.EROFS,
}


def _system_error(error: sqlite3.OperationalError) -> OSError:
    """Return the file system's error, which SQLite does not report."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_IOERR)
    number = _SYSTEM_ERRORS.get(code & 0xFF, errno.EIO)
    return OSError(number, os.strerror(number))


def _frees_space(operations: Sequence[Operation]) -> bool:
    """Whether operations delete a node, apart from notifications about it."""
    return any(isinstance(operation, Delete) for operation in operations)


def _create_private(path: str) -> None:
    """Create the file, and make it and SQLite's files next to it readable by the owner alone."""
    _make_private(path, os.O_CREAT)
    for suffix in _COMPANIONS:
        with suppress(FileNotFoundError):
            _make_private(path + suffix)


def _make_private(path: str, flags: int = 0) -> None:
    fd = os.open(path, flags | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
    try:
        if stat.S_IMODE(os.fstat(fd).st_mode) != _MODE:
            os.fchmod(fd, _MODE)
    finally:
        os.close(fd)


class SqliteStore(Store):
    """A `Store` in one file, or in memory with the path ``:memory:``.

    Calls do not wait for anything but the disk, for which they hold the process up: a change
    takes tenths of a millisecond plus one sync, and topics are not created by the thousand.
    """

    def __init__(self, path: Path | str, failed: StorageFailed = ignore_failure) -> None:
        """Open or create the file; `StoreError` if it is no store or not of this format.

        ``failed`` is called when it cannot be read or written later.
        """
        self._path = str(path)
        self._failed = failed
        self._watches = Watches()
        self._reserve = Reserve(None if self._path == MEMORY else self._path)
        try:
            try:
                self._open()
            except sqlite3.OperationalError:
                if not self._reserve.release():
                    raise
                self._open()
        except sqlite3.DatabaseError as error:
            free = free_bytes(self._path)
            text = f"cannot be used as config store: {error}; {free} bytes are free"
            raise StoreError(self._path, text) from None
        self._reserve.restore()

    def _open(self) -> None:
        if self._path != MEMORY:
            try:
                _create_private(self._path)
            except OSError as error:
                text = f"cannot be used as config store: {error.strerror}"
                raise StoreError(error.filename or self._path, text) from None
        self._db = sqlite3.connect(self._path, isolation_level=None)
        self._prepare()

    def _prepare(self) -> None:
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found == 0 and self._db.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
            self._db.close()
            raise StoreError(self._path, "is a database of another program")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")
        if found == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {FORMAT}; COMMIT;")
        elif found != FORMAT:
            self._db.close()
            raise StoreError(self._path, f"has format {found}, this program reads {FORMAT}")
        # Their owner is gone: a file has one user at a time.
        self._db.execute("DELETE FROM node WHERE ephemeral")

    async def get(self, path: str) -> StoreNode:
        await trio.lowlevel.checkpoint()
        check_path(path)
        rows = self._read("SELECT data, version FROM node WHERE path = ?", path)
        if not rows:
            raise NoNodeError(path, "does not exist")
        return StoreNode(*rows[0])

    async def exists(self, path: str) -> bool:
        await trio.lowlevel.checkpoint()
        check_path(path)
        return bool(self._read("SELECT 1 FROM node WHERE path = ?", path))

    async def children(self, path: str) -> list[str]:
        if not await self.exists(path):
            raise NoNodeError(path, "does not exist")
        rows = self._read("SELECT path FROM node WHERE parent = ? ORDER BY path", path)
        return [child.rpartition("/")[2] for (child,) in rows]

    def _read(self, query: str, path: str) -> list[Any]:
        try:
            return self._db.execute(query, (path,)).fetchall()
        except sqlite3.OperationalError as error:
            self._failed(self._path, _system_error(error))
            raise UnavailableError(self._path, f"cannot be read: {error}") from None

    async def multi(self, operations: Sequence[Operation]) -> list[Result]:
        await trio.lowlevel.checkpoint()
        try:
            results, events = self._transaction(operations)
        except sqlite3.OperationalError as error:
            if not (_frees_space(operations) and self._reserve.release()):
                raise self._unwritable(error) from None
            try:
                results, events = self._transaction(operations)
            except sqlite3.OperationalError as again:
                raise self._unwritable(again) from None
        self._reserve.restore()
        for event in events:
            self._watches.notify(event)
        return results

    def _transaction(
        self, operations: Sequence[Operation]
    ) -> tuple[list[Result], list[StoreEvent]]:
        events: list[StoreEvent] = []
        self._db.execute("BEGIN IMMEDIATE")
        try:
            results = [self._execute(operation, events) for operation in operations]
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        return results, events

    def _unwritable(self, error: sqlite3.OperationalError) -> UnwritableError:
        self._failed(self._path, _system_error(error))
        free = free_bytes(self._path)
        return UnwritableError(
            self._path, f"cannot be written: {error}; {free} bytes are free; free some space"
        )

    async def save(self, file: str) -> None:
        await trio.lowlevel.checkpoint()
        try:
            self._db.execute("VACUUM INTO ?", (file,))
        except sqlite3.OperationalError as error:
            raise self._unwritable(error) from None

    async def restore(self, file: str, kept: Sequence[str] = ()) -> None:
        await trio.lowlevel.checkpoint()
        marks = ", ".join("?" * len(kept))
        which = f"WHERE NOT ephemeral AND path NOT IN ({marks})"
        try:
            self._db.execute("ATTACH ? AS saved", (file,))
            try:
                with self._db:
                    self._db.execute("BEGIN IMMEDIATE")
                    self._db.execute(f"DELETE FROM main.node {which}", kept)  # noqa: S608
                    self._db.execute(
                        f"INSERT INTO main.node SELECT * FROM saved.node {which}",  # noqa: S608
                        kept,
                    )
            finally:
                self._db.execute("DETACH saved")
        except sqlite3.OperationalError as error:
            raise self._unwritable(error) from None
        except sqlite3.DatabaseError as error:
            raise StoreError(file, f"is no copy of a config store: {error}") from None

    def watch(self, path: str) -> AbstractContextManager[AsyncIterator[StoreEvent]]:
        check_path(path)
        return self._watches.open(path)

    async def close(self) -> None:
        await trio.lowlevel.checkpoint()
        self._watches.end()
        with suppress(sqlite3.OperationalError):  # The next start removes them as well.
            self._db.execute("DELETE FROM node WHERE ephemeral")
        self._db.close()

    def _execute(self, operation: Operation, events: list[StoreEvent]) -> Result:
        check_path(operation.path)
        match operation:
            case Create():
                return self._create(operation, events)
            case Set(path, data, version):
                check_data(path, data)
                changed = self._expect(path, version) + 1
                self._db.execute(
                    "UPDATE node SET data = ?, version = ? WHERE path = ?", (data, changed, path)
                )
                events.append(StoreEvent(StoreEventKind.CHANGED, path))
                return changed
            case Delete(path, version):
                self._delete(path, version)
                events.append(StoreEvent(StoreEventKind.DELETED, path))
                return None
            case Check(path, version):
                self._expect(path, version)
                return None

    def _create(self, operation: Create, events: list[StoreEvent]) -> str:
        path, data, ephemeral, sequential = operation
        if path == "/":
            raise BadPathError(path, "the root exists always")
        check_data(path, data)
        parent = parent_of(path)
        row = self._db.execute(
            "SELECT created, ephemeral FROM node WHERE path = ?", (parent,)
        ).fetchone()
        if row is None:
            raise NoNodeError(parent, "does not exist")
        created, parent_is_ephemeral = row
        if parent_is_ephemeral:
            raise EphemeralParentError(parent, "is ephemeral and can have no children")
        if sequential:
            path += sequence_text(created)
        if self._version(path) is not None:
            raise NodeExistsError(path, "exists already")
        self._db.execute("UPDATE node SET created = created + 1 WHERE path = ?", (parent,))
        self._db.execute(
            "INSERT INTO node (path, parent, data, ephemeral) VALUES (?, ?, ?, ?)",
            (path, parent, data, ephemeral),
        )
        events.append(StoreEvent(StoreEventKind.CREATED, path))
        return path

    def _delete(self, path: str, version: int) -> None:
        if path == "/":
            raise BadPathError(path, "the root exists always")
        self._expect(path, version)
        if self._db.execute("SELECT 1 FROM node WHERE parent = ? LIMIT 1", (path,)).fetchone():
            raise NotEmptyError(path, "has children")
        self._db.execute("DELETE FROM node WHERE path = ?", (path,))

    def _version(self, path: str) -> int | None:
        row = self._db.execute("SELECT version FROM node WHERE path = ?", (path,)).fetchone()
        return None if row is None else int(row[0])

    def _expect(self, path: str, version: int) -> int:
        found = self._version(path)
        if found is None:
            raise NoNodeError(path, "does not exist")
        if version not in (ANY_VERSION, found):
            raise BadVersionError(path, f"has version {found}, not {version}")
        return found
