"""The two sparse indexes of a segment: in memory while it grows, on disk once it is sealed.

Owns Kafka's ``.index`` (offset to file position, 8 bytes an entry) and ``.timeindex`` (timestamp
to offset, 12 bytes an entry) formats and the binary searches over them. It must never know what a
batch is. Its invariant: entries only grow, in both columns of either index; a lookup gives the
last entry at or below the requested key. Kafka's ``OffsetIndex`` and ``TimeIndex``.

A growing index is two arrays. The caller decides when to write them, because an index that is lost
or outdated is rebuilt from the segment. A sealed index is searched in its file, entry by entry:
about 17 reads of 12 bytes for a full one, and nothing is kept in memory or open.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from struct import Struct
from typing import Final

from minibroker_protocol.errors import DecodeError
from minibroker_protocol.records import NO_TIMESTAMP

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")


class OffsetIndex:
    """Last offsets of some batches of a growing segment, and the positions of those batches."""

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._offsets = array("i")
        self._positions = array("i")

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def last_position(self) -> int:
        return self._positions[-1] if self._positions else 0

    def append(self, last_offset: int, position: int) -> None:
        self._offsets.append(last_offset - self._base)
        self._positions.append(position)

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` entries."""
        del self._offsets[count:], self._positions[count:]

    def position(self, offset: int) -> int:
        """The file position from which to search for the batch with ``offset``."""
        slot = bisect_right(self._offsets, offset - self._base) - 1
        return self._positions[slot] if slot >= 0 else 0

    def offset_at(self, position: int) -> int | None:
        """The offset of the first entry at or after a file position, or None."""
        slot = bisect_left(self._positions, position)
        return self._base + self._offsets[slot] if slot < len(self._offsets) else None

    def encode(self, first: int = 0) -> bytes:
        """The file's bytes from entry ``first`` on."""
        return b"".join(map(OFFSET_ENTRY.pack, self._offsets[first:], self._positions[first:]))

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> OffsetIndex:
        """Read a whole file. Raises DecodeError when the entries don't grow."""
        index = cls(base_offset)
        index._offsets, index._positions = _columns(OFFSET_ENTRY, data, "i")
        return index


class TimeIndex:
    """A growing segment's largest timestamps so far, and the last offset of the batch with each."""

    def __init__(self, base_offset: int) -> None:
        self._base = base_offset
        self._timestamps = array("q")
        self._offsets = array("i")

    def __len__(self) -> int:
        return len(self._timestamps)

    @property
    def last(self) -> tuple[int, int]:
        """(timestamp, offset) of the last entry; NO_TIMESTAMP when there is none."""
        if not self._timestamps:
            return NO_TIMESTAMP, self._base
        return self._timestamps[-1], self._base + self._offsets[-1]

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry unless the timestamp is no later than the last one's."""
        if timestamp > (self._timestamps[-1] if self._timestamps else NO_TIMESTAMP):
            self._timestamps.append(timestamp)
            self._offsets.append(offset - self._base)

    def truncate(self, count: int) -> None:
        """Keep the first ``count`` entries."""
        del self._timestamps[count:], self._offsets[count:]

    def offset(self, timestamp: int) -> int:
        """The offset from which to search for the first batch with at least this timestamp."""
        slot = bisect_right(self._timestamps, timestamp) - 1
        return self._base + (self._offsets[slot] if slot >= 0 else 0)

    def encode(self, first: int = 0) -> bytes:
        """The file's bytes from entry ``first`` on."""
        return b"".join(map(TIME_ENTRY.pack, self._timestamps[first:], self._offsets[first:]))

    @classmethod
    def decode(cls, data: bytes, base_offset: int) -> TimeIndex:
        """Read a whole file. Raises DecodeError when the entries don't grow."""
        index = cls(base_offset)
        index._timestamps, index._offsets = _columns(TIME_ENTRY, data, "q")
        return index


def _columns(entry: Struct, data: bytes, key_type: str) -> tuple[array[int], array[int]]:
    if len(data) % entry.size:
        raise DecodeError(f"an index of {len(data)} bytes ends inside an entry", len(data))
    keys, values = array(key_type), array("i")
    for key, value in entry.iter_unpack(data):
        keys.append(key)
        values.append(value)
    for slot, (previous_key, key) in enumerate(pairwise(keys)):
        if previous_key >= key:
            raise DecodeError(f"index entry {slot + 1} is not above the previous entry", slot)
    return keys, values


def search_file(path: str, entry: Struct, key: int) -> int | None:
    """The value of the last entry in an index file whose key is at most ``key``, or None."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        low, high = 0, os.fstat(fd).st_size // entry.size
        last_value: int | None = None
        while low < high:
            middle = (low + high) // 2
            middle_key, value = entry.unpack(os.pread(fd, entry.size, middle * entry.size))
            if middle_key <= key:
                low, last_value = middle + 1, value
            else:
                high = middle
        return last_value
    finally:
        os.close(fd)


def search_by_value(path: str, entry: Struct, value: int) -> int | None:
    """The key of the first entry in an index file whose value is at least ``value``, or None."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        low, high = 0, os.fstat(fd).st_size // entry.size
        first_key: int | None = None
        while low < high:
            middle = (low + high) // 2
            key, middle_value = entry.unpack(os.pread(fd, entry.size, middle * entry.size))
            if middle_value >= value:
                high, first_key = middle, key
            else:
                low = middle + 1
        return first_key
    finally:
        os.close(fd)


def last_in_file(path: str, entry: Struct) -> tuple[int, int] | None:
    """The last entry of an index file, or None if it is empty."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        count = os.fstat(fd).st_size // entry.size
        if not count:
            return None
        key, value = entry.unpack(os.pread(fd, entry.size, (count - 1) * entry.size))
        return key, value
    finally:
        os.close(fd)
