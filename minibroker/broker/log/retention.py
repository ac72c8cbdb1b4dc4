"""Rules for rolling a segment and for deleting expired segments.

Owns the arithmetic of ``segment.*`` and ``retention.*``. It must never know files or clocks: it
is given the segments' extents, and the time. Invariant: segments are deleted from the oldest on,
without a gap, and an empty last segment is never deleted. Echoes ``LogSegment.shouldRoll`` and
``UnifiedLog.deletableSegments``; as there, the last segment is also deleted if it has expired
completely, after the log has rolled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.index import OFFSET_ENTRY, TIME_ENTRY

RELATIVE_OFFSET_MAX: Final = 2**31 - 1


class SegmentExtent(NamedTuple):
    """Extent of a segment; ``latest_ms`` is the timestamp of its newest record, in epoch ms."""

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
    """Whether the segment must be rolled before the batch is appended."""
    if growth.size + batch_size > config.segment_bytes:
        return True
    if last_offset - growth.base_offset > RELATIVE_OFFSET_MAX:
        return True
    if growth.index_entries >= config.segment_index_bytes // OFFSET_ENTRY.size:
        return True
    # One entry is reserved for the largest timestamp, which is added when the segment is sealed.
    if growth.time_index_entries >= config.segment_index_bytes // TIME_ENTRY.size - 1:
        return True
    if growth.size == 0:
        return False
    if growth.first_timestamp >= 0:
        age_ms = max_timestamp - growth.first_timestamp
    else:
        age_ms = now_ms - growth.created_ms
    return age_ms > config.max_segment_ms


def count_expired(
    segments: Sequence[SegmentExtent], config: LogConfig, *, log_start_offset: int, now_ms: int
) -> int:
    """The number of segments to delete, from the oldest on."""
    count = 0
    while count + 1 < len(segments) and segments[count + 1].base_offset <= log_start_offset:
        count += 1
    if not config.delete:
        return count
    count += _count_over_size(segments[count:], config.retention_bytes)
    if config.retention_ms >= 0:
        while count < len(segments) and now_ms - segments[count].latest_ms > config.retention_ms:
            count += 1
    if count == len(segments) and segments[-1].size == 0:
        count -= 1
    return count


def _count_over_size(segments: Sequence[SegmentExtent], retention_bytes: int) -> int:
    """The number of oldest segments without which ``retention_bytes`` still remain."""
    if retention_bytes < 0:
        return 0
    surplus = sum(segment.size for segment in segments) - retention_bytes
    count = 0
    while count < len(segments) and surplus >= segments[count].size:
        surplus -= segments[count].size
        count += 1
    return count
