from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.cleaner.plan import (
    CleanableRange,
    LogFacts,
    SegmentFigures,
    cleanable_range,
    group_segments,
)
from minibroker.broker.log.config import LogConfig

NOW_MS = 1_000_000


def segments(*sizes: int) -> list[SegmentFigures]:
    """Segments of ten offsets each, of which the last one is active."""
    return [
        SegmentFigures(10 * n, size, NOW_MS - 100 + n, NOW_MS - 100 + n)
        for n, size in enumerate(sizes)
    ]


def found(
    sizes: tuple[int, ...],
    *,
    clean: int | None = None,
    stable: int = 1000,
    start: int = 0,
    **config: Any,
) -> CleanableRange:
    facts = LogFacts(segments(*sizes), start, stable, clean)
    return cleanable_range(facts, LogConfig(compact=True, **config), NOW_MS)


def test_whole_log_is_dirty_without_checkpoint() -> None:
    assert found((100, 100, 100)) == CleanableRange(0, 20, 0, 200, 0)


def test_clean_part_counts_for_the_ratio() -> None:
    part = found((300, 100, 100), clean=10)
    assert part == CleanableRange(10, 20, 300, 100, 0)
    assert part.ratio == 0.25
    assert not part.is_due(LogConfig())
    assert part.is_due(LogConfig(min_cleanable_dirty_ratio=0.2))


def test_nothing_is_cleanable_in_a_clean_log() -> None:
    part = found((300, 100, 100), clean=20)
    assert part == CleanableRange(20, 20, 400, 0, 0)
    assert not part.is_due(LogConfig(min_cleanable_dirty_ratio=0))
    assert found((0,)).ratio == 0


def test_stable_offset_limits_to_whole_segments() -> None:
    assert found((100, 100, 100), stable=15).first_uncleanable == 10
    assert found((100, 100, 100), stable=9).first_uncleanable == 0


def test_min_compaction_lag_limits() -> None:
    assert found((100, 100, 100), min_compaction_lag_ms=99).first_uncleanable == 20
    assert found((100, 100, 100), min_compaction_lag_ms=100).first_uncleanable == 10
    assert found((100, 100, 100), min_compaction_lag_ms=101).first_uncleanable == 0


def test_max_compaction_lag_makes_a_log_due() -> None:
    config = LogConfig(max_compaction_lag_ms=99)
    part = found((900, 100, 0), clean=10, max_compaction_lag_ms=98)
    assert part.delay_ms == 1
    assert part.is_due(config)
    assert not found((900, 100, 0), clean=10, max_compaction_lag_ms=99).is_due(config)


@pytest.mark.parametrize("clean", [5, 999])
def test_checkpoint_outside_the_log_is_ignored(clean: int) -> None:
    assert found((100, 100, 100), clean=clean, start=7).first_dirty == 7


@given(
    st.lists(st.integers(0, 50), max_size=30),
    st.integers(1, 100),
    st.integers(1, 100),
)
def test_groups_are_adjacent_and_as_large_as_possible(
    sizes: list[int], segment_bytes: int, index_bytes: int
) -> None:
    given_segments = [
        SegmentFigures(10 * n, size, index_bytes=size // 2, time_index_bytes=size // 3)
        for n, size in enumerate(sizes)
    ]
    config = LogConfig(segment_bytes=segment_bytes, segment_index_bytes=index_bytes)
    groups = group_segments(given_segments, config, 10 * len(sizes))
    assert [each for group in groups for each in group] == given_segments
    for group in groups:
        assert len(group) == 1 or sum(each.size for each in group) <= segment_bytes
        assert len(group) == 1 or sum(each.index_bytes for each in group) <= index_bytes
    for group, following in pairwise(groups):
        total = sum(each.size for each in group) + following[0].size
        index = sum(each.index_bytes for each in group) + following[0].index_bytes
        assert total > segment_bytes or index > index_bytes


def test_group_spans_no_more_than_relative_offsets_allow() -> None:
    far = [SegmentFigures(0, 1), SegmentFigures(2**31 - 10, 1), SegmentFigures(2**31, 1)]
    assert [len(group) for group in group_segments(far, LogConfig(), 2**31 + 10)] == [2, 1]
