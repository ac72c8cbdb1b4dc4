"""Merges the records of all processes into one journal.

Owns the records that were handed over but are not entries yet. It must never know how they arrive.
Invariant: entries are in the order of the times of their records, whichever process recorded
them: only records up to a time are merged by which every process has handed over its own. Nothing
is unpacked before that, so that a journal that is not read costs little. The memory of records,
counted as the entries that they will be, and of entries together is bounded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

from minibroker.journal.bounded import ENTRY_BYTES, Journal
from minibroker.journal.buffer import JournalChunk
from minibroker.journal.records import PackedRecords, Record, entry_of, split

STEP: Final = 256
"""Entries that are made at once, in a few milliseconds."""


class _Waiting(NamedTuple):
    """A record that is not an entry yet."""

    time_ns: int
    kind: int
    role: str
    record: Record


class JournalMerger:
    """Adds the records of all processes to a journal."""

    def __init__(self, journal: Journal, epoch_s: float) -> None:
        """``epoch_s`` are the seconds from the broker's clock to those since 1970."""
        self.journal = journal
        self._epoch_s = epoch_s
        self._parts: deque[tuple[str, PackedRecords]] = deque()
        self._bytes = 0
        """Memory of the parts when they will be entries."""
        self._numbers: dict[str, int] = {}
        self._waiting: deque[_Waiting] = deque()

    def add(self, role: str, chunk: JournalChunk) -> None:
        """Take over the records of a process."""
        if self._numbers.get(role) == chunk.number:
            return
        self._numbers[role] = chunk.number
        self.journal.skip(chunk.dropped)
        for part in chunk.parts:
            self._parts.append((role, part))
            self._bytes += _bytes_of(part)
        bytes_max = self.journal.bytes_max
        if self.journal.bytes + self._bytes > bytes_max:
            self.journal.shrink(max(bytes_max - self._bytes, 0))
        while self._bytes > bytes_max and len(self._parts) > 1:
            _, dropped = self._parts.popleft()
            self._bytes -= _bytes_of(dropped)
            self.journal.skip(dropped.entries)

    def received(self, role: str) -> int:
        """Return the number of the last chunk of a process; 0 if there was none."""
        return self._numbers.get(role, 0)

    def merge(self, until_ns: int) -> None:
        """Make entries of all records up to a time."""
        for _ in self.steps(until_ns):
            pass

    def steps(self, until_ns: int) -> Generator[None, None, None]:
        """Do the same in steps, of which each takes a few milliseconds.

        What is not done can be done later. No records may be added before all steps are done, or
        they are given up.
        """
        if self._parts:
            yield from self._unpack()
        waiting = self._waiting
        for number in range(len(waiting)):
            if waiting[0].time_ns > until_ns:
                break
            _, kind, role, record = waiting.popleft()
            self.journal.append(entry_of(kind, record, role, self._epoch_s))
            if number % STEP == STEP - 1:
                yield

    def _unpack(self) -> Iterator[None]:
        while self._parts:
            role, part = self._parts.popleft()
            self._bytes -= _bytes_of(part)
            self._waiting.extend(
                _Waiting(time_ns, kind, role, record)
                for time_ns, kind, record in split(part.packed)
            )
            yield
        self._waiting = deque(sorted(self._waiting, key=_time))

    def clear(self) -> None:
        """Drop everything."""
        self._parts.clear()
        self._waiting.clear()
        self._bytes = 0
        self.journal.clear()


def _bytes_of(part: PackedRecords) -> int:
    return len(part.packed) + ENTRY_BYTES * part.entries


def _time(waiting: _Waiting) -> int:
    return waiting.time_ns
