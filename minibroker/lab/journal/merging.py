"""Merges the records of all processes into one journal.

Owns the records that were handed over but are not entries yet, and the losses between them. It must
never know how they arrive. Invariant: entries are in the order of the times of their records,
over all processes: only records up to a time are merged by which every process has handed over its
own. A loss stands after all that its process recorded before, and never waits: some
of the lost entries may be older than that time. Nothing is unpacked before that, so that a journal
that is not read costs little. The memory of records, counted as the entries that they will be, and
of entries together is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from minibroker.broker.process.journal_counts import JournalCounts
from minibroker.lab.journal.bounded import ENTRY_BYTES, Journal
from minibroker.lab.journal.buffer import JournalChunk
from minibroker.lab.journal.entries import Loss, LossReason
from minibroker.lab.journal.records import PackedRecords, Record, entry_of, split

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
