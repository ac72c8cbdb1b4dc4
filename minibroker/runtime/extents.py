"""Allocation of extents in a range: the arithmetic of the arena.

It must never know memory, processes or waiting: numbers in, numbers out. Invariant: free extents
never overlap or touch, so adjacent free space is one extent, and a request fails only if no free
extent is long enough. Like the free list of Kafka's `BufferPool`, for extents of any size.

Free extents are in bins by the power of two of their size. A request takes any extent of the lowest
bin in which all are long enough (found by a bit mask) or, if there is none, the first long enough
one in the bin below. Freeing looks up both neighbours by address.
"""

from __future__ import annotations

from typing import NamedTuple


class Extent(NamedTuple):
    """A free extent."""

    start: int
    size: int


class Extents:
    """The free extents of a range of `size` from `start`. Sizes are positive."""

    __slots__ = ("_bins", "_filled", "_size_at", "_start_of_end")

    def __init__(self, size: int, start: int = 0) -> None:
        self._size_at: dict[int, int] = {}
        self._start_of_end: dict[int, int] = {}
        # Dicts serve as sets with a cheap `popitem`, which returns the extent that was freed last:
        # its memory is most likely still in the processor's cache.
        self._bins: list[dict[int, None]] = [{} for _ in range(size.bit_length())]
        self._filled = 0
        self._add(start, size)

    def take(self, size: int) -> int | None:
        """Take an extent of `size`; return its start, or None if none is long enough."""
        enough = (size - 1).bit_length()
        candidates = self._filled >> enough
        if candidates:
            number = enough + (candidates & -candidates).bit_length() - 1
            bin_ = self._bins[number]
            start = bin_.popitem()[0]
        else:
            number = enough - 1
            found = self._first_fit(number, size)
            if found is None:
                return None
            start = found
            bin_ = self._bins[number]
            del bin_[start]
        if not bin_:
            self._filled ^= 1 << number
        found_size = self._size_at.pop(start)
        if found_size == size:
            del self._start_of_end[start + size]
        else:
            self._add(start + size, found_size - size)
        return start

    def give(self, start: int, size: int) -> Extent:
        """Free what `take` returned; return the free extent that contains it now."""
        end = start + size
        before = self._start_of_end.pop(start, None)
        if before is not None:
            length = self._size_at.pop(before)
            self._remove_from_bin(before, length)
            start, size = before, size + length
        after = self._size_at.pop(end, None)
        if after is not None:
            self._remove_from_bin(end, after)
            size += after
        self._add(start, size)
        return Extent(start, size)

    def free(self) -> list[Extent]:
        """All free extents by address, for statistics and tests."""
        return [Extent(*item) for item in sorted(self._size_at.items())]

    def _add(self, start: int, size: int) -> None:
        self._size_at[start] = size
        self._start_of_end[start + size] = start
        number = size.bit_length() - 1
        self._bins[number][start] = None
        self._filled |= 1 << number

    def _remove_from_bin(self, start: int, size: int) -> None:
        number = size.bit_length() - 1
        bin_ = self._bins[number]
        del bin_[start]
        if not bin_:
            self._filled ^= 1 << number

    def _first_fit(self, number: int, size: int) -> int | None:
        if not 0 <= number < len(self._bins):
            return None
        size_at = self._size_at
        return next((start for start in self._bins[number] if size_at[start] >= size), None)
