"""Compiled encoding of a page: definition levels, then values.

Owns the layout of a page and its maximum size; it must never know fields, files or compression.
Invariant: a page is complete, and is a Parquet data page of version 1.
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
from minibroker.pipeline.simd_words import compiled

SPARE: Final = 64
"""Scratch entries behind the values of a column."""

WHOLE, NARROW, WORDS, PLACES, BITS, NOTHING = 0, 1, 2, 3, 4, 5
"""Encodings of values: 64-bit or 32-bit integers, plain 64-bit words, dictionary indexes of a given
width, booleans, and nothing if all rows are null.
"""

_LENGTH: Final = 4
"""Size of the length field before the levels."""


def page_bytes(rows: int) -> int:
    """Upper bound of the size of a page, including the bytes overwritten behind it."""
    levels = rows // 2 + 64
    values = 8 * (rows + BLOCK) + 16 * (rows // BLOCK + 2)
    return levels + values


@compiled
def put_page(how: Any, width: Any, nested: Any, outer: Any, inner: Any, rows: Any, values: Any,
             count: Any, work: Any, out: Any) -> Any:  # fmt: skip
    """Write a page to the start of ``out``; return its size.

    ``outer`` and ``inner`` are the bits of ``rows`` rows, as in ``levels.put_levels``; ``values``
    has ``count`` entries followed by ``SPARE`` scratch entries, and ``work`` has ``values.BLOCK``.
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
