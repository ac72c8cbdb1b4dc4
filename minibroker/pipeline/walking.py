"""A compiled loop that locates the records in a batch.

Owns the one loop over a segment's bytes for which Python is too slow; it must never know files,
events or Spark. Invariant: nothing outside of the given arrays is read or written, and a section
that doesn't consist of exactly its records is rejected. ``protocol.records.iter_records`` is the
reference, and explains what is wrong with a rejected section.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np


@numba.njit(cache=True)
def _varint(data: Any, pos: Any, end: Any) -> Any:
    """(value, position after it); the position is -1 if the varint is truncated or too long."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while pos < end and shift <= np.uint64(63):
        byte = np.uint64(data[pos])
        pos += 1
        value |= (byte & np.uint64(0x7F)) << shift
        if byte < np.uint64(0x80):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), pos
        shift += np.uint64(7)
    return np.int64(0), np.int64(-1)


@numba.njit(cache=True)
def walk_records(data: Any, out: Any) -> bool:
    """Fill the rows of ``out``: offset delta, time delta, start of the value, its size or -1.

    ``data`` is the decompressed section; ``out`` has a column for each record that the batch's
    header announces. Returns whether the section consists of exactly those records.
    """
    pos: Any = np.int64(0)
    total: Any = np.int64(len(data))
    for at in range(out.shape[1]):
        length, pos = _varint(data, pos, total)
        if pos < 0 or length < 1 or length > total - pos:
            return False
        end = pos + length
        time_delta, pos = _varint(data, pos + 1, end)
        if pos < 0:
            return False
        offset_delta, pos = _varint(data, pos, end)
        if pos < 0:
            return False
        key, pos = _varint(data, pos, end)
        if pos < 0 or key < -1 or key > end - pos:
            return False
        value, pos = _varint(data, pos + max(key, 0), end)
        if pos < 0 or value < -1 or value > end - pos:
            return False
        out[0, at] = offset_delta
        out[1, at] = time_delta
        out[2, at] = pos
        out[3, at] = value
        headers, pos = _varint(data, pos + max(value, 0), end)
        if pos < 0 or headers < 0:
            return False
        if headers == 0 and pos != end:
            return False
        pos = end
    return bool(pos == total)
