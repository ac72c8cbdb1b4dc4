from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.sequence_spans import (
    merge_spans,
    spans_from_json,
    spans_of,
    spans_overlap,
    spans_to_json,
)

SPANS = st.lists(
    st.tuples(st.integers(-1, 2), st.integers(0, 20), st.integers(0, 5)).map(
        lambda found: (found[0], found[1], found[1] + found[2])
    )
)


def rows(spans: list[tuple[int, int, int]]) -> np.ndarray:
    return np.array(spans, np.int64).reshape(-1, 3)


def said(spans: np.ndarray) -> list[tuple[int, int]]:
    return [(b, at) for b, first, last in spans.tolist() for at in range(first, last + 1)]


@given(SPANS)
def test_overlap_is_true_if_spans_share_a_sequence(spans: list[tuple[int, int, int]]) -> None:
    everything = said(rows(spans))
    assert spans_overlap(rows(spans)) == (len(set(everything)) < len(everything))


@given(SPANS)
def test_joined_spans_are_equal_and_minimal(spans: list[tuple[int, int, int]]) -> None:
    found = merge_spans(rows(spans))
    assert said(found) == sorted(set(said(rows(spans))))
    assert all(
        one[0] != other[0] or other[1] > one[2] + 1 for one, other in pairwise(found.tolist())
    )


@given(SPANS, st.integers(4, 6))
def test_joined_spans_beyond_limit_fill_gaps(spans: list[tuple[int, int, int]], most: int) -> None:
    found = merge_spans(rows(spans), most)
    assert len(found) <= most
    assert set(said(found)) >= set(said(rows(spans)))
    assert not spans_overlap(found)


def test_joined_spans_fill_smallest_gap_first() -> None:
    spans = rows([(1, 0, 1), (1, 5, 6), (1, 8, 9), (2, 0, 0)])
    assert merge_spans(spans, 3).tolist() == [[1, 0, 1], [1, 5, 9], [2, 0, 0]]


@given(SPANS)
def test_spans_json_round_trip_is_equal(spans: list[tuple[int, int, int]]) -> None:
    found = merge_spans(rows(spans))
    assert spans_from_json(json.loads(json.dumps(spans_to_json(found)))).tolist() == found.tolist()


@given(st.lists(st.tuples(st.sampled_from([1, 2, 1025]), st.integers(0, 9))))
def test_spans_are_the_sequences_in_their_order(keys: list[tuple[int, int]]) -> None:
    both = np.array(keys, np.int64).reshape(-1, 2)
    spans = spans_of(both[:, 0], both[:, 1])
    assert sorted(said(spans)) == sorted(keys)


def test_alternating_brokers_have_separate_spans() -> None:
    brokers, sequences = np.array([1, 2, 1, 2, 1]), np.array([7, 1, 8, 2, 9])
    assert spans_of(brokers, sequences).tolist() == [[1, 7, 9], [2, 1, 2]]
