"""The transactions that a cleaning has read so far: which are aborted, and which still have data.

Owns the decision whether a batch belongs to an aborted transaction, and whether the data of a
marker's transaction is gone. It must never know files or keys. Invariant: batches are read in the
order of their offsets, and a marker is dispensable only if no batch of its transaction was read
before it. Kafka's ``CleanedTransactionMetadata``.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop

from minibroker.broker.log.transaction_index import AbortedTransaction


class _Aborted:
    def __init__(self, entry: AbortedTransaction) -> None:
        self.entry = entry
        self.has_data = False


class CleanedTransactions:
    """The state of one pass over a log; ``kept`` are aborted transactions that still have data."""

    def __init__(self, aborted: Iterable[AbortedTransaction] = ()) -> None:
        self._pending = [(entry.first_offset, entry) for entry in aborted]
        heapify(self._pending)
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions whose markers were read and are needed. The caller empties it."""

    def is_aborted(self, producer_id: int, last_offset: int) -> bool:
        """Read a transactional data batch; returns whether its transaction was aborted."""
        if self._pending:
            self._start_until(last_offset)
        aborted = self._aborted.get(producer_id)
        if aborted is None:
            self._committed.add(producer_id)
            return False
        aborted.has_data = True
        return True

    def is_dispensable(self, producer_id: int, last_offset: int, *, committed: bool | None) -> bool:
        """Read a control batch; returns whether no data of its transaction was read.

        ``committed`` is None for a control batch that ends no transaction, which stays.
        """
        if self._pending:
            self._start_until(last_offset)
        if committed is None:
            return False
        if committed:
            had_data = producer_id in self._committed
            self._committed.discard(producer_id)
            return not had_data
        aborted = self._aborted.pop(producer_id, None)
        if aborted is None or not aborted.has_data:
            return True
        self.kept.append(aborted.entry)
        return False

    def _start_until(self, offset: int) -> None:
        """Start the aborted transactions up to an offset."""
        pending = self._pending
        while pending and pending[0][0] <= offset:
            _, entry = heappop(pending)
            self._aborted.setdefault(entry.producer_id, _Aborted(entry))
