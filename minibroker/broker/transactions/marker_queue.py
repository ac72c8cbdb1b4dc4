"""Markers that wait to be sent to the owners of partitions.

Owns what is to be sent and to which owners requests are in flight. It must never know how markers
are sent, or the state of a transaction. Invariant: an owner has at most one request in flight, so
markers that come meanwhile are sent together in the next one, and an owner is computed when a
marker is sent, not earlier. Kafka's class is ``TransactionMarkerChannelManager``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from minibroker.broker.transactions.metadata import TopicPartition

MARKERS_PER_REQUEST_MAX: Final = 500
"""Transactions whose markers are sent in one request; further ones wait for the next."""

PartitionsById = dict[str, frozenset[TopicPartition]]
"""Partitions by transactional id."""


class MarkerQueue:
    """Partitions without a marker, by transactional id."""

    def __init__(self) -> None:
        self._waiting: PartitionsById = {}
        self._busy: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, transactional_id: str, partitions: frozenset[TopicPartition]) -> None:
        """Add partitions whose markers are to be sent."""
        known = self._waiting.get(transactional_id, frozenset())
        self._waiting[transactional_id] = known | partitions

    def take(self, owner_of: Callable[[str, int], int]) -> dict[int, PartitionsById]:
        """Take what can be sent now, by owner; each owner is busy until ``sent``."""
        taken: dict[int, PartitionsById] = {}
        left: PartitionsById = {}
        for transactional_id, partitions in self._waiting.items():
            for each in sorted(partitions):
                owner = owner_of(*each)
                target = left
                batch = taken.setdefault(owner, {})
                fits = transactional_id in batch or len(batch) < MARKERS_PER_REQUEST_MAX
                if owner not in self._busy and fits:
                    target = batch
                target[transactional_id] = target.get(transactional_id, frozenset()) | {each}
        self._waiting = left
        batches = {owner: batch for owner, batch in taken.items() if batch}
        self._busy |= batches.keys()
        return batches

    @property
    def is_busy(self) -> bool:
        """Whether a request is in flight."""
        return bool(self._busy)

    def sent(self, owner: int) -> None:
        """Note that the request to the owner was answered, or has failed."""
        self._busy.discard(owner)

    def clear(self) -> None:
        """Remove everything that waits."""
        self._waiting.clear()
