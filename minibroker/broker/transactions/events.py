"""What happens to a transactional id, and what is decided about it.

Owns the vocabulary between the rules (``state_machine``) and the service that carries decisions
out. It must never contain a rule. Invariant: a decision with ``write`` is not answered before the
value is in the log; if the log rejects it, nothing has changed and the client gets the log's error.
In Kafka these are the parameters and results of ``TransactionCoordinator``'s handlers.
"""

from __future__ import annotations

from typing import NamedTuple

from minibroker.broker.transactions.metadata import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    TopicPartition,
    TransactionMetadata,
)
from minibroker_protocol.errors import ErrorCode


class ProducerIdAndEpoch(NamedTuple):
    """One incarnation of a producer."""

    producer_id: int
    epoch: int


class InitProducer(NamedTuple):
    """A producer starts, or continues after an error as ``expected`` (KIP-360)."""

    timeout_ms: int
    expected: ProducerIdAndEpoch | None
    server_version: int
    """Transaction version of the cluster, by which an ongoing transaction is aborted."""


class AddPartitions(NamedTuple):
    """A producer is about to write to partitions."""

    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]
    client_version: int


class VerifyPartitions(NamedTuple):
    """A partition leader asks whether partitions are in the transaction (KIP-890)."""

    producer: ProducerIdAndEpoch
    partitions: frozenset[TopicPartition]


class EndTransaction(NamedTuple):
    """A producer commits or aborts."""

    producer: ProducerIdAndEpoch
    committed: bool
    client_version: int


class TransactionTimedOut(NamedTuple):
    """The timeout of an ongoing transaction has passed."""

    server_version: int


class MarkersWritten(NamedTuple):
    """The markers of these partitions are in their logs, or their topics are deleted."""

    partitions: frozenset[TopicPartition]


class TransactionDecision(NamedTuple):
    """The answer, and what to do before it is given."""

    error: ErrorCode = ErrorCode.NONE
    producer: ProducerIdAndEpoch = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_EPOCH)
    write: TransactionMetadata | None = None
    """Write this; if that succeeds, it is the new state."""
    keep: TransactionMetadata | None = None
    """This is the new state, without a write: the log can restore it."""
    needs_producer_id: bool = False
    """Nothing is decided: repeat the event with a producer id that was never used."""
