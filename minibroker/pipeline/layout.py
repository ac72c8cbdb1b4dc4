"""Where an event is stored in the activity table.

Owns the partitioning into hours and buckets, and the order within a file; it must never know Spark
or a file system. Invariant: an event's place depends on the event alone, so two runs put it, and a
duplicate of it, into the same folder. The bucket is Spark's own ``pmod(hash(user, client_id),
16)``, and for connection events ``pmod(hash(ip), 16)``.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

BUCKETS: Final = 16
"""Buckets of an hour. It can't change during a table's life, so it is no setting."""
HOUR_US: Final = 3_600_000_000
SORTED_BY: Final = ("user", "client_id", "time_us", "sequence", "broker")
"""Order of a file's rows. Equal time and sequence implies different brokers."""
QUARANTINED: Final = "quarantine"
"""The place of malformed events."""
COUNTED: Final = "counted"
"""The place of a task's counts, as JSON."""
ENTITIES_KEPT: Final = 65_536

_MASK: Final = 0xFFFFFFFF
_SEED: Final = 42


def place_of(hour: int, bucket: int) -> str:
    """The name of an hour (since 1970) and a bucket, like 2026-11-20-14.07."""
    day = np.datetime64(hour, "h").astype("datetime64[h]")
    return f"{str(day).replace('T', '-')}.{bucket:02d}"


def folder_of(place: str) -> str:
    """The activity table's folder for a place, ignoring any suffix after its bucket."""
    hour, bucket = place.split(".")[:2]
    return f"hour={hour}/bucket={bucket}"


@lru_cache(ENTITIES_KEPT)
def bucket_of(*columns: str | None) -> int:
    """The bucket of some strings; nulls are skipped."""
    state = _SEED
    for column in columns:
        if column is not None:
            state = _murmur(column.encode(), state)
    return (state - (1 << 32) if state >> 31 else state) % BUCKETS


def _murmur(data: bytes, state: int) -> int:
    """Spark's variant of Murmur3: trailing bytes are mixed one by one, as signed integers."""
    whole = len(data) // 4 * 4
    words = [int.from_bytes(data[at : at + 4], "little") for at in range(0, whole, 4)]
    for word in (*words, *(int.from_bytes(bytes((b,)), "little", signed=True)
                           for b in data[whole:])):  # fmt: skip
        mixed = (word * 0xCC9E2D51) & _MASK
        mixed = ((mixed << 15 | mixed >> 17) & _MASK) * 0x1B873593 & _MASK
        state ^= mixed
        state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & _MASK
    state ^= len(data)
    state = (state ^ state >> 16) * 0x85EBCA6B & _MASK
    state = (state ^ state >> 13) * 0xC2B2AE35 & _MASK
    return state ^ state >> 16
