"""One transactional id: its states and transitions, and the coordinator's rules for them.

Theory of operation. A transactional id starts *Empty*. The first partition makes its transaction
*Ongoing*. The decision to commit or to abort is made by writing *PrepareCommit* or *PrepareAbort*
to the log; from then on it is never revoked. When every partition has its marker, the transaction
is *CompleteCommit* or *CompleteAbort*, and the next one may start. A client of transaction version
2 may also abort when it does not know whether anything was added (KIP-890), so Empty and the
complete states may move to PrepareAbort. An expired id is removed from the log.

Owns the table of states, which fields a transition changes, the records of ``__transaction_state``
in Kafka's format, the events, the decisions, and the order of checks, which clients can observe.
Keys and values start with their version (int16); a value of None is a tombstone. Version 1 of the
value is written since transaction version 1; it adds tagged fields only (KIP-890, KIP-915). It must
never know the log, other transactional ids, requests or a clock.

Invariants: the numbers and names are Kafka's; a transition returns a new value, which takes the
place of the old one only when it is in the log; one that the table does not have raises
``InvalidTransactionTransition``, a bug and not a client's error; Kafka's ``TransactionLog`` reads
the records written here, and decoding an encoded entry returns an equal one, except for the last
epoch, which is not stored. A decision to commit or abort is never contradicted by a later one of
the same transaction, whatever is repeated, reordered or lost; one with ``write`` is not answered
before the value is in the log, and if the log rejects it, nothing has changed and the client gets
the log's error. Repeated requests are recognised by their epoch: a client of transaction version 2
gets a new epoch at each end of a transaction, so the end of an earlier transaction cannot end the
next one (KIP-890).

Kafka's classes are ``TransactionCoordinator``, ``TransactionState``, ``TransactionMetadata`` and
``TxnTransitMetadata``; its state PrepareEpochFence is never stored and is not needed here, because
nothing happens between fencing a producer and aborting its transaction, and neither is Dead.
"""

from __future__ import annotations

import enum
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from minibroker.broker.groups.records import VERSION_BYTES, read_versioned, versioned
from minibroker.broker.groups.state_log import StateLog, StateLogs
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import TRANSACTION_STATE_TOPIC
from minibroker_protocol.errors import DecodeError, ErrorCode
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT16, INT32, INT64, STRING


class TransactionState(enum.Enum):
    """The state of a transaction. The value is its number in the log."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


STATE_NAMES: Final[Mapping[TransactionState, str]] = {
    TransactionState.EMPTY: "Empty",
    TransactionState.ONGOING: "Ongoing",
    TransactionState.PREPARE_COMMIT: "PrepareCommit",
    TransactionState.PREPARE_ABORT: "PrepareAbort",
    TransactionState.COMPLETE_COMMIT: "CompleteCommit",
    TransactionState.COMPLETE_ABORT: "CompleteAbort",
}
"""Names in responses."""

OTHER_STATE_NAMES: Final = frozenset({"Dead", "PrepareEpochFence"})
"""Names of Kafka's states that no transaction has here; filters may contain them."""

IDLE: Final = frozenset({
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
})  # fmt: skip
"""States without a transaction; only in these may a transactional id expire."""

PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""States in which the decision is made, and markers are being written."""

PREDECESSORS: Final[Mapping[TransactionState, frozenset[TransactionState]]] = {
    TransactionState.EMPTY: IDLE,
    TransactionState.ONGOING: IDLE | {TransactionState.ONGOING},
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    TransactionState.PREPARE_ABORT: IDLE | {TransactionState.ONGOING},
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}
"""The states from which each state may be reached."""

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


KEY_VERSION: Final = 0
VALUE_VERSION: Final = 0
FLEXIBLE_VALUE_VERSION: Final = 1
FLEXIBLE_SINCE: Final = 1
"""Transaction version since which values are written in version 1."""


class TransactionLogKey(Message, versions="0"):
    """Key of a transactional id."""

    transactional_id: str = field(STRING)


class PartitionsSchema(Struct):
    """Partitions of one topic."""

    topic: str = field(STRING)
    partition_ids: list[int] = field(array(INT32))


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    """State of a transactional id."""

    producer_id: int = field(INT64)
    previous_producer_id: int = field(INT64, tagged="1+", tag=0, default=-1)
    next_producer_id: int = field(INT64, tagged="1+", tag=1, default=-1)
    producer_epoch: int = field(INT16)
    transaction_timeout_ms: int = field(INT32)
    transaction_status: int = field(INT8)
    transaction_partitions: list[PartitionsSchema] | None = field(
        array(PartitionsSchema), nullable="0+"
    )
    transaction_last_update_timestamp_ms: int = field(INT64)
    transaction_start_timestamp_ms: int = field(INT64)
    client_transaction_version: int = field(INT16, tagged="1+", tag=2, default=0)


class TransactionEntry(NamedTuple):
    """A transactional id and its state; ``metadata`` is None if the id has expired."""

    transactional_id: str
    metadata: TransactionMetadata | None

    def encode(self, transaction_version: int) -> tuple[bytes, bytes | None]:
        """Encode as the key and value of a record."""
        key = versioned(TransactionLogKey(transactional_id=self.transactional_id), KEY_VERSION)
        if self.metadata is None:
            return key, None
        flexible = transaction_version >= FLEXIBLE_SINCE
        version = FLEXIBLE_VALUE_VERSION if flexible else VALUE_VERSION
        return key, versioned(_value(self.metadata), version)


def decode_transaction(key: bytes, value: bytes | None) -> TransactionEntry | None:
    """Decode a record; None if the version of its key is unknown.

    Raises ``DecodeError`` or ``UnsupportedVersion`` if the record can't be decoded.
    """
    if int.from_bytes(key[:VERSION_BYTES], "big", signed=True) != KEY_VERSION:
        return None
    transactional_id = read_versioned(TransactionLogKey, key).transactional_id
    metadata = None if value is None else _metadata(read_versioned(TransactionLogValue, value))
    return TransactionEntry(transactional_id, metadata)


def _value(metadata: TransactionMetadata) -> TransactionLogValue:
    partitions = None
    if metadata.state is not TransactionState.EMPTY:
        partitions = [
            PartitionsSchema(topic=topic, partition_ids=numbers)
            for topic, numbers in by_topic(metadata.partitions)
        ]
    return TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state.value,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=metadata.updated_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_version,
    )


def by_topic(partitions: Iterable[TopicPartition]) -> list[tuple[str, list[int]]]:
    """Partition numbers of each topic, sorted."""
    topics = defaultdict[str, list[int]](list)
    for topic, partition in sorted(partitions):
        topics[topic].append(partition)
    return list(topics.items())


def _metadata(value: TransactionLogValue) -> TransactionMetadata:
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        raise DecodeError(f"{value.transaction_status} is no state of a transaction", 0) from None
    topics = value.transaction_partitions
    if topics is None or state is TransactionState.EMPTY:
        topics = []
    return TransactionMetadata(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            (each.topic, number) for each in topics for number in each.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )


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


# ------------- Transactions of one I/O worker by id, and the markers that wait to be sent to owners
# Owns the set of transactional ids, each change of which is written to its partition of
# ``__transaction_state`` before it is in force; and which markers are to be sent, and to which
# owners requests are in flight. It must never know waiting requests, rules, a clock, or how markers
# are sent. Invariants: replaying the logs gives the current states, except for partitions whose
# markers are written already; an owner has at most one request in flight, so markers that come
# in the meantime are sent together in the next one, and an owner is computed when a marker is
# sent, not earlier. Kafka's ``TransactionStateManager`` and ``TransactionMarkerChannelManager``.


_logger = logging.getLogger(__name__)

TRANSACTIONAL_IDS_MAX: Final = 100_000
"""Transactional ids that one I/O worker coordinates."""

LOG_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
}
"""Errors of a log as clients get them from the coordinator."""


class TransactionManager(StateLogs[StateLog]):
    """States by transactional id.

    ``open_partition`` returns a partition of ``__transaction_state``. It is called once per
    partition, on first use. ``transaction_version`` returns the one of the cluster, by which
    values are encoded.
    """

    def __init__(
        self,
        *,
        partitions: int,
        open_partition: Callable[[int], Partition],
        transaction_version: Callable[[], int],
    ) -> None:
        super().__init__(
            TRANSACTION_STATE_TOPIC, partitions, lambda at: StateLog(open_partition(at))
        )
        self.transactions: dict[str, TransactionMetadata] = {}
        self._transaction_version = transaction_version

    def load(self, partitions: Iterable[int]) -> list[str]:
        """Load the transactional ids of the partitions; return those that were loaded.

        A partition whose log cannot be opened remains in ``unloaded``.
        """
        loaded: dict[str, TransactionMetadata] = {}
        for _, log in self.open_logs(partitions):
            for batch in log.batches():
                if batch.header.is_control:
                    continue
                for entry in log.entries(batch, decode_transaction):
                    loaded.pop(entry.transactional_id, None)
                    if entry.metadata is not None:
                        loaded[entry.transactional_id] = entry.metadata
        self.transactions |= loaded
        return list(loaded)

    def coordinator_epoch(self, transactional_id: str) -> int:
        """The leader epoch of the partition that stores the id, by which markers are fenced."""
        return self.log_of(transactional_id).leader_epoch

    def store(
        self, transactional_id: str, metadata: TransactionMetadata | None, now_ms: int
    ) -> ErrorCode:
        """Write a state, or a tombstone if it is None; return the error for the client.

        On an error the state is the previous one.
        """
        known = transactional_id in self.transactions
        if not known and len(self.transactions) >= TRANSACTIONAL_IDS_MAX:
            _logger.warning(
                "transactional id %r is rejected: this worker coordinates the maximum of %d",
                transactional_id,
                TRANSACTIONAL_IDS_MAX,
            )
            return ErrorCode.POLICY_VIOLATION
        entry = TransactionEntry(transactional_id, metadata)
        try:
            log = self.log_of(transactional_id)
            log.append([entry.encode(self._transaction_version())], now_ms=now_ms)
        except LogError as error:
            _logger.warning("transactional id %r could not be written: %s", transactional_id, error)
            return LOG_ERRORS.get(error.code, error.code)
        if metadata is None:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = metadata
        return ErrorCode.NONE

    def remove_all(self, *, clear: bool) -> None:
        """Remove all transactional ids and release the logs, which are cleared or kept."""
        self.transactions.clear()
        self.release_logs(clear=clear)


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
