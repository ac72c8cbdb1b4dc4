"""The transactions of one partition: open ones, aborted ones, and verifications in progress.

Owns three tables. ``UnstableTransactions`` has the first offset of each transaction that is open,
or whose marker is not yet below the high watermark; the records of every transaction below the
first unstable offset are committed or aborted for good. ``TransactionIndex`` is Kafka's
``.txnindex``, 34 bytes an entry, in the segment of the marker; the records may be in earlier
segments. The index of a growing segment is in memory; its file is written with the other indexes,
once there are entries, and recovery rebuilds it. ``Verifications`` has the guards of verifications
in progress: a batch that starts a transaction is appended only with the guard of a verification
that was started after the producer's last marker, so no batch is appended to a transaction that has
ended in the meantime.

It must never know sequence numbers or clocks, nor ask a coordinator. Invariant: entries of an index
are ordered by the offset of their markers, and their last stable offsets never fall, so a search
stops at the first entry with one past the range. Kafka's ``ProducerStateManager`` (``ongoingTxns``,
``unreplicatedTxns``), ``TransactionIndex``, ``AbortedTxn`` and ``VerificationGuard`` (KIP-890).
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, insort
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

from minibroker.broker.log.paths import opened
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import DecodeError

NO_OFFSET: Final = -1


class UnstableTransactions:
    """Transactions of one partition, ordered by their first offsets."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self._unreplicated: list[tuple[int, int]] = []
        self.first_unstable_offset = NO_OFFSET
        """The smallest first offset, or NO_OFFSET if there is no transaction."""

    def __len__(self) -> int:
        """Number of open transactions."""
        return len(self._open)

    def start(self, first_offset: int) -> None:
        """Add an open transaction."""
        insort(self._open, first_offset)
        self._update()

    def complete(self, first_offset: int, last_offset: int) -> int:
        """Complete a transaction by a marker; return the last stable offset that follows."""
        del self._open[bisect_left(self._open, first_offset)]
        insort(self._unreplicated, (first_offset, last_offset))
        self._update()
        return self._open[0] if self._open else last_offset + 1

    def replicated(self, high_watermark: int) -> None:
        """Remove the completed transactions whose markers are below the high watermark."""
        if self._unreplicated:
            self._unreplicated = [each for each in self._unreplicated if each[1] >= high_watermark]
            self._update()

    def _update(self) -> None:
        first = self._open[0] if self._open else NO_OFFSET
        if self._unreplicated and (first == NO_OFFSET or self._unreplicated[0][0] < first):
            first = self._unreplicated[0][0]
        self.first_unstable_offset = first


TRANSACTION_ENTRY: Final = Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """One entry; ``last_offset`` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Entries of a segment, as they are in the file."""

    def __init__(self, data: bytes | bytearray | mmap.mmap = b"") -> None:
        """Raises DecodeError if ``data`` is not an index."""
        if len(data) % TRANSACTION_ENTRY.size:
            raise DecodeError(f"a transaction index of {len(data)} bytes ends in an entry", 0)
        self._data = data if isinstance(data, mmap.mmap) else bytearray(data)
        if len(self) and TRANSACTION_ENTRY.unpack_from(self._data)[0] > _VERSION:
            raise DecodeError("a transaction index has entries of a later version", 0)

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._data) // TRANSACTION_ENTRY.size

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return map(self._entry, range(len(self)))

    def _entry(self, slot: int) -> AbortedTransaction:
        return AbortedTransaction._make(
            TRANSACTION_ENTRY.unpack_from(self._data, slot * TRANSACTION_ENTRY.size)[1:]
        )

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry whose marker is behind those of all others."""
        assert isinstance(self._data, bytearray)
        self._data += TRANSACTION_ENTRY.pack(_VERSION, *entry)

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` entries."""
        assert isinstance(self._data, bytearray)
        del self._data[count * TRANSACTION_ENTRY.size :]

    def encode(self, first: int = 0) -> bytes:
        """The file's bytes from entry ``first`` on."""
        return bytes(self._data[first * TRANSACTION_ENTRY.size :])

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
    with opened(path) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as pages:
        return TransactionIndex(pages).overlapping(start, end)


Guard: TypeAlias = int
"""Identifies one verification. Every guard of a partition is different."""

NO_GUARD: Final[Guard] = 0
"""Guard of a batch that was not verified."""


class Verification(NamedTuple):
    """One verification in progress, and the lowest sequence number that it covers.

    The lowest sequence number blocks later batches while a retry of an earlier one is expected.
    ``adds`` is set if the verification adds the partition to the transaction (version 2).
    """

    guard: Guard
    started_ms: int
    lowest_sequence: int
    epoch: int
    adds: bool


class Verifications:
    """Verifications in progress by producer id."""

    def __init__(self) -> None:
        self._by_producer: dict[int, Verification] = {}
        self._last_guard = NO_GUARD

    def __len__(self) -> int:
        return len(self._by_producer)

    def get(self, producer_id: int) -> Verification | None:
        """The producer's verification in progress."""
        return self._by_producer.get(producer_id)

    def begin(
        self, producer_id: int, sequence: int, epoch: int, *, adds: bool, now_ms: int
    ) -> Guard:
        """Begin or continue the verification of a producer; return its guard."""
        known = self._by_producer.get(producer_id)
        if known is None:
            self._last_guard += 1
            known = Verification(self._last_guard, now_ms, sequence, epoch, adds)
        elif epoch > known.epoch or (epoch == known.epoch and sequence < known.lowest_sequence):
            known = known._replace(epoch=epoch, lowest_sequence=sequence)
        self._by_producer[producer_id] = known
        return known.guard

    def is_verified(self, producer_id: int, guard: Guard) -> bool:
        """Whether the guard is that of the producer's verification in progress."""
        known = self._by_producer.get(producer_id)
        return known is not None and known.guard == guard

    def end(self, producer_id: int) -> None:
        """Forget the verification: the transaction has records now, or has ended."""
        self._by_producer.pop(producer_id, None)

    def expire(self, now_ms: int, idle_ms: int) -> None:
        """Forget verifications that were started ``idle_ms`` ago or earlier."""
        self._by_producer = {
            producer_id: known
            for producer_id, known in self._by_producer.items()
            if now_ms - known.started_ms < idle_ms
        }


class TransactionMarker(NamedTuple):
    """The outcome of one transaction for some of its partitions (topic, index).

    ``transaction_version`` is the one of the producer's requests (KIP-1228).
    """

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    transaction_version: int
    partitions: tuple[tuple[str, int], ...]

    @property
    def marker(self) -> EndTransactionMarker:
        """The content of the control records."""
        return EndTransactionMarker(self.committed, self.coordinator_epoch)
