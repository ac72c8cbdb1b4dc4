"""Verification: before a transaction's first batch on a partition, ask its coordinator about it.

Owns the exchange of a partition leader with the transaction coordinator. It must never know records
or which request they came with. Invariant: a guard is returned only for a partition that the
coordinator confirmed to be in the transaction after the guard was made. Clients of version 2 leave
it to the leader to add the partition; for older ones the leader only verifies it (KIP-890), unless
that is switched off. Kafka's ``AddPartitionsToTxnManager``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final, NamedTuple

from minibroker.broker.apis.base import Context, WorkerScope
from minibroker.broker.apis.transactions import AddPartitionsReply, PartitionsToAdd, add_partitions
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.producers import NO_GUARD, Guard
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import TRANSACTION_STATE_TOPIC, transaction_partition
from minibroker.broker.settings.definitions import (
    TRANSACTION_PARTITION_VERIFICATION_ENABLE,
    TRANSACTION_STATE_LOG_NUM_PARTITIONS,
)
from minibroker.runtime.rpc import PeerFailed, PeerLost
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.registry import ApiKey

RETRIES_MAX: Final = 5
RETRY_PAUSE_S: Final = 0.02
"""A transaction can be added when the markers of the previous one are written, which takes some
milliseconds; a client would wait longer. Kafka's ``add.partitions.to.txn.retry.backoff.ms``.
"""

TopicPartition = tuple[str, int]


class TransactionSupport(Enum):
    """What a client expects, by the version of its request: TransactionSupportedOperation."""

    DEFAULT_ERROR = "verify"
    GENERIC_ERROR = "verify, with TRANSACTION_ABORTABLE"
    ADD_PARTITION = "add"
    UNVERIFIED = "append without verification"

    @property
    def adds(self) -> bool:
        """Whether the leader adds the partition to the transaction."""
        return self is TransactionSupport.ADD_PARTITION


def requested_support(ctx: Context, *, generic_since: int, add_since: int) -> TransactionSupport:
    """The support of a transactional request, by its version and the settings in force."""
    support = support_of(ctx.version, generic_since=generic_since, add_since=add_since)
    settings = ctx.dynamic_settings.of(ctx.image.configs)
    if support.adds or settings[TRANSACTION_PARTITION_VERIFICATION_ENABLE]:
        return support
    return TransactionSupport.UNVERIFIED


def support_of(version: int, *, generic_since: int, add_since: int) -> TransactionSupport:
    """The support of a request, given the first versions with generic errors and with adding."""
    if version >= add_since:
        return TransactionSupport.ADD_PARTITION
    if version >= generic_since:
        return TransactionSupport.GENERIC_ERROR
    return TransactionSupport.DEFAULT_ERROR


class ProducerSession(NamedTuple):
    """The producer of a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class Verified(NamedTuple):
    """A guard or an error for each partition; NO_GUARD if its transaction is open already."""

    guards: dict[TopicPartition, Guard]
    errors: dict[TopicPartition, ErrorCode]

    @property
    def unconfirmed(self) -> tuple[TopicPartition, ...]:
        """The partitions that the coordinator must confirm."""
        return tuple(key for key, guard in self.guards.items() if guard != NO_GUARD)


def verify_here(
    scope: WorkerScope,
    session: ProducerSession,
    partition: Partition,
    sequence: int,
    support: TransactionSupport,
) -> Guard | None:
    """Verify one partition without waiting; None if its coordinator is not here or rejects it.

    Raises LogError.
    """
    guard = partition.begin_verification(
        session.producer_id,
        session.producer_epoch,
        sequence,
        adds=support.adds,
        now_ms=scope.wall_ms(),
    )
    if guard == NO_GUARD:
        return guard
    key = partition.log.topic, partition.log.partition
    part = _partitions_to_add(session, (key,), support)
    errors = add_partitions(scope, (part,))[session.transactional_id]
    return guard if errors[key] is ErrorCode.NONE else None


async def verify_transaction(
    scope: WorkerScope,
    session: ProducerSession,
    sequences: Mapping[TopicPartition, int],
    support: TransactionSupport,
) -> Verified:
    """Verify the partitions of batches with these base sequences; this worker must own them."""
    begun = begin_verification(scope, session, sequences, support)
    return await confirm(scope, session, begun, support) if begun.unconfirmed else begun


def begin_verification(
    scope: WorkerScope,
    session: ProducerSession,
    sequences: Mapping[TopicPartition, int],
    support: TransactionSupport,
) -> Verified:
    """Make the guards of partitions whose transaction has no records yet."""
    begun = Verified({}, {})
    for (topic, index), sequence in sequences.items():
        try:
            partition = scope.partition(topic, index)
            if partition is None:
                begun.errors[topic, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                continue
            begun.guards[topic, index] = partition.begin_verification(
                session.producer_id,
                session.producer_epoch,
                sequence,
                adds=support.adds,
                now_ms=scope.wall_ms(),
            )
        except LogError as error:
            begun.errors[topic, index] = error.code
    return begun


async def confirm(
    scope: WorkerScope, session: ProducerSession, begun: Verified, support: TransactionSupport
) -> Verified:
    """Let the coordinator confirm the partitions; remove the guards of those that it does not."""
    if support is TransactionSupport.UNVERIFIED:
        return begun
    errors = await _ask_coordinator(scope, session, begun.unconfirmed, support)
    retries = RETRIES_MAX if support.adds else 0
    while retries and ErrorCode.CONCURRENT_TRANSACTIONS in errors.values():
        retries -= 1
        await scope.sleep_real(RETRY_PAUSE_S)
        errors = await _ask_coordinator(scope, session, begun.unconfirmed, support)
    guards = {key: guard for key, guard in begun.guards.items() if key not in errors}
    return Verified(guards, {**begun.errors, **errors})


async def _ask_coordinator(
    scope: WorkerScope,
    session: ProducerSession,
    partitions: tuple[TopicPartition, ...],
    support: TransactionSupport,
) -> dict[TopicPartition, ErrorCode]:
    part = _partitions_to_add(session, partitions, support)
    count = scope.settings[TRANSACTION_STATE_LOG_NUM_PARTITIONS]
    index = transaction_partition(session.transactional_id, count)
    owner = scope.partition_owner(TRANSACTION_STATE_TOPIC, index)
    try:
        reply: AddPartitionsReply = await scope.request_owner(
            owner, ApiKey.ADD_PARTITIONS_TO_TXN, (part,)
        )
    except PeerLost:
        return dict.fromkeys(partitions, ErrorCode.NETWORK_EXCEPTION)
    except PeerFailed:
        return dict.fromkeys(partitions, ErrorCode.UNKNOWN_SERVER_ERROR)
    return {
        key: _leader_error(error, support)
        for key, error in reply[session.transactional_id].items()
        if error is not ErrorCode.NONE
    }


def _partitions_to_add(
    session: ProducerSession, partitions: tuple[TopicPartition, ...], support: TransactionSupport
) -> PartitionsToAdd:
    return PartitionsToAdd(
        session.transactional_id,
        session.producer_id,
        session.producer_epoch,
        not support.adds,
        partitions,
    )


def _leader_error(error: ErrorCode, support: TransactionSupport) -> ErrorCode:
    """The error of a partition leader for an error of the coordinator."""
    if error is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    is_abortable = error is ErrorCode.TRANSACTION_ABORTABLE
    if is_abortable and support is TransactionSupport.DEFAULT_ERROR:
        return ErrorCode.INVALID_TXN_STATE
    return error


_UNVERIFIED: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


def produce_error(error: ErrorCode, support: TransactionSupport) -> tuple[ErrorCode, str]:
    """The error of Produce for one of `Verified`, and its text.

    Clients retry NOT_ENOUGH_REPLICAS without asking for metadata.
    """
    if error is ErrorCode.INVALID_TXN_STATE:
        return error, "the partition was not added to the transaction"
    is_concurrent = error is ErrorCode.CONCURRENT_TRANSACTIONS and not support.adds
    if error in _UNVERIFIED or is_concurrent:
        text = f"it is not known whether the partition is in the transaction: {error.name}"
        return ErrorCode.NOT_ENOUGH_REPLICAS, text
    return error, "the transaction coordinator did not confirm the partition"
