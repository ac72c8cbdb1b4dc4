"""The transactions that keep consumers with ``read_committed`` from the end of a partition.

Owns the first offset of each transaction that is open, or whose marker is not yet below the high
watermark. It must never know producers' sequence numbers, files or clocks. Invariant: the records
of every transaction below the first unstable offset are committed or aborted for good. Kafka keeps
the same in ``ProducerStateManager`` (``ongoingTxns``, ``unreplicatedTxns``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Final, NamedTuple

NO_OFFSET: Final = -1


class CompletedTransaction(NamedTuple):
    """A transaction whose marker was appended at ``last_offset``.

    ``last_stable_offset`` is the one after the marker is replicated.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int
    committed: bool


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
