"""Segments that retention has dropped, until their files are removed.

Owns the time of removal. It must never know retention rules. Invariant: the
files of a dropped segment keep their names until ``file_delete_delay_ms`` have passed. Kafka
renames them at once; here, readers open files by path, and a response with records of the segment
may not be sent yet. After a crash, recovery removes them, as they end below the log start.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from minibroker.broker.log.paths import SEGMENT_SUFFIXES, SNAPSHOT, remove_files


class DroppedSegments:
    """The dropped segments of one directory. Times are epoch milliseconds."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._pending: list[tuple[int, int]] = []
        self._replaced: list[tuple[int, str]] = []

    def add(self, base_offsets: Iterable[int], due_ms: int) -> None:
        """Remove the files of these segments at ``due_ms``."""
        self._pending += ((due_ms, base_offset) for base_offset in base_offsets)

    def add_replaced(self, paths: Iterable[str], due_ms: int) -> None:
        """Remove the renamed files of segments that were replaced by cleaned ones."""
        self._replaced += ((due_ms, path) for path in paths)

    def remove_due(self, now_ms: int) -> None:
        """Remove the files that are due. Raises OSError."""
        remaining = []
        for due_ms, base_offset in self._pending:
            if due_ms <= now_ms:
                self._remove(base_offset)
            else:
                remaining.append((due_ms, base_offset))
        self._pending = remaining
        due = [path for due_ms, path in self._replaced if due_ms <= now_ms]
        self._replaced = [each for each in self._replaced if each[0] > now_ms]
        _unlink(due)

    def remove_all(self) -> None:
        """Remove all files now. Raises OSError."""
        for _, base_offset in self._pending:
            self._remove(base_offset)
        _unlink(path for _, path in self._replaced)
        self._pending, self._replaced = [], []

    def _remove(self, base_offset: int) -> None:
        remove_files(self._directory, base_offset, (*SEGMENT_SUFFIXES, SNAPSHOT))


def _unlink(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.unlink(path)
