"""A table of distinct strings, which replaces each by a number; compiled.

Owns the hash table of the strings of some events; it must never know which fields they come from.
Invariant: two numbers are equal if and only if their strings are. Callers check for room first, so
the table is never full.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from minibroker.pipeline.simd_words import SLACK, compiled, inlined, load

STRINGS_MAX: Final = 1 << 18
"""Distinct strings in one run of events."""
BYTES_MAX: Final = 32 << 20
"""Total size of the strings, unless a single read needs more."""
_SLOTS: Final = 2 * STRINGS_MAX
_FIRST_SLOTS: Final = 1 << 13
"""Initial number of slots, small enough for the CPU cache."""
_EMPTY: Final = -1
_SPREAD: Final = np.uint64(20)
_ONE: Final = np.uint64(1)
_WORD: Final = 8
_MIX: Final = np.uint64(0x9E37_79B9_7F4A_7C15)


class StringTable(NamedTuple):
    """The table as a tuple of arrays for compiled code."""

    slots: Any
    """Open addressing: the number of the string in each slot, or -1."""
    hashes: Any
    ends: Any
    """End of each string's bytes, where the next one starts; one entry more than there are strings.
    """
    content: Any
    count: Any
    """Number of strings; number of slots in use, a power of two at least twice that."""


def new_string_table(size: int = BYTES_MAX) -> StringTable:
    """An empty table with room for ``size`` bytes. Pages are only allocated when used."""
    return StringTable(
        np.full(_SLOTS, _EMPTY, np.int32),
        np.empty(STRINGS_MAX, np.uint64),
        np.zeros(STRINGS_MAX + 1, np.int64),
        np.empty(size + SLACK, np.uint8),
        np.array([0, _FIRST_SLOTS]),
    )


def strings_of(texts: StringTable) -> list[bytes]:
    """All strings in the order of their numbers."""
    content, ends = texts.content, texts.ends[: int(texts.count[0]) + 1].tolist()
    whole = content[: ends[-1]].tobytes()
    return [whole[start:end] for start, end in pairwise(ends)]


@inlined
def extend_hash(state: Any, word: Any) -> Any:
    """Extend a hash by one word."""
    state = (state ^ word) * _MIX
    return state ^ (state >> np.uint64(29))


@inlined
def string_number(slots: Any, hashes: Any, ends: Any, content: Any, count: Any, data: Any,
                  start: Any, size: Any, hashed: Any) -> Any:  # fmt: skip
    """The number of the string at ``start`` of ``data`` with the given hash; new strings are added.

    A table comes as separate arrays, because numba counts references of a tuple's arrays.
    """
    last = np.uint64(count[1] - 1)
    slot = hashed >> _SPREAD & last
    while slots[slot] >= 0:
        found = slots[slot]
        begin = ends[found]
        alike = hashes[found] == hashed and ends[found + 1] - begin == size
        if alike and same_bytes(content, begin, data, start, size):
            return found
        slot = (slot + _ONE) & last
    new = np.int32(count[0])
    begin = ends[new]
    for at in range(size):
        content[begin + at] = data[start + at]
    slots[slot], hashes[new], ends[new + 1] = new, hashed, begin + size
    count[0] += 1
    if 2 * count[0] > count[1] and count[1] < len(slots):
        _use_more(slots, hashes, count)
    return new


@compiled
def _use_more(slots: Any, hashes: Any, count: Any) -> None:
    """Double the number of slots."""
    count[1] *= 2
    last = np.uint64(count[1] - 1)
    for slot in range(count[1]):
        slots[slot] = _EMPTY
    for number in range(count[0]):
        slot = hashes[number] >> _SPREAD & last
        while slots[slot] >= 0:
            slot = (slot + _ONE) & last
        slots[slot] = number


@inlined
def same_bytes(one: Any, start: Any, other: Any, begin: Any, size: Any) -> bool:
    """Whether ``size`` bytes at two positions are equal."""
    at = np.int64(0)
    while size - at >= _WORD:
        if load(one, start + at) != load(other, begin + at):
            return False
        at += _WORD
    if at < size:
        unlike = load(one, start + at) ^ load(other, begin + at)
        return bool(unlike << np.uint64(8 * (_WORD - (size - at))) == np.uint64(0))
    return True


@compiled
def hash_of(data: Any, start: Any, size: Any) -> Any:
    """The hash of a string, equal to the one that the parser computes while scanning it."""
    state = np.uint64(0)
    at = np.int64(0)
    while size - at >= _WORD:
        state = extend_hash(state, load(data, start + at))
        at += _WORD
    if at < size:
        state = extend_hash(state, load(data, start + at) & first_bytes_mask(size - at))
    return extend_hash(state, np.uint64(size))


@inlined
def first_bytes_mask(count: Any) -> Any:
    """Mask of a word's first ``count`` bytes, fewer than eight."""
    return (np.uint64(1) << np.uint64(8 * count)) - np.uint64(1)
