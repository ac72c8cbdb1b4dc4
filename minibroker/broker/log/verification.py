"""Verification of transactional batches: does the coordinator know that the partition takes part?

Owns the guards of verifications in progress. It must never ask a coordinator or read a clock: times
are given. Invariant: a batch that starts a transaction is appended only with the guard of a
verification that was started after the producer's last marker, so no batch is appended to a
transaction that has ended in the meantime. Kafka's ``VerificationStateEntry`` and
``VerificationGuard`` (KIP-890).
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

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
