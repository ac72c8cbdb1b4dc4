"""Merges the records of all processes into one journal.

Owns the records that were handed over but are not entries yet. It must never know how they arrive.
Invariant: entries are in the order of the times of their records, whichever process recorded
them: only records up to a time are merged by which every process has handed over its own. Nothing
is decoded before that, so that a journal that is not read costs little. The memory of records and
entries together is bounded.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from minibroker.journal.bounded import Journal
from minibroker.journal.buffer import JournalChunk
from minibroker.journal.records import entry_of, split


class _Waiting(NamedTuple):
    """A record that is too new to be merged."""

    time_ns: int
    kind: int
    role: str
    record: memoryview


class JournalMerger:
    """Adds the records of all processes to a journal."""

    def __init__(self, journal: Journal, epoch_s: float) -> None:
        """``epoch_s`` are the seconds from the broker's clock to those since 1970."""
        self.journal = journal
        self._epoch_s = epoch_s
        self._chunks: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._numbers: dict[str, int] = {}
        self._later: list[_Waiting] = []
        self._client_ids: dict[str, str | None] = {}

    def add(self, role: str, chunk: JournalChunk) -> None:
        """Take over the records of a process."""
        if self._numbers.get(role) == chunk.number:
            return
        self._numbers[role] = chunk.number
        self.journal.skip(chunk.dropped)
        if not chunk.packed:
            return
        self._chunks.append((role, chunk.packed))
        self._bytes += len(chunk.packed)
        bytes_max = self.journal.bytes_max
        if self.journal.bytes + self._bytes > bytes_max:
            self.journal.shrink(max(bytes_max - self._bytes, 0))
        while self._bytes > bytes_max and len(self._chunks) > 1:
            _, dropped = self._chunks.popleft()
            self._bytes -= len(dropped)
            self.journal.skip(sum(1 for _ in split(dropped)))

    def received(self, role: str) -> int:
        """Return the number of the last chunk of a process; 0 if there was none."""
        return self._numbers.get(role, 0)

    def merge(self, until_ns: int) -> None:
        """Make entries of all records up to a time."""
        if not self._chunks and not self._later:
            return
        waiting = self._later
        for role, packed in self._chunks:
            waiting.extend(
                _Waiting(time_ns, kind, role, record) for time_ns, kind, record in split(packed)
            )
        self._chunks.clear()
        self._bytes = 0
        waiting.sort(key=_time)
        count = len(waiting)
        while count and waiting[count - 1].time_ns > until_ns:
            count -= 1
        self._later = waiting[count:]
        for _, kind, role, record in waiting[:count]:
            entry = entry_of(kind, record, role, self._epoch_s, self._client_ids)
            self.journal.append(entry)

    def clear(self) -> None:
        """Drop everything."""
        self._chunks.clear()
        self._later.clear()
        self._bytes = 0
        self.journal.clear()


def _time(waiting: _Waiting) -> int:
    return waiting.time_ns
