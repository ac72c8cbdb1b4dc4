"""When a segment is rolled and which segments go: rules only.

Owns the arithmetic of ``segment.*`` and ``retention.*``. It must never know files or clocks: it
is given facts about segments, and the time. Its invariant: segments go from the oldest on, without
a gap, and an empty last segment never goes. Echoes ``LogSegment.shouldRoll`` and
``UnifiedLog.deletableSegments``; as there, the last segment may go too when all of it has expired,
and the log then rolls first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from minibroker.storage.config import LogConfig
from minibroker.storage.index import OFFSET_ENTRY, TIME_ENTRY

RELATIVE_OFFSET_MAX: Final = 2**31 - 1


class SegmentExtent(NamedTuple):
    """What the rules need to know of a segment; times in ms, ``latest_ms`` of its newest record."""

    base_offset: int
    size: int
    latest_ms: int


class SegmentGrowth(NamedTuple):
    """The state of the segment that is appended to."""

    base_offset: int
    size: int
    index_entries: int
    time_index_entries: int
    first_timestamp: int
    """Largest timestamp in the first batch; negative when there is none."""
    created_ms: int


def must_roll(
    growth: SegmentGrowth,
    config: LogConfig,
    *,
    batch_size: int,
    last_offset: int,
    max_timestamp: int,
    now_ms: int,
) -> bool:
    """Whether the batch belongs into a new segment."""
    if growth.size + batch_size > config.segment_bytes:
        return True
    if last_offset - growth.base_offset > RELATIVE_OFFSET_MAX:
        return True
    if growth.index_entries >= config.segment_index_bytes // OFFSET_ENTRY.size:
        return True
    # One entry stays free for the largest timestamp, which is added when the segment is sealed.
    if growth.time_index_entries >= config.segment_index_bytes // TIME_ENTRY.size - 1:
        return True
    if growth.size == 0:
        return False
    if growth.first_timestamp >= 0:
        waited = max_timestamp - growth.first_timestamp
    else:
        waited = now_ms - growth.created_ms
    return waited > config.segment_ms


def expired(
    segments: Sequence[SegmentExtent], config: LogConfig, *, log_start_offset: int, now_ms: int
) -> int:
    """How many segments, from the oldest on, are to be deleted."""
    gone = 0
    while gone + 1 < len(segments) and segments[gone + 1].base_offset <= log_start_offset:
        gone += 1
    if not config.delete:
        return gone
    gone += _over_size(segments[gone:], config.retention_bytes)
    if config.retention_ms >= 0:
        while gone < len(segments) and now_ms - segments[gone].latest_ms > config.retention_ms:
            gone += 1
    if gone == len(segments) and segments[-1].size == 0:
        gone -= 1
    return gone


def _over_size(segments: Sequence[SegmentExtent], retention_bytes: int) -> int:
    """Only what leaves at least ``retention_bytes`` behind goes."""
    if retention_bytes < 0:
        return 0
    surplus = sum(segment.size for segment in segments) - retention_bytes
    gone = 0
    while gone < len(segments) and surplus >= segments[gone].size:
        surplus -= segments[gone].size
        gone += 1
    return gone
