from __future__ import annotations

from typing import Any

import numba
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.simd_words import cell, count_plain, digits, item

EIGHT = st.binary(min_size=8, max_size=8) | st.text('0189,}"\\ a~', min_size=8, max_size=8).map(
    str.encode
)


def word(raw: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(raw, "little"))


@given(EIGHT)
def test_digits_returns_count_and_value_of_leading_digits(raw: bytes) -> None:
    first = raw[: next((at for at, byte in enumerate(raw) if byte not in b"0123456789"), 8)]
    assert tuple(map(int, digits(word(raw)))) == (len(first), int(first or b"0"))


@given(EIGHT)
def test_count_plain_stops_at_quote_backslash_or_unprintable(raw: bytes) -> None:
    odd = (at for at, byte in enumerate(raw) if not 32 <= byte < 128 or byte in b'"\\')
    assert int(count_plain(word(raw))) == next(odd, 8)


@numba.njit
def picked(flat: Any, rows: Any, row: Any, column: Any) -> Any:
    return item(flat, row), cell(rows, row, column)


@given(st.integers(0, 4), st.integers(0, 2))
def test_item_and_cell_equal_plain_indexing(row: int, column: int) -> None:
    flat, rows = np.arange(5, dtype=np.uint8), np.arange(15).reshape(5, 3)
    assert picked(flat, rows, row, column) == (flat[row], rows[row, column])
    assert picked(flat, rows, np.uint64(row), column) == (flat[row], rows[row, column])
