"""Chunks of events, and batches that are exchanged as bytes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline import grouping
from minibroker.pipeline.grouping import (
    added,
    chunks,
    joined,
    largest,
    numbered,
    packed,
    starts_of,
    unpacked,
)

# Groups ------------------------------------------------------------------------------------------

SMALL = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)))


@given(SMALL)
def test_pairs_are_numbered_in_order(pairs: list[tuple[int, int]]) -> None:
    both = np.array(pairs, np.int64).reshape(-1, 2)
    rows, found = numbered(joined([both[:, 0], both[:, 1]]))
    kept = list(dict.fromkeys(pairs))
    assert [pairs[row] for row in rows] == kept
    assert found.tolist() == [kept.index(pair) for pair in pairs]


@given(st.lists(st.integers(0, 5)))
def test_starts_of_sorted_groups(groups: list[int]) -> None:
    starts = starts_of(np.sort(np.array(groups, np.int64)), 6)
    assert starts.tolist() == [sum(group < limit for group in groups) for limit in range(7)]


@pytest.mark.parametrize("keys_max", [2, 1 << 62])
def test_combinations_have_numbers_of_their_own(
    keys_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grouping, "KEYS_MAX", keys_max)
    codes = [np.array([0, 0, 1, 1 << 40]), np.array([1, 1, 1, 1]), np.array([0, 5, 0, 0])]
    found = joined(codes).tolist()
    assert len(set(found)) == len(found)
    assert min(found) >= 0


def test_groups_are_added_up_and_compared() -> None:
    groups = np.array([0, 2, 0, 2])
    assert added(groups, 3, np.array([1, 2, 2**62, -5])).tolist() == [2**62 + 1, 0, -3]
    assert added(groups, 3, np.array([True, False, True, True])).tolist() == [2, 0, 1]
    most = largest(groups, 3, np.array([1.5, np.nan, 0.5, -2.0]))
    assert np.array_equal(most, [1.5, np.nan, -2.0], equal_nan=True)


# Exchange between tasks --------------------------------------------------------------------------


def numbers(first: int, count: int) -> pa.Table:
    return pa.table({"number": range(first, first + count)})


def test_chunks_end_at_rows_or_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = [numbers(0, 5), numbers(5, 1), numbers(6, 0), numbers(6, 7)]
    monkeypatch.setattr(grouping, "CHUNK_ROWS", 4)
    found = list(chunks(tables))
    assert [len(chunk) for chunk in found] == [4, 6, 3]
    assert pa.concat_tables(found).equals(numbers(0, 13))
    monkeypatch.setattr(grouping, "CHUNK_BYTES", 8)
    assert [len(chunk) for chunk in chunks(tables)] == [4, 1, 1, 4, 3]
    assert list(chunks([])) == []


def test_packed_slices_are_unpacked_in_order() -> None:
    [whole] = numbers(0, 1001).to_batches()
    keys = {"part": np.array([3, 5]), "hour": np.array([7, 7])}
    sent = packed(keys, whole, np.array([0, 1000]))
    assert len(sent["content"][0].as_py()) < sent["size"][0].as_py()
    found = list(unpacked([sent, sent.slice(2)], whole.schema))
    assert found == [((3, 7), whole.slice(0, 1000)), ((5, 7), whole.slice(1000))]
