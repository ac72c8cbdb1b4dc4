from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.report.figures import BUCKETS_MAX, step_for
from tests.pipeline.report.sample_figures import START_S, figures, lonely

DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("length_us", "step_s"),
    [(0, 1), (119_000_000, 1), (3_600_000_000, 60), (DAY_US, 900), (29 * DAY_US, 21_600),
     (400 * DAY_US, 4 * 86_400)],
)  # fmt: skip
def test_bucket_length_is_shortest_within_bucket_limit(length_us: int, step_s: int) -> None:
    assert step_for(0, length_us) == step_s


@given(st.integers(0, 2**52), st.integers(0, 10**17))
def test_there_are_never_more_buckets_than_can_be_drawn(first_us: int, length_us: int) -> None:
    last_us = first_us + length_us
    step_s = step_for(first_us, last_us)
    made = figures()
    cover = made.coverage._replace(first_us=first_us, last_us=last_us)
    starts = replace(made, step_s=step_s, coverage=cover).starts_s
    assert 1 <= len(starts) <= BUCKETS_MAX + 1
    assert starts[0] <= first_us // 1_000_000 < starts[0] + step_s
    assert starts[-1] <= last_us // 1_000_000 < starts[-1] + step_s


def test_one_moment_has_a_length_by_which_to_divide() -> None:
    assert lonely().length_s == 1
    assert list(lonely().starts_s) == [START_S]


def test_bucket_that_was_cut_off_is_shorter() -> None:
    made = figures()
    assert [made.seen_s(start) for start in made.starts_s] == [60, 60, 59]
    cover = made.coverage
    later = replace(made, coverage=cover._replace(first_us=cover.first_us + 20_000_000))
    assert later.seen_s(START_S) == 40
    assert lonely().seen_s(START_S) == 1
