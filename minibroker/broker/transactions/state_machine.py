"""The transaction coordinator's rules: an event and a transactional id's state to a decision.

Owns the events, the decisions, and the order of checks, which clients can observe. It must never
know the log, other transactional ids, requests or a clock. Invariants: a decision to commit or
abort is never contradicted by a later one of the same transaction, whatever is repeated, reordered
or lost; one with ``write`` is not answered before the value is in the log, and if the log rejects
it, nothing has changed and the client gets the log's error. Repeated requests are recognised by
their epoch: a client of transaction version 2 gets a new epoch at each end of a transaction, so the
end of an earlier transaction cannot end the next one (KIP-890). Kafka's class is
``TransactionCoordinator``.
"""

from __future__ import annotations

from typing import NamedTuple

from minibroker.broker.transactions.metadata import (
    EPOCH_MAX,
    IDLE,
    NO_EPOCH,
    NO_PRODUCER_ID,
    TIMEOUT_OF_TWO_PHASE_COMMIT,
    TopicPartition,
    TransactionMetadata,
    TransactionState,
    new_metadata,
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


CONCURRENT = TransactionDecision(ErrorCode.CONCURRENT_TRANSACTIONS)
FENCED = TransactionDecision(ErrorCode.PRODUCER_FENCED)
UNKNOWN_PRODUCER = TransactionDecision(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
INVALID_STATE = TransactionDecision(ErrorCode.INVALID_TXN_STATE)
PRODUCER_ID_NEEDED = TransactionDecision(needs_producer_id=True)

EPOCH_BUMP_SINCE = 2
"""Transaction version since which the end of a transaction increments the epoch."""


def is_exhausted(epoch: int) -> bool:
    """Whether a client cannot get a higher epoch; the highest is for fencing."""
    return epoch >= EPOCH_MAX - 1


def _answer(metadata: TransactionMetadata, write: TransactionMetadata) -> TransactionDecision:
    producer = ProducerIdAndEpoch(metadata.producer_id, metadata.producer_epoch)
    return TransactionDecision(producer=producer, write=write)


# --------------------------------------------------------------------------- InitProducerId


def init_producer(
    metadata: TransactionMetadata | None,
    event: InitProducer,
    now_ms: int,
    new_producer_id: int | None = None,
) -> TransactionDecision:
    """Give the producer an epoch that fences all earlier ones.

    An ongoing transaction is aborted first, and the client retries.
    """
    if metadata is None:
        if new_producer_id is None:
            return PRODUCER_ID_NEEDED
        metadata = new_metadata(new_producer_id, timeout_ms=event.timeout_ms, now_ms=now_ms)
    if metadata.is_prepared:
        return CONCURRENT
    if event.expected is not None and not _is_known(metadata, event.expected):
        return FENCED
    if metadata.state is TransactionState.ONGOING:
        decision = _fence(metadata, event.server_version, now_ms, new_producer_id)
        if decision.needs_producer_id:
            return decision
        return TransactionDecision(ErrorCode.CONCURRENT_TRANSACTIONS, write=decision.write)
    return _next_epoch(metadata, event, now_ms, new_producer_id)


def _is_known(metadata: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Whether the producer id is the current one, or the one that was exhausted before it."""
    return (
        metadata.producer_epoch == NO_EPOCH
        or expected.producer_id == metadata.producer_id
        or (expected.producer_id == metadata.previous_producer_id and is_exhausted(expected.epoch))
    )


def _next_epoch(
    metadata: TransactionMetadata, event: InitProducer, now_ms: int, new_producer_id: int | None
) -> TransactionDecision:
    expected, epoch = event.expected, metadata.producer_epoch
    is_current = expected is None or epoch in (NO_EPOCH, expected.epoch)
    if is_current and is_exhausted(epoch):
        if new_producer_id is None:
            return PRODUCER_ID_NEEDED
        write = metadata.with_producer_id(
            new_producer_id,
            last_epoch=NO_EPOCH if expected is None else epoch,
            timeout_ms=event.timeout_ms,
            now_ms=now_ms,
        )
        return _answer(write, write)
    if is_current:
        next_epoch, last_epoch = epoch + 1, NO_EPOCH if expected is None else epoch
    elif expected is not None and expected.epoch == metadata.last_epoch:
        # The answer was lost: give the same epoch again.
        next_epoch, last_epoch = epoch, metadata.last_epoch
    else:
        return FENCED
    write = metadata.with_epoch(
        next_epoch, last_epoch=last_epoch, timeout_ms=event.timeout_ms, now_ms=now_ms
    )
    return _answer(write, write)


def _fence(
    metadata: TransactionMetadata, server_version: int, now_ms: int, new_producer_id: int | None
) -> TransactionDecision:
    """Abort an ongoing transaction with an epoch that its producer does not have."""
    if server_version >= EPOCH_BUMP_SINCE:
        return _prepare(metadata, False, EPOCH_BUMP_SINCE, now_ms, new_producer_id)
    return _prepare(metadata.fenced(), False, 0, now_ms, new_producer_id)


# --------------------------------------------------------------------------- AddPartitionsToTxn


def add_partitions(
    metadata: TransactionMetadata | None, event: AddPartitions, now_ms: int
) -> TransactionDecision:
    """Make partitions part of the transaction, which this may start."""
    if metadata is None:
        return UNKNOWN_PRODUCER
    if metadata.is_prepared:
        # Before the checks of the producer: its new id may be known only when this is complete.
        return CONCURRENT
    error = _producer_error(metadata, event.producer)
    if error is not ErrorCode.NONE:
        return TransactionDecision(error)
    if metadata.state is TransactionState.ONGOING and event.partitions <= metadata.partitions:
        return TransactionDecision()
    return TransactionDecision(
        write=metadata.with_partitions(
            event.partitions,
            client_version=event.client_version,
            now_ms=max(now_ms, metadata.updated_ms),
        )
    )


def verify_partitions(
    metadata: TransactionMetadata | None, event: VerifyPartitions
) -> dict[TopicPartition, ErrorCode]:
    """Whether each partition is in the ongoing transaction; nothing changes."""
    error = ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if metadata is not None:
        error = _producer_error(metadata, event.producer)
        if error is ErrorCode.NONE and metadata.is_prepared:
            error = ErrorCode.CONCURRENT_TRANSACTIONS
        if error is ErrorCode.NONE:
            return {
                each: ErrorCode.NONE
                if each in metadata.partitions
                else ErrorCode.TRANSACTION_ABORTABLE
                for each in event.partitions
            }
    return dict.fromkeys(event.partitions, error)


def _producer_error(metadata: TransactionMetadata, producer: ProducerIdAndEpoch) -> ErrorCode:
    if metadata.producer_id != producer.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if metadata.producer_epoch != producer.epoch:
        return ErrorCode.PRODUCER_FENCED
    return ErrorCode.NONE


# --------------------------------------------------------------------------------------- EndTxn


def end_transaction(
    metadata: TransactionMetadata | None,
    event: EndTransaction,
    now_ms: int,
    new_producer_id: int | None = None,
) -> TransactionDecision:
    """Decide to commit or abort. The answer to an earlier end is given again if it was lost."""
    if metadata is None:
        return UNKNOWN_PRODUCER
    if event.client_version < EPOCH_BUMP_SINCE:
        return _end_without_bump(metadata, event, now_ms)
    return _end_with_bump(metadata, event, now_ms, new_producer_id)


def _end_without_bump(
    metadata: TransactionMetadata, event: EndTransaction, now_ms: int
) -> TransactionDecision:
    """Transaction versions 0 and 1: a repeated end cannot be told from the next one."""
    error = _producer_error(metadata, event.producer)
    if error is not ErrorCode.NONE:
        return TransactionDecision(error)
    if metadata.is_prepared:
        return CONCURRENT
    if metadata.state is TransactionState.ONGOING:
        decision = _prepare(metadata, event.committed, 0, now_ms, NO_PRODUCER_ID)
        return decision._replace(producer=TransactionDecision().producer)
    ended = TransactionState.COMPLETE_COMMIT if event.committed else TransactionState.COMPLETE_ABORT
    return TransactionDecision() if metadata.state is ended else INVALID_STATE


def _end_with_bump(
    metadata: TransactionMetadata,
    event: EndTransaction,
    now_ms: int,
    new_producer_id: int | None,
) -> TransactionDecision:
    """Transaction version 2: the epoch tells a repeated end from the next one."""
    if metadata.is_prepared:
        # Before the checks of the producer: its new id may be known only when this is complete.
        return CONCURRENT
    producer, epoch = event.producer, metadata.producer_epoch
    over_overflow = (
        producer.producer_id == metadata.previous_producer_id
        and producer.epoch == EPOCH_MAX - 1
        and epoch == 0
    )
    if producer.producer_id != metadata.producer_id and not over_overflow:
        return UNKNOWN_PRODUCER
    is_complete = metadata.state in IDLE and metadata.state is not TransactionState.EMPTY
    is_repeated = is_complete and (over_overflow or epoch == producer.epoch + 1)
    if not is_repeated and epoch != producer.epoch:
        return FENCED
    if metadata.state is TransactionState.ONGOING:
        return _prepare(metadata, event.committed, event.client_version, now_ms, new_producer_id)
    if is_repeated:
        committed = metadata.state is TransactionState.COMPLETE_COMMIT
        if committed != event.committed:
            return INVALID_STATE
        return TransactionDecision(producer=ProducerIdAndEpoch(metadata.producer_id, epoch))
    if event.committed:
        return INVALID_STATE
    # The client does not know whether a partition was added.
    return _prepare(metadata, False, event.client_version, now_ms, new_producer_id)


def _prepare(
    metadata: TransactionMetadata,
    committed: bool,
    client_version: int,
    now_ms: int,
    new_producer_id: int | None,
) -> TransactionDecision:
    """The decision, with the producer id and epoch that the client continues with."""
    next_producer_id = NO_PRODUCER_ID
    if client_version >= EPOCH_BUMP_SINCE and is_exhausted(metadata.producer_epoch):
        if new_producer_id is None:
            return PRODUCER_ID_NEEDED
        next_producer_id = new_producer_id
    write = metadata.prepared(
        committed=committed,
        client_version=client_version,
        next_producer_id=next_producer_id,
        now_ms=max(now_ms, metadata.updated_ms),
    )
    return _answer(write.completed(write.updated_ms), write)


# ------------------------------------------------------------------------------ internal events


def is_timed_out(metadata: TransactionMetadata, now_ms: int) -> bool:
    """Whether an ongoing transaction must be aborted."""
    return (
        metadata.state is TransactionState.ONGOING
        and metadata.timeout_ms != TIMEOUT_OF_TWO_PHASE_COMMIT
        and metadata.start_ms + metadata.timeout_ms < now_ms
    )


def time_out(
    metadata: TransactionMetadata,
    server_version: int,
    now_ms: int,
    new_producer_id: int | None = None,
) -> TransactionDecision:
    """Abort a transaction that ``is_timed_out``, and fence its producer.

    ``server_version`` is the transaction version of the cluster, here and in ``expire``.
    """
    if not is_timed_out(metadata, now_ms):
        return TransactionDecision()
    return _fence(metadata, server_version, now_ms, new_producer_id)


def expire(
    metadata: TransactionMetadata | None,
    server_version: int,
    now_ms: int,
    new_producer_id: int | None = None,
) -> TransactionDecision:
    """Abort an ongoing transaction as if it had timed out."""
    if metadata is None:
        return TransactionDecision(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    if metadata.is_prepared:
        return CONCURRENT
    if metadata.state is not TransactionState.ONGOING:
        return INVALID_STATE
    return _fence(metadata, server_version, now_ms, new_producer_id)


def markers_written(
    metadata: TransactionMetadata, partitions: frozenset[TopicPartition], now_ms: int
) -> TransactionDecision:
    """Complete the transaction when no partition lacks its marker.

    The markers of ``partitions`` are in their logs, or their topics are deleted.
    """
    left = metadata.partitions - partitions
    if left:
        return TransactionDecision(keep=metadata._replace(partitions=left))
    return TransactionDecision(
        keep=metadata._replace(partitions=left),
        write=metadata.completed(max(now_ms, metadata.updated_ms)),
    )


def is_expired(metadata: TransactionMetadata, now_ms: int, expiration_ms: int) -> bool:
    """Whether the transactional id may be deleted."""
    return metadata.state in IDLE and metadata.updated_ms <= now_ms - expiration_ms
