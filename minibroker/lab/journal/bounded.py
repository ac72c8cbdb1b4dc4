"""The journal: entries in one order, bounded in bytes.

Owns the sequence of entries and which are dropped. It must never know where entries come from.
Invariant: every entry that happened has a sequence, also one that is lost, and a loss stands where
the lost ones were; the newest entries are kept, and the estimate of memory never exceeds the limit,
unless one entry alone does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from minibroker.lab.journal.entries import (
    EntryKind,
    JournalEntry,
    Loss,
    LossReason,
    loss_of,
    lost_entries,
)
from minibroker.lab.journal.filters import EntryFilter

JOURNAL_BYTES_MAX: Final = 64 * 1024 * 1024
"""Memory of a journal by default; about fifty thousand small requests with their responses."""

ENTRY_BYTES: Final = 1024
"""Estimate of the memory of an entry without its frame."""


class Journal:
    """A bounded journal."""

    def __init__(self, bytes_max: int = JOURNAL_BYTES_MAX, last: int = 0) -> None:
        """``last`` is the sequence of the last entry of an earlier journal."""
        self.bytes_max = bytes_max
        self.dropped = 0
        """Number of lost entries."""
        self.bytes = 0
        """Estimate of the memory of the entries."""
        self._entries: deque[JournalEntry] = deque()
        self._losses = 0
        """Losses among them."""
        self._last = self._cleared = self._dropped_until = last
        """Sequences: of the newest entry, of the last cleared one, of the last dropped one."""
        self._dropped_since_ms = self._clock_ms = 0.0
        """Times of the first dropped entry and of the newest entry."""

    def __len__(self) -> int:
        """Number of entries, without losses."""
        return len(self._entries) - self._losses

    def __iter__(self) -> Iterator[JournalEntry]:
        """Iterate over all entries and losses, oldest first."""
        if self._dropped_until > self._cleared:
            yield self._oldest_loss()
        yield from self._entries

    def _oldest_loss(self) -> JournalEntry:
        """The loss of all entries that were dropped from the oldest on."""
        entries = self._dropped_until - self._cleared
        until_ms = self._entries[0].clock_ms if self._entries else self._clock_ms
        loss = Loss("", entries, LossReason.JOURNAL_MEMORY, self._dropped_since_ms)
        return loss.entry(self._dropped_until, until_ms)

    @property
    def last(self) -> int:
        """Sequence of the newest entry ever added; 0 if there was none."""
        return self._last

    def append(self, entry: JournalEntry) -> JournalEntry:
        """Add an entry as the newest one, and return it with its sequence."""
        self._last += 1
        self._clock_ms = entry.clock_ms
        entry = replace(entry, sequence=self._last)
        self._keep(entry)
        return entry

    def lose(self, loss: Loss) -> None:
        """Add a loss of entries, as the newest ones."""
        self._last += loss.entries
        self.dropped += loss.entries
        newest = self._entries[-1] if self._entries else None
        if newest is not None and newest.kind is EntryKind.LOST:
            details = newest.details
            if (newest.role, details["reason"]) == (loss.role, loss.reason.value):
                details = {**details, "entries": lost_entries(newest) + loss.entries}
                self._entries[-1] = replace(newest, sequence=self._last, details=details)
                return
        self._losses += 1
        self._keep(loss.entry(self._last, self._clock_ms))

    def restore(self, entries: Iterable[JournalEntry]) -> None:
        """Add the entries of an earlier journal, with their sequences."""
        for entry in entries:
            if entry.kind is not EntryKind.LOST:
                self._last = entry.sequence - 1
                self.append(entry)
            else:
                self._last = entry.sequence - lost_entries(entry)
                self.lose(loss_of(entry))

    def _keep(self, entry: JournalEntry) -> None:
        self._entries.append(entry)
        self.bytes += entry_bytes(entry)
        self.shrink(self.bytes_max)

    def shrink(self, bytes_max: int) -> None:
        """Drop the oldest entries until the rest, but at least one, takes no more memory."""
        while self.bytes > bytes_max and len(self._entries) > 1:
            oldest = self._entries.popleft()
            if self._dropped_until == self._cleared:
                self._dropped_since_ms = oldest.clock_ms
            self.bytes -= entry_bytes(oldest)
            self._dropped_until = oldest.sequence
            if oldest.kind is EntryKind.LOST:
                self._losses -= 1
            else:
                self.dropped += 1

    def clear(self, unseen: int = 0) -> None:
        """Drop all entries, without counting them; sequences continue after ``unseen`` others."""
        self._entries.clear()
        self._last += unseen
        self._cleared = self._dropped_until = self._last
        self.bytes = self.dropped = self._losses = 0

    def find(self, wanted: EntryFilter, limit: int | None = None) -> list[JournalEntry]:
        """Return the oldest matching entries, at most ``limit``, and what is lost between them.

        A loss is included if one of the lost entries may have matched. Of the entries that it
        represents, only those after ``wanted.after`` count.
        """
        found = (
            _later(entry, wanted.after) if entry.kind is EntryKind.LOST else entry
            for entry in self._after(wanted.after)
            if wanted.matches(entry) or wanted.could_match_lost(entry)
        )
        return list(islice(found, limit))

    def _after(self, sequence: int) -> Iterator[JournalEntry]:
        """Iterate over all entries after a sequence."""
        if sequence < self._dropped_until:
            yield from self
            return
        later = 0
        for entry in reversed(self._entries):
            if entry.sequence <= sequence:
                break
            later += 1
        yield from islice(self._entries, len(self._entries) - later, None)


def _later(entry: JournalEntry, after: int) -> JournalEntry:
    """A loss without the entries up to a sequence."""
    entries = min(lost_entries(entry), entry.sequence - after)
    return replace(entry, details={**entry.details, "entries": entries})


def entry_bytes(entry: JournalEntry) -> int:
    """Estimate of the memory of an entry."""
    return ENTRY_BYTES + (0 if entry.frame is None else len(entry.frame))
