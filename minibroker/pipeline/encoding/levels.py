"""Compiled encoding of Parquet's definition levels: which rows have a value.

Owns the conversion of bits, one for each row, to run-length encoded levels; it must never know
fields. Invariant: level 0 means that the enclosing object is null, 1 that only the value is null, 2
that there is a value; without an enclosing object the levels are 0 and 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minibroker.pipeline.encoding.packing import put_varint
from minibroker.pipeline.simd_words import inlined

_MIXED = np.int64(-1)


@inlined
def _level(outer: Any, inner: Any, group: Any, count: Any, nested: Any) -> Any:
    """The common level of a group of up to eight rows; -1 if they differ."""
    rows = min(count - 8 * group, 8)
    whole = (1 << rows) - 1
    there, around = np.int64(inner[group]), np.int64(outer[group])
    if there == whole:
        return np.int64(2 if nested else 1)
    if there != 0:
        return _MIXED
    if not nested or around == 0:
        return np.int64(0)
    return np.int64(1) if around == whole else _MIXED


@inlined
def _apart(bits: Any) -> Any:
    """Spread eight bits to every other bit of sixteen."""
    bits = (bits | bits << 4) & 0x0F0F
    bits = (bits | bits << 2) & 0x3333
    return (bits | bits << 1) & 0x5555


@inlined
def put_levels(outer: Any, inner: Any, count: Any, nested: Any, out: Any, at: Any) -> Any:
    """Write the levels of ``count`` rows to ``out`` at ``at``; return the end.

    ``inner`` has a bit for each row with a value, eight per byte, and ``outer`` one for each row
    with the enclosing object, used if the field is ``nested``. Bits behind the last row are 0.
    """
    groups = (count + 7) >> 3
    group = np.int64(0)
    while group < groups:
        level = _level(outer, inner, group, count, nested)
        end = group + 1
        if level != _MIXED:
            while end < groups and _level(outer, inner, end, count, nested) == level:
                end += 1
            rows = min(8 * end, count) - 8 * group
            at = put_varint(np.uint64(rows << 1), out, at)
            out[at] = level
            at += 1
        else:
            # A single uniform group is as short within a packed run as in a run of its own.
            coming = _MIXED
            while end < groups:
                before, coming = coming, _level(outer, inner, end, count, nested)
                if coming != _MIXED and coming == before:
                    end -= 1
                    break
                end += 1
            at = put_varint(np.uint64((end - group) << 1 | 1), out, at)
            for place in range(group, end):
                if nested:
                    there = np.int64(inner[place])
                    only = np.int64(outer[place]) & ~there
                    both = _apart(only) | _apart(there) << 1
                    out[at], out[at + 1] = both & 0xFF, both >> 8
                    at += 2
                else:
                    out[at] = inner[place]
                    at += 1
        group = end
    return at
