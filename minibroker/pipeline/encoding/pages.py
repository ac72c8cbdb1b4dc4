"""A page of a column, compiled: which rows have a value, then the values.

Owns what stands in a page and how large it may be; it must never know fields, files or how pages
are compressed. Invariant: a page is whole, and as version 1 of Parquet's data pages has it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from minibroker.pipeline.encoding.levels import put_levels
from minibroker.pipeline.encoding.values import (
    BLOCK,
    put_bits,
    put_differences,
    put_places,
    put_words,
)
from minibroker.pipeline.words import compiled

SPARE: Final = 64
"""Places behind the values of a column, which are used."""

WHOLE, NARROW, WORDS, PLACES, BITS, NOTHING = 0, 1, 2, 3, 4, 5
"""How values are written: whole numbers of 64 or 32 bits, words as they are, places in a dictionary
of a width, zeros and ones, and nothing where no row has a value."""

_LENGTH: Final = 4
"""Bytes before the levels that say how many they are."""


def page_bytes(rows: int) -> int:
    """What a page of so many rows can't be larger than, with what is touched behind it."""
    levels = rows // 2 + 64
    values = 8 * (rows + BLOCK) + 16 * (rows // BLOCK + 2)
    return levels + values


@compiled
def put_page(how: Any, width: Any, nested: Any, outer: Any, inner: Any, rows: Any, values: Any,
             count: Any, work: Any, out: Any) -> Any:  # fmt: skip
    """Write a page to the begin of ``out``; returns its size.

    ``outer`` and ``inner`` are bits as in ``levels.put_levels``, of so many rows; ``values`` are
    ``count`` and ``SPARE`` places more, and ``work`` has ``values.BLOCK`` of them.
    """
    at = put_levels(outer, inner, rows, nested, out, np.int64(_LENGTH))
    size = at - _LENGTH
    for byte in range(_LENGTH):
        out[byte] = size >> (8 * byte) & 0xFF
    if how in (WHOLE, NARROW):
        at = put_differences(values, count, how == NARROW, work, out, at)
    elif how == WORDS:
        at = put_words(values, count, out, at)
    elif how == PLACES:
        at = put_places(values, count, width, out, at)
    elif how == BITS:
        at = put_bits(values, count, out, at)
    return at
