"""The arithmetic of free stretches, against a plain model."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from minibroker.runtime.extents import Extent, Extents

SIZE = 1000

# Positive: take so much. Negative: give back one of the live stretches.
histories = st.lists(st.one_of(st.integers(1, SIZE), st.integers(-100, -1)), max_size=200)


def test_fresh_range_is_one_extent() -> None:
    assert Extents(SIZE).free() == [Extent(0, SIZE)]


def test_complete_range_can_be_taken_and_released() -> None:
    extents = Extents(SIZE)
    assert extents.take(SIZE) == 0
    assert extents.free() == []
    assert extents.take(1) is None
    assert extents.give(0, SIZE) == Extent(0, SIZE)
    assert extents.take(SIZE + 1) is None
    assert extents.free() == [Extent(0, SIZE)]


def test_extent_below_the_next_power_of_two_is_found() -> None:
    """700 is requested and 1000 is free: both are between 512 and 1024."""
    assert Extents(SIZE).take(700) == 0


def test_giving_back_joins_both_neighbours() -> None:
    extents = Extents(300)
    starts = {extents.take(100) for _ in range(3)}
    assert starts == {0, 100, 200}
    assert extents.give(0, 100) == Extent(0, 100)
    assert extents.give(200, 100) == Extent(200, 100)
    assert extents.give(100, 100) == Extent(0, 300)


@given(histories)
def test_allocated_regions_never_overlap_and_none_is_lost(history: list[int]) -> None:
    extents = Extents(SIZE)
    live: list[Extent] = []
    for action in history:
        if action > 0:
            longest = max((extent.size for extent in extents.free()), default=0)
            start = extents.take(action)
            assert (start is not None) == (action <= longest), "refused only if nothing fits"
            if start is not None:
                live.append(Extent(start, action))
        elif live:
            given_back = live.pop(action % len(live))
            merged = extents.give(*given_back)
            assert merged in extents.free()
        covered = sorted(live + extents.free())
        assert covered[0].start == 0
        assert covered[-1].start + covered[-1].size == SIZE
        assert all(a.start + a.size == b.start for a, b in pairwise(covered)), "no gap, no overlap"
        free = extents.free()
        assert all(a.start + a.size < b.start for a, b in pairwise(free)), "neighbours are joined"
    for stretch in live:
        extents.give(*stretch)
    assert extents.free() == [Extent(0, SIZE)]
