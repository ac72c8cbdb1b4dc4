"""Records that one process has not handed over yet.

Owns their memory. It must never know what a record means. Invariant: adding a record never waits,
memory is bounded by dropping the oldest records, and every dropped record is counted in a chunk. A
chunk whose receipt is unknown is handed over again, so that none is lost or counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from minibroker.journal.records import EXCHANGE_KIND, HEAD

BUFFER_BYTES_MAX: Final = 16 * 1024 * 1024
"""Memory of the records that a process keeps; they are fetched four times a second."""

CHUNK_BYTES_MAX: Final = 4 * 1024 * 1024
"""Size of the records that are handed over at once."""


@dataclass(frozen=True, slots=True)
class JournalChunk:
    """Records of one process, in order."""

    number: int
    """Different for every chunk of all processes, also after a restart."""
    packed: bytes
    dropped: int
    """Records that were dropped since the last chunk."""
    has_more: bool
    """Whether another chunk is ready."""


class JournalBuffer:
    """The records of one process."""

    def __init__(self, started_ns: int, bytes_max: int = BUFFER_BYTES_MAX) -> None:
        """``started_ns`` is a time, which distinguishes this buffer from that of a former process.

        ``bytes_max`` is the limit of memory.
        """
        self._bytes_max = bytes_max
        self._records = bytearray()
        self._dropped = 0
        self._number = started_ns
        self._sent: JournalChunk | None = None
        """The last chunk, until its receipt is known."""
        self._generation = 0
        """Grows when records are removed."""

    def __len__(self) -> int:
        """Bytes of the records that are not in a chunk."""
        return len(self._records)

    def add(
        self,
        record: bytes,
        peer: bytes = b"",
        frame: bytes | memoryview = b"",
        answer: bytes = b"",
    ) -> None:
        """Add a record, which starts with its length, in up to four parts."""
        records = self._records
        records += record
        records += peer
        records += frame
        records += answer
        while len(records) > self._bytes_max:
            self._drop()

    def mark(self) -> tuple[int, int]:
        """Return where the next record will be, for `amend`."""
        return self._generation, len(self._records)

    def amend(self, mark: tuple[int, int], position: int, data: bytes) -> None:
        """Replace bytes of the record at a mark, if it has not been handed over yet."""
        generation, at = mark
        if generation == self._generation:
            self._records[at + position : at + position + len(data)] = data

    def _drop(self) -> None:
        """Drop the older half, so that this is rare."""
        end, count = self._end_of(len(self._records) // 2)
        del self._records[:end]
        self._dropped += count
        self._generation += 1

    def take(self, received: int = 0, bytes_max: int = CHUNK_BYTES_MAX) -> JournalChunk:
        """Return the oldest records.

        ``received`` is the number of the last chunk that arrived; if it is not the last one that
        was returned, that one is returned again.
        """
        if self._sent is not None and self._sent.number != received:
            return self._sent
        end = len(self._records)
        if end > bytes_max:
            end, _ = self._end_of(bytes_max)
        packed = bytes(memoryview(self._records)[:end])
        has_more = end < len(self._records)
        self._records = self._records[end:] if has_more else bytearray()
        self._generation += 1
        self._number += 1
        self._sent = JournalChunk(self._number, packed, self._dropped, has_more)
        self._dropped = 0
        return self._sent

    def _end_of(self, size: int) -> tuple[int, int]:
        """Return the end of the records that start before a size, but at least of one, and their
        number of entries.
        """
        at = count = 0
        while at < len(self._records) and (at < size or not count):
            size, kind, *_ = HEAD.unpack_from(self._records, at)
            at += size
            count += 2 if kind == EXCHANGE_KIND else 1
        return at, count
