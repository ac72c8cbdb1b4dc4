"""The last offsets of keys in the dirty part of a log, bounded in memory.

Owns how keys are stored, and the limit. It must never know batches or files. Invariant: a key in
the map has its largest offset up to ``latest_offset``, and ``entries_max`` is never exceeded.
Kafka's ``SkimpyOffsetMap``, which stores an MD5 hash of each key; here, only long keys are hashed.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

ENTRY_BYTES: Final = 256
"""Memory of one entry at most: the key, the offset, and the slot while the table grows."""

BYTES_MIN: Final = 1024 * 1024
"""The smallest size of a map, so that a cleaning always makes progress. Kafka's minimum."""

KEY_BYTES_MAX: Final = 48
"""Longer keys are replaced by a hash, which is one byte longer than any key that is not."""

NO_OFFSET: Final = -1


def short_key(key: bytes) -> bytes:
    """What the map stores for a key: equal for equal keys only."""
    if len(key) <= KEY_BYTES_MAX:
        return key
    return blake2b(key, digest_size=KEY_BYTES_MAX + 1).digest()


def entries_max(size_bytes: int) -> int:
    """The number of entries of a map of this size."""
    return max(size_bytes, BYTES_MIN) // ENTRY_BYTES


class OffsetMap:
    """Offsets by key, as ``short_key`` returns it."""

    def __init__(self, entries_max: int) -> None:
        self.entries_max = entries_max
        self.offsets: dict[bytes | None, int] = {}
        self.latest_offset: int = NO_OFFSET
        """The last offset up to which all keys are in the map."""

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def utilization(self) -> float:
        """Share of the entries that are used."""
        return len(self.offsets) / self.entries_max

    def put_all(self, keys: Iterable[tuple[bytes | None, int]], count: int) -> bool:
        """Record the offsets of at most ``count`` keys, ascending; returns False if it is full.

        The keys are as ``short_key`` returns them. What was put before the map was full counts up
        to ``latest_offset``.
        """
        if len(self.offsets) + count <= self.entries_max:
            self.offsets.update(keys)
            return True
        for key, offset in keys:
            if len(self.offsets) >= self.entries_max:  # Kafka's map rejects a known key, too.
                return False
            self.offsets[key] = self.latest_offset = offset
        return True
