"""What a cleaning is asked for, and what it reports: plain data for a channel between processes.

It must never know how a cleaning works. Invariant: a task contains everything that a cleaning
needs except the segments' bytes, so it can run in any process.
"""

from __future__ import annotations

from typing import NamedTuple

from minibroker.broker.log.cleaner.batch_filter import LastRecord
from minibroker.broker.log.transaction_index import AbortedTransaction


class SourceSegment(NamedTuple):
    """A segment to be cleaned."""

    base_offset: int
    size: int
    modified_ms: int


class CleaningTask(NamedTuple):
    """One cleaning of a log.

    Keys are collected from ``first_dirty_offset`` up to ``first_uncleanable_offset``; the groups
    of segments up to there are cleaned. Each group becomes one segment.
    """

    directory: str
    groups: tuple[tuple[SourceSegment, ...], ...]
    first_dirty_offset: int
    first_uncleanable_offset: int
    now_ms: int
    delete_retention_ms: int
    index_interval_bytes: int
    entries_max: int
    buffer_bytes: int
    last_records: dict[int, LastRecord]
    aborted: tuple[AbortedTransaction, ...]


class CleanedGroup(NamedTuple):
    """The ``.cleaned`` files that replace a group of segments."""

    base_offset: int
    size: int
    next_offset: int
    max_timestamp: int
    modified_ms: int
    inode: int
    aborted_count: int


class CleaningResult(NamedTuple):
    """What was cleaned: a prefix of the task's groups, up to ``end_offset``."""

    groups: tuple[CleanedGroup, ...]
    end_offset: int
    bytes_read: int
    bytes_written: int
    records_read: int
    records_kept: int
    map_utilization: float


class CleaningFailedError(Exception):
    """A segment could not be cleaned; the text says why."""
