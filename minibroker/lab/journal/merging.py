"""Merges the records of all processes into one journal: entries in one order, bounded in bytes.

Owns the records that were handed over but are not entries yet, the losses between them, the
sequence of entries and which are dropped. It must never know how records arrive. Invariants:
entries are in the order of the times of their records, over all processes: only records up to a
time are merged by which every process has handed over its own. Every entry that happened has a
sequence, also one that is lost. A loss stands after all that its process recorded before, and never
waits: some of the lost entries may be older than that time. Nothing is unpacked before that, so
that a journal that is not read costs little. The memory of records, counted as the entries that
they will be, and of entries together is bounded, unless one entry alone exceeds the limit; the
newest entries are kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

from minibroker.broker.process.journal_counts import JournalCounts
from minibroker.lab.journal.entries import (
    EntryKind,
    JournalEntry,
    Loss,
    LossReason,
    loss_of,
    lost_entries,
)
from minibroker.lab.journal.filters import EntryFilter
from minibroker.lab.journal.records import JournalChunk, PackedRecords, Record, entry_of, split

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


STEP: Final = 256
"""Entries that are made at once, in a few milliseconds."""

_LOST_KIND: Final = 0
"""A loss; no record has this kind."""

_NEWEST_NS: Final = 2**63
"""Later than all records."""


class _Part(NamedTuple):
    """Records that are not unpacked, or a loss of entries."""

    role: str
    records: PackedRecords
    """Without bytes, if they are lost."""
    reason: LossReason | None = None

    @property
    def bytes(self) -> int:
        """Memory when they will be entries."""
        if self.reason is not None:
            return ENTRY_BYTES
        return len(self.records.packed) + ENTRY_BYTES * self.records.entries


class _Waiting(NamedTuple):
    """A record that is not an entry yet."""

    time_ns: float
    kind: int
    role: str
    record: Record
    """Of a loss, the number of entries and the reason."""


class JournalMerger:
    """Adds the records of all processes to a journal."""

    def __init__(self, journal: Journal, epoch_s: float, counts: JournalCounts) -> None:
        """``epoch_s`` are the seconds from the broker's clock to those since 1970."""
        self.journal = journal
        self._epoch_s = epoch_s
        self._counts = counts
        self._parts: deque[_Part] = deque()
        self._bytes = 0
        """Memory of the parts when they will be entries."""
        self._dropped: dict[str, PackedRecords] = {}
        """By role, what was dropped of its parts."""
        self._waiting: deque[_Waiting] = deque()
        self._is_sorted = True
        self._last_ms: dict[str, float] = {}
        """By role, the time of the broker's clock in its last entry."""

    def add(self, role: str, chunk: JournalChunk) -> None:
        """Take over the records of a process, and note what is lost before them."""
        counts = self._counts
        if counts.chunk(role) == chunk.number or chunk.end < counts.handed_over(role):
            return
        missing = chunk.first - counts.handed_over(role)
        if missing > 0:
            is_ended = missing > chunk.dropped
            reason = LossReason.PROCESS_ENDED if is_ended else LossReason.PROCESS_MEMORY
            self._add(_Part(role, PackedRecords(b"", missing, chunk.since_ns), reason))
        for records in chunk.parts:
            self._add(_Part(role, records))
        counts.hand_over(role, chunk.end, chunk.number)
        bytes_max = self.journal.bytes_max
        if self.journal.bytes + self._bytes > bytes_max:
            self.journal.shrink(max(bytes_max - self._bytes, 0))
        while self._bytes > bytes_max and len(self._parts) > 1:
            self._drop(self._parts.popleft())

    def lose(self, role: str) -> None:
        """Note that a process has ended with all that it had not handed over."""
        recorded = self._counts.recorded(role)
        missing = recorded - self._counts.handed_over(role)
        if missing <= 0:
            return
        records = PackedRecords(b"", missing, _NEWEST_NS)
        self._add(_Part(role, records, LossReason.PROCESS_ENDED))
        self._counts.hand_over(role, recorded)

    def _add(self, part: _Part) -> None:
        self._parts.append(part)
        self._bytes += part.bytes

    def _drop(self, part: _Part) -> None:
        self._bytes -= part.bytes
        _, entries, last_ns = part.records
        former = self._dropped.get(part.role)
        if former is not None:
            entries += former.entries
        self._dropped[part.role] = PackedRecords(b"", entries, last_ns)

    def received(self, role: str) -> int:
        """Return the number of the last chunk of a process; 0 if there was none."""
        return self._counts.chunk(role)

    def merge(self, until_ns: float) -> None:
        """Make entries of all records up to a time."""
        for _ in self.steps(until_ns):
            pass

    def steps(self, until_ns: float) -> Generator[None, None, None]:
        """Do the same in steps, of which each takes a few milliseconds.

        What is not done can be done later. No records may be added before all steps are done, or
        they are given up.
        """
        if self._parts or self._dropped or not self._is_sorted:
            yield from self._unpack(until_ns)
        waiting, last_ms = self._waiting, self._last_ms
        for number in range(len(waiting)):
            if waiting[0].time_ns > until_ns:
                break
            _, kind, role, record = waiting.popleft()
            if kind == _LOST_KIND:
                entries, reason = record
                self.journal.lose(Loss(role, entries, reason, last_ms.get(role, 0.0)))
            else:
                entry = self.journal.append(entry_of(kind, record, role, self._epoch_s))
                last_ms[role] = entry.clock_ms
            if number % STEP == STEP - 1:
                yield

    def _unpack(self, until_ns: float) -> Iterator[None]:
        self._is_sorted = False
        for role, (_, entries, last_ns) in self._dropped.items():
            record = entries, LossReason.JOURNAL_MEMORY
            self._waiting.append(_Waiting(min(last_ns, until_ns), _LOST_KIND, role, record))
        self._dropped.clear()
        while self._parts:
            part = self._parts.popleft()
            role, (packed, entries, last_ns), reason = part
            self._bytes -= part.bytes
            if reason is None:
                self._waiting.extend(
                    _Waiting(time_ns, kind, role, record) for time_ns, kind, record in split(packed)
                )
            else:
                at_ns, record = min(last_ns, until_ns), (entries, reason)
                self._waiting.append(_Waiting(at_ns, _LOST_KIND, role, record))
            yield
        self._waiting = deque(sorted(self._waiting, key=_time))
        self._is_sorted = True

    def clear(self) -> None:
        """Drop everything; sequences continue as if it had been merged."""
        unseen = sum(part.records.entries for part in self._parts)
        unseen += sum(records.entries for records in self._dropped.values())
        unseen += sum(each.record[0] if each.kind == _LOST_KIND else 1 for each in self._waiting)
        self._parts.clear()
        self._dropped.clear()
        self._waiting.clear()
        self._bytes = 0
        self.journal.clear(unseen)
        self._counts.cleared = self.journal.last


def _time(waiting: _Waiting) -> float:
    return waiting.time_ns
