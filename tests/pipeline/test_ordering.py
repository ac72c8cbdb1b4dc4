from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.ordering import ordered, pairs_of, spans_of

SMALL = st.lists(st.tuples(st.integers(-1, 4), st.integers(-1, 4)))


@given(SMALL)
def test_pairs_are_numbered_in_order(pairs: list[tuple[int, int]]) -> None:
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


def test_alternating_brokers_have_separate_spans() -> None:
    brokers, sequences = np.array([1, 2, 1, 2, 1]), np.array([7, 1, 8, 2, 9])
    assert spans_of(brokers, sequences).tolist() == [[1, 7, 9], [2, 1, 2]]
