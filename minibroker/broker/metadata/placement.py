"""Placement: maps partitions and groups to the I/O workers that own them.

It must never know what is stored, only names and counts. Invariant: the same name has the same
owner in every process and after every restart, so an owner needs no lock and a request can be split
without asking another process. Groups follow their partition of ``__consumer_offsets`` as in
Kafka's ``GroupMetadataManager.partitionFor``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from zlib import crc32

OFFSETS_TOPIC: Final = "__consumer_offsets"
TRANSACTION_STATE_TOPIC: Final = "__transaction_state"
ACTIVITY_TOPIC: Final = "__minibroker_activity"


def partition_owner(topic: str, partition: int, workers: int) -> int:
    """Return the index of the I/O worker that owns a partition; partitions are assigned round
    robin.
    """
    return (crc32(topic.encode()) + partition) % workers


HASHES_KEPT_MAX: Final = 1024
HASHED_CHARACTERS_MAX: Final = 255
"""Longer texts are hashed each time: clients choose them."""


def java_string_hash(text: str) -> int:
    """``String.hashCode`` of Java, as a signed 32-bit integer (over UTF-16 code units)."""
    return _kept_hash(text) if len(text) <= HASHED_CHARACTERS_MAX else _hash(text)


def _hash(text: str) -> int:
    units = memoryview(text.encode("utf-16-le")).cast("H")
    value = 0
    for unit in units:
        value = (31 * value + unit) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value >= 0x8000_0000 else value


_kept_hash: Final = lru_cache(HASHES_KEPT_MAX)(_hash)


def offsets_partition(group_id: str, partitions: int) -> int:
    """Partition of ``__consumer_offsets`` that keeps a group, as Kafka's ``Utils.abs`` has it."""
    return (java_string_hash(group_id) & 0x7FFFFFFF) % partitions


def group_owner(group_id: str, partitions: int, workers: int) -> int:
    """Index of the I/O worker that coordinates a group."""
    return partition_owner(OFFSETS_TOPIC, offsets_partition(group_id, partitions), workers)


def transaction_partition(transactional_id: str, partitions: int) -> int:
    """Partition of ``__transaction_state`` that keeps a transactional id, by the same hash."""
    return (java_string_hash(transactional_id) & 0x7FFFFFFF) % partitions


def transaction_owner(transactional_id: str, partitions: int, workers: int) -> int:
    """Index of the I/O worker that coordinates the transactions of a transactional id."""
    index = transaction_partition(transactional_id, partitions)
    return partition_owner(TRANSACTION_STATE_TOPIC, index, workers)
