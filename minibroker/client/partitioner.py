"""The partition of a record with a key: the same that Kafka's Java client chooses.

Owns the hash of keys and nothing else; it must never know a topic. Invariant: records with equal
keys are sent to the same partition, by any client, while the number of partitions stays the same.
Kafka's counterpart is ``BuiltInPartitioner``, which uses ``Utils.murmur2``.
"""

from __future__ import annotations

from typing import Final

_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Hash ``data`` to a non-negative 32-bit number."""
    length = len(data)
    value = (_SEED ^ length) & _MASK
    whole = length & ~3
    for position in range(0, whole, 4):
        part = int.from_bytes(data[position : position + 4], "little")
        part = (part * _MULTIPLIER) & _MASK
        part ^= part >> 24
        part = (part * _MULTIPLIER) & _MASK
        value = ((value * _MULTIPLIER) & _MASK) ^ part
    if length > whole:
        value ^= int.from_bytes(data[whole:], "little")
        value = (value * _MULTIPLIER) & _MASK
    value ^= value >> 13
    value = (value * _MULTIPLIER) & _MASK
    return value ^ (value >> 15)


def partition_of(key: bytes, partitions: int) -> int:
    """Choose the partition for ``key`` in a topic with ``partitions`` partitions."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions
