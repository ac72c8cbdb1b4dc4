"""One transactional id: its producer, the states of its transaction, and the transitions of both.

Theory of operation. A transactional id starts *Empty*. The first partition makes its transaction
*Ongoing*. The decision to commit or to abort is made by writing *PrepareCommit* or *PrepareAbort*
to the log; from then on it is never revoked. When every partition has its marker, the transaction
is *CompleteCommit* or *CompleteAbort*, and the next one may start. A client of transaction version
2 may also abort when it does not know whether anything was added (KIP-890), so Empty and the
complete states may move to PrepareAbort. An expired id is removed from the log.

Owns the table of states, which fields a transition changes, and the records of
``__transaction_state`` in Kafka's format. Keys and values start with their version (int16); a value
of None is a tombstone. Version 1 of the value is written since transaction version 1; it adds
tagged fields only (KIP-890, KIP-915). It must never decide whether a transition is due; that is in
``state_machine``. Invariants: the numbers and names are Kafka's; a transition returns a new value,
which takes the place of the old one only when it is in the log; one that the table does not have
raises ``InvalidTransactionTransition``, a bug and not a client's error; Kafka's ``TransactionLog``
reads the records written here, and decoding an encoded entry returns an equal one, except for the
last epoch, which is not stored. Kafka's classes are ``TransactionState``, ``TransactionMetadata``
and ``TxnTransitMetadata``; its state PrepareEpochFence is never stored and is not needed here,
because nothing happens between fencing a producer and aborting its transaction, and neither is
Dead.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from minibroker.broker.groups.records import VERSION_BYTES, read_versioned, versioned
from minibroker_protocol.errors import DecodeError
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
