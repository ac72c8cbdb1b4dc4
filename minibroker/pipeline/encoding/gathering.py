"""Compiled conversion of rows to columns: the values of each field, and the rows that have one.

Owns the one pass over rows at arbitrary places; it must never know fields or encodings. Invariant:
a column has the values of exactly the rows with its mask bit, in row order, without gaps.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from minibroker.pipeline.simd_words import compiled

TOGETHER: Final = 64
"""Rows copied in one block, which keeps them in the CPU cache for all columns."""
_ALL: Final = np.uint64(0xFFFF_FFFF_FFFF_FFFF)
_NONE: Final = np.uint64(0)
_ONE: Final = np.uint64(1)


@compiled
def gather(values: Any, rows: Any, first: Any, fields: Any, places: Any, room: Any, bits: Any,
           counts: Any) -> None:  # fmt: skip
    """Copy the fields of some rows of ``values`` to ``room``, one row for each field.

    ``fields`` has (column, mask, bit) of each field; the mask columns start at ``first``. ``bits``
    receives a 64-bit word for each field and 64 rows, ``counts`` the number of values of each
    field. ``places`` is scratch space for a block of row numbers.
    """
    counts[:] = 0
    for begin in range(0, len(rows), TOGETHER):
        size = min(TOGETHER, len(rows) - begin)
        every, some, every_other, some_other = _ALL, _NONE, _ALL, _NONE
        for at in range(size):
            # Unsigned, because numba checks signed indexes for negative values.
            row = np.uint64(rows[begin + at])
            places[at] = row
            mask, other = values[row, np.uint64(first)], values[row, np.uint64(first + 1)]
            every, some = every & np.uint64(mask), some | np.uint64(mask)
            every_other, some_other = every_other & np.uint64(other), some_other | np.uint64(other)
        block = np.uint64(begin // TOGETHER)
        for field in range(np.uint64(len(fields))):
            column, other = np.uint64(fields[field, 0]), np.uint64(fields[field, 1])
            bit = np.uint64(fields[field, 2])
            count = np.uint64(counts[field])
            if (some_other if other else some) >> bit & _ONE == _NONE:
                bits[field, block] = _NONE
            elif (every_other if other else every) >> bit & _ONE:
                bits[field, block] = _ALL >> np.uint64(TOGETHER - size)
                for at in range(np.uint64(size)):
                    room[field, count + at] = values[places[at], column]
                counts[field] += size
            else:
                word = _NONE
                mask = np.uint64(first) + other
                for at in range(np.uint64(size)):
                    there = np.uint64(values[places[at], mask]) >> bit & _ONE
                    word |= there << at
                    room[field, count] = values[places[at], column]
                    count += there
                bits[field, block] = word
                counts[field] = np.int64(count)
