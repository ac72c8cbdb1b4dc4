from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.segment import SegmentExtent, SegmentGrowth, count_expired, must_roll

NOW_MS = 1_000_000


def rolls(
    *,
    size: int = 500,
    base_offset: int = 0,
    index_entries: int = 0,
    time_index_entries: int = 0,
    first_timestamp: int = NOW_MS,
    created_ms: int = NOW_MS,
    batch_size: int = 100,
    last_offset: int = 10,
    max_timestamp: int = NOW_MS,
    **settings: Any,
) -> bool:
    growth = SegmentGrowth(
        base_offset, size, index_entries, time_index_entries, first_timestamp, created_ms
    )
    return must_roll(
        growth,
        LogConfig(**settings),
        batch_size=batch_size,
        last_offset=last_offset,
        max_timestamp=max_timestamp,
        now_ms=NOW_MS,
    )


def test_segment_rolls_if_batch_does_not_fit() -> None:
    assert not rolls(segment_bytes=600)
    assert rolls(segment_bytes=599)


def test_segment_rolls_if_relative_offset_exceeds_int32() -> None:
    assert not rolls(base_offset=7, last_offset=2**31 - 1 + 7)
    assert rolls(base_offset=7, last_offset=2**31 + 7)


def test_segment_rolls_if_index_is_full() -> None:
    assert not rolls(segment_index_bytes=80, index_entries=9)
    assert rolls(segment_index_bytes=80, index_entries=10)
    assert not rolls(segment_index_bytes=120, time_index_entries=8)
    assert rolls(segment_index_bytes=120, time_index_entries=9)


def test_segment_rolls_by_record_timestamps() -> None:
    assert not rolls(segment_ms=50, max_timestamp=NOW_MS + 50)
    assert rolls(segment_ms=50, max_timestamp=NOW_MS + 51)
    assert not rolls(segment_ms=50, max_timestamp=NOW_MS + 51, size=0)


def test_segment_without_timestamps_rolls_by_wall_clock() -> None:
    assert not rolls(segment_ms=50, first_timestamp=-1, created_ms=NOW_MS - 50)
    assert rolls(segment_ms=50, first_timestamp=-1, created_ms=NOW_MS - 51)


SEGMENTS = [
    SegmentExtent(0, 100, NOW_MS - 300),
    SegmentExtent(10, 100, NOW_MS - 200),
    SegmentExtent(20, 100, NOW_MS - 100),
]
EMPTY_END = SegmentExtent(30, 0, NOW_MS - 400)


def gone(segments: list[SegmentExtent], start: int = 0, **settings: Any) -> int:
    config = LogConfig(**{"retention_ms": -1, **settings})
    return count_expired(segments, config, log_start_offset=start, now_ms=NOW_MS)


@pytest.mark.parametrize(("limit", "count"), [(300, 0), (299, 1), (99, 3), (-1, 0)])
def test_retention_by_time_deletes_segments_with_expired_newest_record(
    limit: int, count: int
) -> None:
    assert gone(SEGMENTS, retention_ms=limit) == count


@pytest.mark.parametrize(
    ("limit", "count"), [(301, 0), (201, 0), (200, 1), (101, 1), (100, 2), (0, 3), (-1, 0)]
)
def test_retention_by_size_deletes_segments_while_limit_is_exceeded(limit: int, count: int) -> None:
    assert gone(SEGMENTS, retention_bytes=limit) == count


@pytest.mark.parametrize(("start", "count"), [(0, 0), (9, 0), (10, 1), (25, 2), (30, 2)])
def test_segments_below_log_start_are_deleted_except_the_last(start: int, count: int) -> None:
    assert gone(SEGMENTS, start, delete=False, retention_ms=0, retention_bytes=0) == count


def test_empty_last_segment_is_kept() -> None:
    assert gone([*SEGMENTS, EMPTY_END], retention_ms=0) == 3
    assert gone([EMPTY_END], retention_ms=0, retention_bytes=0) == 0


def test_unexpired_segment_keeps_later_segments() -> None:
    segments = [
        SegmentExtent(0, 100, NOW_MS - 100),
        SegmentExtent(10, 100, NOW_MS - 300),
        EMPTY_END,
    ]
    assert gone(segments, retention_ms=150) == 0


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=10),
    limit=st.integers(0, 5000),
)
def test_retention_by_size_deletes_exactly_the_excess_segments(
    sizes: list[int], limit: int
) -> None:
    segments = [SegmentExtent(i, size, NOW_MS) for i, size in enumerate(sizes)]
    count = gone(segments, retention_bytes=limit)
    if count:
        assert sum(sizes[count:]) >= limit
    if count < len(sizes):
        assert sum(sizes[count + 1 :]) < limit
