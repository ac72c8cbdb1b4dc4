"""Latencies as numbers, and their percentiles, as they are by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.aggregation import (
    NO_LATENCY,
    PERCENTILES,
    latency_of,
    percentiles,
    rounded,
)
from tests.pipeline.reference_counts import percentile, three_digits


def test_latencies_have_numbers_in_their_order() -> None:
    powers = [10**digits for digits in range(16)]
    some = sorted({0, *(each + by for each in powers for by in (-1, 0, 1, 4, 5))} | {2**63 // 1000})
    us = np.array([each for each in some if each >= 0], np.int64)
    numbers = rounded(us)
    assert (np.diff(numbers) >= 0).all()
    assert numbers.max() < NO_LATENCY
    assert latency_of(numbers).tolist() == [three_digits(int(each)) for each in us]
    assert rounded(np.array([-1])).tolist() == [NO_LATENCY]


@given(st.lists(st.lists(st.integers(0, 2000)), max_size=5))
def test_percentiles_are_computed_per_span(spans: list[list[int]]) -> None:
    seen = [np.sort(rounded(np.array(span, np.int64))) for span in spans]
    numbers = np.concatenate([*seen, np.empty(0, np.int64)])
    starts = np.cumsum([0, *map(len, seen)])
    for percent, found in zip(PERCENTILES, percentiles(numbers, starts), strict=True):
        by_hand = [percentile([three_digits(us) for us in span], percent) for span in spans]
        values = [None if value != value else value for value in found.tolist()]  # noqa: PLR0124
        assert values == by_hand


def test_percentiles_of_repeated_value() -> None:
    [p50, *_] = percentiles(np.array([5, 5, 9]), np.array([0, 3]))
    assert p50.tolist() == pytest.approx([5])
