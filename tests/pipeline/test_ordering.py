from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.ordering import (
    gather,
    numbered_anew,
    ordered,
    pack_bit,
    pairs_of,
    spans_of,
)

SMALL = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)))


@given(SMALL)
def test_pairs_are_numbered_as_they_come(pairs: list[tuple[int, int]]) -> None:
    both = np.array(pairs, np.int64).reshape(-1, 2)
    rows, found = pairs_of(both[:, 0].copy(), both[:, 1].copy())
    kept = list(dict.fromkeys(pairs))
    assert [pairs[row] for row in rows] == kept
    assert found.tolist() == [kept.index(pair) for pair in pairs]


@given(st.lists(st.integers(0, 5)), st.randoms())
def test_rows_are_sorted_and_keep_the_order_of_equal_ones(ranks: list[int], chance) -> None:  # type: ignore[no-untyped-def]
    rows = list(range(len(ranks)))
    chance.shuffle(rows)
    found, starts = ordered(np.array(rows, np.int64), np.array(ranks, np.int64), 6)
    assert found.tolist() == sorted(rows, key=ranks.__getitem__)
    assert starts.tolist() == [sum(rank < limit for rank in ranks) for limit in range(7)]


@given(st.lists(st.tuples(st.sampled_from([1, 2, 1025]), st.integers(0, 9))))
def test_spans_are_the_sequences_in_their_order(keys: list[tuple[int, int]]) -> None:
    both = np.array(keys, np.int64).reshape(-1, 2)
    spans = spans_of(both[:, 0].copy(), both[:, 1].copy()).tolist()
    said = [(b, at) for b, first, last in spans for at in range(first, last + 1)]
    assert sorted(said) == sorted(keys)


def test_brokers_that_take_turns_have_a_span_each() -> None:
    brokers, sequences = np.array([1, 2, 1, 2, 1]), np.array([7, 1, 8, 2, 9])
    assert spans_of(brokers, sequences).tolist() == [[1, 7, 9], [2, 1, 2]]


@given(st.lists(st.integers(0, 99), max_size=90))
def test_columns_of_rows_are_copied(rows: list[int]) -> None:
    values = np.arange(300, dtype=np.int64).reshape(100, 3)
    out = np.full((3, 95), -1, np.int64)
    gather(values, np.array(rows, np.int64), np.array([2, 0]), out)
    assert out[0, : len(rows)].tolist() == [3 * row for row in rows]
    assert out[2, : len(rows)].tolist() == [3 * row + 2 for row in rows]
    assert (out[1] == -1).all()
    assert (out[:, len(rows) :] == -1).all()


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40), st.integers(0, 63))
def test_a_bit_of_each_is_packed(masks: list[int], bit: int) -> None:
    out = np.full((len(masks) + 7) // 8, 0xFF, np.uint8)
    pack_bit(np.array(masks, np.int64), bit, out)
    packed = sum((mask >> bit & 1) << at for at, mask in enumerate(masks))
    assert int.from_bytes(out.tobytes(), "little") == packed


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans())))
def test_numbers_that_count_are_numbered_anew(found: list[tuple[int, bool]]) -> None:
    numbers = np.array([number if there else 99 for number, there in found], np.int64)
    masks = np.array([there << 5 | 2 for _, there in found], np.int64)
    codes = np.full(10, -1, np.int32)
    which, places = numbered_anew(numbers, masks, 5, codes)
    kept = list(dict.fromkeys(number for number, there in found if there))
    assert which.tolist() == kept
    assert places.tolist() == [kept.index(n) if there else 0 for n, there in found]
    assert (codes == -1).all()
