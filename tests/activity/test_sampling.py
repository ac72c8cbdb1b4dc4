"""A share of connections is recorded, evenly distributed and the same in every process."""

from __future__ import annotations

import pytest

from minibroker.activity.sampling import is_sampled

LIFE = 3 << 32


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_sampled_share_matches_configured_share(share: float) -> None:
    found = sum(is_sampled(LIFE | number, share) for number in range(10_000))
    assert found == pytest.approx(share * 10_000, abs=10)


def test_sample_of_one_includes_everything() -> None:
    assert all(is_sampled(number, 1.0) for number in range(1000))


def test_larger_sample_includes_smaller_sample() -> None:
    small = {number for number in range(1000) if is_sampled(number, 0.2)}
    assert small <= {number for number in range(1000) if is_sampled(number, 0.3)}
