"""The index of aborted transactions of a segment: Kafka's ``.txnindex``, 34 bytes an entry.

Owns the format and the search. It must never know producers' states or when a transaction is
aborted. Invariant: entries are ordered by the offset of their markers, and their last stable
offsets never fall, so a search stops at the first entry with one past the range. An entry is in
the segment of its marker; the records may be in earlier segments. Kafka's ``TransactionIndex`` and
``AbortedTxn``.

The index of a growing segment is in memory; its file is written with the other indexes, once there
are entries. After a crash, recovery rebuilds it from the log.
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from minibroker.broker.log.transactions import CompletedTransaction
from minibroker_protocol.errors import DecodeError

ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """One entry; ``last_offset`` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def aborted_transaction(completed: CompletedTransaction) -> AbortedTransaction:
    """The entry of a transaction that was aborted."""
    return AbortedTransaction(
        completed.producer_id,
        completed.first_offset,
        completed.last_offset,
        completed.last_stable_offset,
    )


class TransactionIndex:
    """Entries of a segment, as they are in the file."""

    def __init__(self, data: bytes | bytearray | mmap.mmap = b"") -> None:
        """Raises DecodeError if ``data`` is not an index."""
        if len(data) % ENTRY.size:
            raise DecodeError(f"a transaction index of {len(data)} bytes ends in an entry", 0)
        self._data = data if isinstance(data, mmap.mmap) else bytearray(data)
        if len(self) and ENTRY.unpack_from(self._data)[0] > _VERSION:
            raise DecodeError("a transaction index has entries of a later version", 0)

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._data) // ENTRY.size

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(self._entry, range(len(self)))

    def _entry(self, slot: int) -> AbortedTransaction:
        return AbortedTransaction._make(ENTRY.unpack_from(self._data, slot * ENTRY.size)[1:])

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry whose marker is behind those of all others."""
        assert isinstance(self._data, bytearray)
        self._data += ENTRY.pack(_VERSION, *entry)

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` entries."""
        assert isinstance(self._data, bytearray)
        del self._data[count * ENTRY.size :]

    def encode(self, first: int = 0) -> bytes:
        """The file's bytes from entry ``first`` on."""
        return bytes(self._data[first * ENTRY.size :])

    def overlapping(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Transactions with an offset from ``start`` up to ``end``, and whether that is all.

        If not, later segments may have further ones.
        """
        found: list[AbortedTransaction] = []
        first = bisect_left(range(len(self)), start, key=lambda slot: self._entry(slot).last_offset)
        for slot in range(first, len(self)):
            entry = self._entry(slot)
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found, True
        return found, False


def search_transaction_index(
    path: str, start: int, end: int
) -> tuple[list[AbortedTransaction], bool]:
    """As ``TransactionIndex.overlapping``, in a file. Raises OSError and DecodeError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
            return TransactionIndex(pages).overlapping(start, end)
    finally:
        os.close(fd)
