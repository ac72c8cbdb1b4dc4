"""Parts of the journal in files, so that they survive a process that is killed by request.

Owns the files: the records of each role of a killed process, and the journal of a killed
controller. It must never know when a process is killed. Invariant: a file of another start of the
broker, or one that cannot be read, has nothing. Nothing is synced: a crash of the machine ends the
broker and its journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from minibroker.broker.log.data_directory import JOURNAL_FILE
from minibroker.broker.metrics.log import EventLog
from minibroker.lab.journal.saving import restored, restored_chunks, saved, saved_chunks

if TYPE_CHECKING:
    from minibroker.lab.journal.buffer import JournalChunk
    from minibroker.lab.journal.entries import JournalEntry

T = TypeVar("T")

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
