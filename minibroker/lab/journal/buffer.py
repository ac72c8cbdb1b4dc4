"""Records that one process has not handed over yet.

Owns their memory. It must never know what a record means. Invariant: adding a record never waits
and never packs it, and memory is bounded by dropping the oldest records. Every entry has a
position among all entries of its role, from 0, and a chunk says the position of its first one, so
that each entry that is missing before it is known, also those of a former process. A chunk whose
receipt is unknown is handed over again, so that none is lost or counted twice.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from minibroker.lab.journal.records import PackedRecords, Record, pack

BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Memory of the records that a process keeps; they are fetched four times a second."""

CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of the records that are handed over at once."""

PART_BYTES: Final = 256 * 1024
"""Size of the records that are packed and dropped together."""

RECORD_BYTES: Final = 256
"""Estimate of the memory of a record without frames."""


@dataclass(frozen=True, slots=True)
class JournalChunk:
    """Records of one process, in order."""

    number: int
    """Different for every chunk of all processes, also after a restart."""
    parts: tuple[PackedRecords, ...]
    first: int
    """Position of the first entry: the number of entries that its role recorded before it."""
    since_ns: int
    """A time after all entries before the first one and before all others."""
    dropped: int
    """Entries that the process dropped since the last chunk."""
    has_more: bool
    """Whether another chunk is ready."""

    @property
    def end(self) -> int:
        """The position after the last entry."""
        return self.first + sum(part.entries for part in self.parts)


class JournalBuffer:
    """The records of one process."""

    def __init__(
        self, started_ns: int, count: memoryview[int], bytes_max: int = BUFFER_BYTES_MAX
    ) -> None:
        """``started_ns`` is the current time of records.

        ``count`` is the word of ``JournalCounts`` with the number of entries that this role has
        recorded, in former processes too; ``bytes_max`` is the limit of memory.
        """
        self._bytes_max = bytes_max
        self._part_bytes = min(PART_BYTES, bytes_max // 2)
        self._count = count
        self._counted = self._recorded = self._packed = self._first = count[0]
        """Positions: the next one that is not expected, the next entry, the first one in no part,
        the first one that is kept.
        """
        self._open: list[Record] = []
        self._open_bytes = 0
        """Estimate of their memory."""
        self._parts: deque[PackedRecords] = deque()
        self._bytes = 0
        """Memory of the parts."""
        self._dropped = 0
        self._since_ns = self._number = started_ns
        self._sent: JournalChunk | None = None
        """The last chunk, until its receipt is known."""

    def __len__(self) -> int:
        """Memory of the records that are not in a chunk."""
        return self._bytes + self._open_bytes

    def expect(self, entries: int) -> None:
        """Count entries that ``add_expected`` will add in this step, before they happen.

        A process that is killed in between has lost them.
        """
        # Written only, because reading shared memory takes as long again.
        self._counted = counted = self._counted + entries
        self._count[0] = counted

    def add(self, record: Record, frame_bytes: int = 0) -> None:
        """Add a record of one entry, whose frames have a size.

        A list may be changed until it is packed.
        """
        self.expect(1)
        self.add_expected(record, frame_bytes, 1)

    def add_expected(self, record: Record, frame_bytes: int, entries: int) -> None:
        """Do the same with a record whose entries are counted already."""
        self._recorded += entries
        self._open.append(record)
        self._open_bytes += RECORD_BYTES + frame_bytes
        if self._open_bytes > self._part_bytes:
            self._close_part()

    def _close_part(self) -> None:
        """Pack the open records, and drop the oldest parts if another one would be too much."""
        if not self._open:
            return
        part = pack(self._open, self._recorded - self._packed)
        self._packed = self._recorded
        self._parts.append(part)
        self._bytes += len(part.packed)
        self._open = []
        self._open_bytes = 0
        while self._bytes + self._part_bytes > self._bytes_max and len(self._parts) > 1:
            oldest = self._parts.popleft()
            self._bytes -= len(oldest.packed)
            self._dropped += oldest.entries
            self._first += oldest.entries
            self._since_ns = oldest.last_ns

    def take_all(self, received: int) -> list[JournalChunk]:
        """Return all records, also those of which it is unknown whether they arrived."""
        chunks = [self.take(received)]
        while chunks[-1].parts:
            chunks.append(self.take(chunks[-1].number))
        return chunks

    def take(self, received: int = 0, bytes_max: int = CHUNK_BYTES_MAX) -> JournalChunk:
        """Return the oldest records, of at most so many bytes unless one part has more.

        ``received`` is the number of the last chunk that arrived; if it is not the last one that
        was returned, that one is returned again.
        """
        if self._sent is not None and self._sent.number != received:
            return self._sent
        self._close_part()
        self._count[0] = self._counted = self._recorded  # What else was expected never will be.
        taken: list[PackedRecords] = []
        size = 0
        while self._parts and (not taken or size + len(self._parts[0].packed) <= bytes_max):
            taken.append(self._parts.popleft())
            size += len(taken[-1].packed)
        self._bytes -= size
        self._number += 1
        chunk = self._sent = JournalChunk(
            self._number,
            tuple(taken),
            self._first,
            self._since_ns,
            self._dropped,
            bool(self._parts),
        )
        self._first = chunk.end
        self._dropped = 0
        if taken:
            self._since_ns = taken[-1].last_ns
        return chunk
