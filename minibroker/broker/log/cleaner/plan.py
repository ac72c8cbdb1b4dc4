"""Which logs are cleaned, from where to where, and which segments become one.

Owns the arithmetic of ``min.cleanable.dirty.ratio`` and of the compaction lags. It must never know
files or clocks: it is given the extents of segments, and the time. Invariant: nothing from the last
stable offset, the recovery point or the active segment on is cleaned, and groups contain adjacent
segments. Echoes ``LogCleanerManager``, ``LogToClean`` and ``Cleaner.groupSegmentsBySize``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from minibroker.broker.log.config import UNBOUNDED, LogConfig

RELATIVE_OFFSET_MAX: Final = 2**31 - 1
POSITION_MAX: Final = 2**31 - 1
"""Largest position that an index entry can hold."""


class SegmentFigures(NamedTuple):
    """A segment as the plan sees it. Index sizes count for ``group_segments`` only.

    ``first_timestamp`` is that of the first batch; it counts for ``max.compaction.lag.ms`` only.
    """

    base_offset: int
    size: int
    max_timestamp: int = -1
    first_timestamp: int = -1
    index_bytes: int = 0
    time_index_bytes: int = 0


class LogFacts(NamedTuple):
    """What the plan knows of a log; the last segment is the active one.

    ``clean_offset`` is the checkpoint, None without one. ``stable_offset`` is the smaller one of
    last stable offset and recovery point.
    """

    segments: Sequence[SegmentFigures]
    log_start_offset: int
    stable_offset: int
    clean_offset: int | None


class CleanableRange(NamedTuple):
    """The part of a log that can be cleaned, and how dirty the log is.

    ``first_uncleanable`` is the base offset of a segment.
    """

    first_dirty: int
    first_uncleanable: int
    clean_bytes: int
    cleanable_bytes: int
    delay_ms: int
    """How long the oldest dirty record has exceeded ``max.compaction.lag.ms``."""

    @property
    def ratio(self) -> float:
        """Share of the dirty bytes among all that would be read."""
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Whether the log is to be cleaned without a request."""
        if not self.cleanable_bytes:
            return False
        return self.delay_ms > 0 or self.ratio > config.min_cleanable_dirty_ratio


def cleanable_range(log: LogFacts, config: LogConfig, now_ms: int) -> CleanableRange:
    """The part of a log that can be cleaned now; it may be empty."""
    first_dirty = _first_dirty(log)
    sealed, active = log.segments[:-1], log.segments[-1]
    dirty = _from_offset(sealed, first_dirty, active.base_offset)
    limit = min(log.stable_offset, active.base_offset)
    if config.min_compaction_lag_ms > 0:
        latest = now_ms - config.min_compaction_lag_ms
        recent = (each.base_offset for each in dirty if each.max_timestamp > latest)
        limit = min(limit, next(recent, limit))
    limit = max(first_dirty, limit)
    bases = [each.base_offset for each in _from_offset(log.segments, limit, UNBOUNDED)]
    first_uncleanable = bases[0] if bases else active.base_offset
    cleanable = _from_offset(sealed, min(first_dirty, first_uncleanable), first_uncleanable)
    return CleanableRange(
        first_dirty,
        first_uncleanable,
        sum(each.size for each in sealed if each.base_offset < first_dirty),
        sum(each.size for each in cleanable),
        _delay_ms(dirty, config, now_ms),
    )


def _first_dirty(log: LogFacts) -> int:
    """The checkpoint, unless it is outside the log, of which all is then dirty."""
    clean, start = log.clean_offset, log.log_start_offset
    end = log.segments[-1].base_offset
    return start if clean is None or not start <= clean <= end else clean


def _from_offset(
    segments: Sequence[SegmentFigures], first: int, end: int
) -> Sequence[SegmentFigures]:
    """The segments from the one with offset ``first`` on that start before ``end``."""
    if first >= end:
        return []
    floor = max((each.base_offset for each in segments if each.base_offset <= first), default=first)
    return [each for each in segments if floor <= each.base_offset < end]


def _delay_ms(dirty: Sequence[SegmentFigures], config: LogConfig, now_ms: int) -> int:
    timestamps = [each.first_timestamp for each in dirty if each.first_timestamp > 0]
    clean_until = now_ms - max(config.max_compaction_lag_ms, 0)
    return max(0, clean_until - min(timestamps)) if timestamps else 0


def group_segments(
    segments: Sequence[SegmentFigures], config: LogConfig, end_offset: int
) -> list[list[SegmentFigures]]:
    """Group adjacent segments that fit into one, so that segments do not become ever smaller.

    ``end_offset`` is the end of the last segment.
    """
    groups: list[list[SegmentFigures]] = []
    for index, segment in enumerate(segments, start=1):
        end = segments[index].base_offset if index < len(segments) else end_offset
        if groups and _fits(groups[-1], segment, end, config):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(group: Sequence[SegmentFigures], segment: SegmentFigures, end: int, c: LogConfig) -> bool:
    return (
        _total(group, "size") + segment.size <= min(c.segment_bytes, POSITION_MAX)
        and _total(group, "index_bytes") + segment.index_bytes <= c.segment_index_bytes
        and _total(group, "time_index_bytes") + segment.time_index_bytes <= c.segment_index_bytes
        and end - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
    )


def _total(group: Iterable[SegmentFigures], field: str) -> int:
    return sum(getattr(segment, field) for segment in group)
