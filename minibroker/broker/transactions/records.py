"""Records of ``__transaction_state``, in Kafka's format.

Owns the schemas of key and value and converts between them and ``TransactionMetadata``; it must
never know files or log offsets. Keys and values start with their version (int16); a value of None
is a tombstone. Invariant: Kafka's ``TransactionLog`` reads the records written here, and decoding
an encoded entry returns an equal one, except for the last epoch, which is not stored. Version 1 of
the value is written since transaction version 1; it adds tagged fields only (KIP-890, KIP-915).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final, NamedTuple

from minibroker.broker.groups.records import VERSION_BYTES, read_versioned, versioned
from minibroker.broker.transactions.metadata import (
    TopicPartition,
    TransactionMetadata,
    TransactionState,
)
from minibroker_protocol.errors import DecodeError
from minibroker_protocol.schema import Message, Struct, array, field
from minibroker_protocol.types import INT8, INT16, INT32, INT64, STRING

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
