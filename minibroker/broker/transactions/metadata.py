"""One transactional id: its producer, the state of its transaction, and its transitions.

Owns which fields a transition changes. It must never decide whether a transition is due; that is
in ``state_machine``. Invariant: a transition returns a new value, which takes the place of the
old one only when it is in the log; one that the table of states does not have raises
``InvalidTransactionTransition``, a bug and not a client's error. Kafka's classes are
``TransactionMetadata`` and ``TxnTransitMetadata``.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from minibroker.broker.transactions.states import (
    PREDECESSORS,
    PREPARED,
    STATE_NAMES,
    TransactionState,
)

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1

EPOCH_MAX: Final = 32767
"""Largest epoch. Clients never get it, so that a coordinator can always fence a producer."""

TIMEOUT_OF_TWO_PHASE_COMMIT: Final = 2**31 - 1
"""Timeout of a transaction that another coordinator ends (KIP-939): it never times out."""

TopicPartition = tuple[str, int]


class InvalidTransactionTransition(RuntimeError):
    """A transition that is not in the table. This is a bug in the rules, not a client error."""


class TransactionMetadata(NamedTuple):
    """The stored state of one transactional id. Times are epoch milliseconds."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    """Partitions of the transaction. While markers are written: those that have none yet."""
    start_ms: int
    updated_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id to continue with if the epoch of this one is exhausted (KIP-890)."""
    last_epoch: int = NO_EPOCH
    """The epoch before the last increment; it is not stored."""
    client_version: int = 0
    """Transaction version of the client that made the last change."""

    @property
    def is_prepared(self) -> bool:
        return self.state in PREPARED

    @property
    def is_commit(self) -> bool:
        """Whether a prepared transaction is to be committed."""
        return self.state is TransactionState.PREPARE_COMMIT

    def _moved(self, state: TransactionState, now_ms: int, **changes: Any) -> TransactionMetadata:
        if self.state not in PREDECESSORS[state]:
            raise InvalidTransactionTransition(
                f"a transaction in state {STATE_NAMES[self.state]} cannot become "
                f"{STATE_NAMES[state]}: {self}"
            )
        moved = self._replace(state=state, updated_ms=now_ms, previous_producer_id=self.producer_id)
        return moved._replace(**changes)

    def with_epoch(
        self, epoch: int, *, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        """An initialized producer with the same producer id."""
        return self._moved(
            TransactionState.EMPTY,
            now_ms,
            producer_epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIME,
        )

    def with_producer_id(
        self, producer_id: int, *, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> TransactionMetadata:
        """An initialized producer with a new producer id, because the epochs are exhausted."""
        moved = self.with_epoch(0, last_epoch=last_epoch, timeout_ms=timeout_ms, now_ms=now_ms)
        return moved._replace(producer_id=producer_id)

    def with_partitions(
        self, partitions: frozenset[TopicPartition], *, client_version: int, now_ms: int
    ) -> TransactionMetadata:
        """The transaction with more partitions; it starts now if none is ongoing."""
        ongoing = self.state is TransactionState.ONGOING
        return self._moved(
            TransactionState.ONGOING,
            now_ms,
            partitions=self.partitions | partitions,
            start_ms=self.start_ms if ongoing else now_ms,
            client_version=client_version,
        )

    def fenced(self) -> TransactionMetadata:
        """The same with the next epoch, for an abort by the coordinator. It is never stored."""
        epoch = min(self.producer_epoch + 1, EPOCH_MAX)
        return self._replace(producer_epoch=epoch, last_epoch=NO_EPOCH)

    def prepared(
        self, *, committed: bool, client_version: int, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """The decision to commit or abort; with transaction version 2 it has the next epoch."""
        epoch, last_epoch = self.producer_epoch, self.last_epoch
        if client_version >= 2:
            epoch, last_epoch = min(epoch + 1, EPOCH_MAX), self.producer_epoch
        ongoing = self.state is TransactionState.ONGOING
        return self._moved(
            TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=epoch,
            last_epoch=last_epoch,
            start_ms=self.start_ms if ongoing else now_ms,
            next_producer_id=next_producer_id,
            client_version=client_version,
        )

    def completed(self, now_ms: int) -> TransactionMetadata:
        """The transaction after all markers were written."""
        producer_id, epoch = self.producer_id, self.producer_epoch
        if self.client_version >= 2 and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, 0
        return self._moved(
            TransactionState.COMPLETE_COMMIT if self.is_commit else TransactionState.COMPLETE_ABORT,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
        )


def new_metadata(producer_id: int, *, timeout_ms: int, now_ms: int) -> TransactionMetadata:
    """A transactional id that is not stored yet: it has no epoch."""
    return TransactionMetadata(
        producer_id=producer_id,
        producer_epoch=NO_EPOCH,
        timeout_ms=timeout_ms,
        state=TransactionState.EMPTY,
        partitions=frozenset(),
        start_ms=NO_TIME,
        updated_ms=now_ms,
    )
