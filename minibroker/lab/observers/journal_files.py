"""Parts of the journal in files, so that they survive a process that is killed by request.

Owns the files (the records of each role of a killed process, and the journal of a killed
controller) and their form. It must never know when a process is killed. Invariant: what is read is
what was written; a file of another start of the broker, or one that cannot be read, has nothing,
and any other bytes are ``ValueError``. For processes of one run only, as packed records. Nothing is
synced: a crash of the machine ends the broker and its journal.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, TypeVar

from minibroker.broker.log.data_directory import JOURNAL_FILE
from minibroker.broker.metrics.log import EventLog
from minibroker.lab.journal.entries import EntryKind, JournalEntry
from minibroker.lab.journal.records import JournalChunk, PackedRecords

T = TypeVar("T")

_ENTRY: Final = tuple(each.name for each in fields(JournalEntry))
_KIND: Final = _ENTRY.index("kind")
_CHUNK: Final = tuple(each.name for each in fields(JournalChunk))
_PARTS: Final = _CHUNK.index("parts")


def saved(entries: Iterable[JournalEntry]) -> bytes:
    """Return entries as bytes."""
    return marshal.dumps([_plain(entry) for entry in entries])


def _plain(entry: JournalEntry) -> list[Any]:
    values: list[Any] = [getattr(entry, name) for name in _ENTRY]
    values[_KIND] = entry.kind.value
    return values


def restored(data: bytes) -> list[JournalEntry]:
    """Return the entries of these bytes. Raises ``ValueError``."""
    return _restored(data, _entry)


def _entry(values: list[Any]) -> JournalEntry:
    values[_KIND] = EntryKind(values[_KIND])
    return JournalEntry(*values)


def saved_chunks(chunks: Iterable[JournalChunk]) -> bytes:
    """Return chunks as bytes."""
    return marshal.dumps([_plain_chunk(chunk) for chunk in chunks])


def _plain_chunk(chunk: JournalChunk) -> list[Any]:
    values: list[Any] = [getattr(chunk, name) for name in _CHUNK]
    values[_PARTS] = [tuple(part) for part in chunk.parts]
    return values


def restored_chunks(data: bytes) -> list[JournalChunk]:
    """Return the chunks of these bytes. Raises ``ValueError``."""
    return _restored(data, _chunk)


def _chunk(values: list[Any]) -> JournalChunk:
    values[_PARTS] = tuple(PackedRecords(*part) for part in values[_PARTS])
    return JournalChunk(*values)


def _restored(data: bytes, make: Callable[[list[Any]], T]) -> list[T]:
    try:
        return [make(values) for values in marshal.loads(data)]  # noqa: S302 - of this broker
    except (EOFError, TypeError, LookupError) as error:
        raise ValueError(f"not a part of a journal: {error}") from None


_RUN_BYTES: Final = 8
_MODE: Final = 0o600


class JournalFiles:
    """The files of one start of a broker."""

    def __init__(self, directory: Path, run: int, log: EventLog) -> None:
        """``run`` identifies the start."""
        self._directory = directory
        self._run = run.to_bytes(_RUN_BYTES, "big")
        self._log = log

    def save_journal(self, entries: Iterable[JournalEntry]) -> None:
        """Write the journal."""
        self._save(JOURNAL_FILE, saved(entries))

    def take_journal(self) -> Sequence[JournalEntry]:
        """Read the journal and remove its file; without one there are no entries."""
        return self._take(JOURNAL_FILE, restored)

    def save_chunks(self, role: str, chunks: Sequence[JournalChunk]) -> None:
        """Write what a role has recorded."""
        self._save(f"{JOURNAL_FILE}-{role}", saved_chunks(chunks))

    def take_chunks(self, role: str) -> Sequence[JournalChunk]:
        """Read what a former process of a role has written, and remove the file."""
        return self._take(f"{JOURNAL_FILE}-{role}", restored_chunks)

    def _save(self, name: str, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with open(os.open(self._directory / name, flags, _MODE), "wb") as file:
                file.write(self._run + data)
        except OSError as error:
            self._log.warning("entries of the journal are lost", file=name, reason=error)

    def _take(self, name: str, read: Callable[[bytes], list[T]]) -> Sequence[T]:
        path = self._directory / name
        try:
            data = path.read_bytes()
            path.unlink()
            return read(data[_RUN_BYTES:]) if data.startswith(self._run) else ()
        except FileNotFoundError:
            return ()
        except (OSError, ValueError) as error:
            self._log.warning("entries of the journal are lost", file=name, reason=error)
            return ()
