"""The journal: entries in one order, bounded in bytes.

Owns the sequence of entries and which are dropped. It must never know where entries come from.
Invariant: sequences are consecutive, the newest entries are kept, and every dropped entry is
counted; the estimate of memory never exceeds the limit, unless one entry alone does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from minibroker.journal.entries import JournalEntry
from minibroker.journal.filters import EntryFilter

JOURNAL_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory of a journal by default; about fifty thousand small requests with their responses."""

ENTRY_BYTES: Final = 1024
"""Estimate of the memory of an entry without its frame."""


class Journal:
    """A bounded journal."""

    def __init__(self, bytes_max: int = JOURNAL_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.dropped = 0
        """Number of the oldest entries that are not kept any more."""
        self.bytes = 0
        """Estimate of the memory of the entries."""
        self._entries: deque[JournalEntry] = deque()
        self._last = 0

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._entries)

    def __iter__(self) -> Iterator[JournalEntry]:
        """Iterate over all entries, oldest first."""
        return iter(self._entries)

    @property
    def last(self) -> int:
        """Sequence of the newest entry ever added; 0 if there was none."""
        return self._last

    def append(self, entry: JournalEntry) -> JournalEntry:
        """Add an entry as the newest one, and return it with its sequence."""
        self._last += 1
        entry = replace(entry, sequence=self._last)
        self._entries.append(entry)
        self.bytes += entry_bytes(entry)
        self.shrink(self.bytes_max)
        return entry

    def skip(self, count: int) -> None:
        """Count entries as dropped that were lost before they could be added."""
        self.dropped += count

    def shrink(self, bytes_max: int) -> None:
        """Drop the oldest entries until the rest, but at least one, takes no more memory."""
        while self.bytes > bytes_max and len(self._entries) > 1:
            self.bytes -= entry_bytes(self._entries.popleft())
            self.dropped += 1

    def clear(self) -> None:
        """Drop all entries, without counting them; sequences continue."""
        self._entries.clear()
        self.bytes = self.dropped = 0

    def find(self, wanted: EntryFilter, limit: int | None = None) -> list[JournalEntry]:
        """Return the oldest matching entries, at most ``limit``."""
        first = self._last - len(self._entries) + 1
        later = islice(self._entries, max(wanted.after + 1 - first, 0), None)
        return list(islice((entry for entry in later if wanted.matches(entry)), limit))


def entry_bytes(entry: JournalEntry) -> int:
    """Estimate of the memory of an entry."""
    return ENTRY_BYTES + (0 if entry.frame is None else len(entry.frame))
