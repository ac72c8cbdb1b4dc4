"""Which rows have a value, compiled: Parquet's definition levels.

Owns the step from bits, one a row, to levels in runs; it must never know fields. Invariant: a row
without its object is of level 0, one without a value in it of level 1, and one with it of level 2;
where there is no object around the value levels are 0 and 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minibroker.pipeline.encoding.packing import put_varint
from minibroker.pipeline.words import inlined

_MIXED = np.int64(-1)


@inlined
def _level(outer: Any, inner: Any, group: Any, count: Any, nested: Any) -> Any:
    """The level that eight rows have all, or those of them that there are; -1 if they differ."""
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
    """Eight bits with room for one more beside each."""
    bits = (bits | bits << 4) & 0x0F0F
    bits = (bits | bits << 2) & 0x3333
    return (bits | bits << 1) & 0x5555


@inlined
def put_levels(outer: Any, inner: Any, count: Any, nested: Any, out: Any, at: Any) -> Any:
    """The levels of ``count`` rows at ``at`` of ``out``; returns where they end.

    ``inner`` has a bit for each row with a value, eight a byte, and ``outer`` one for each with
    what is around it, which counts if it is ``nested``. Bits behind the last row are 0.
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
            # One group of a kind costs as much in a run of its own as among the others.
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
