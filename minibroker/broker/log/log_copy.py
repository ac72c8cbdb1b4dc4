"""A copy of a log's files for a snapshot of the broker, and the return to it.

Owns which files the copy shares with the log by hard links, and when truncating the log is enough
to return to it. It must never know which logs exist, nor open one. Invariant: a copy looks like a
log that was closed in order, so opening it needs no recovery; and it stays as it is, because files
that a log changes in place are copied, except for those of records: these grow behind the records
of the copy. Kafka has no equivalent.
"""

from __future__ import annotations

import errno
import os
from typing import Final, NamedTuple

from minibroker.broker.log.checkpoint import (
    CLEANER_CHECKPOINT,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from minibroker.broker.log.leader_epochs import LEADER_EPOCH_CHECKPOINT, EpochEntry
from minibroker.broker.log.log import Log
from minibroker.broker.log.paths import (
    LOG,
    PARTITION_METADATA,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    offset_file,
    offsets_of,
    write_file,
)
from minibroker.broker.log.producers import Producer, ProducerTable, write_snapshot
from minibroker.broker.log.segment import ActiveSegment, Segment, SegmentEnd
from minibroker.runtime.system import copy_range

_REPLACED_FILES: Final = (PARTITION_METADATA, CLEANER_CHECKPOINT, LEADER_EPOCH_CHECKPOINT)
"""Files that a log replaces and never changes in place."""

_LINKS_OF_ONE_COPY: Final = 2
"""Directories that share a file of records: the log's, and that of its copy."""


class SavedState(NamedTuple):
    """What is known of a log in memory at the time of its copy."""

    log: Log
    log_start_offset: int
    sealed: tuple[Segment, ...]
    active: ActiveSegment
    end: SegmentEnd
    producers: tuple[tuple[int, Producer], ...]
    epochs: tuple[EpochEntry, ...]


def saved_state(log: Log) -> SavedState:
    """The present state of a log, whose copy was just made or restored."""
    segments = log.segments
    return SavedState(
        log,
        log.log_start_offset,
        segments.sealed,
        segments.active,
        segments.active.end,
        tuple(log.producers.producers.items()),
        log.leader_epochs.entries,
    )


def return_to(saved: SavedState, log: Log | None) -> bool:
    """Truncate a log to the end of its copy; False if its files must be restored.

    Truncating is enough if records were only appended, to the segment that was active, and no other
    copy shares them.
    """
    if log is not saved.log or not log.is_open:
        return False
    now = saved_state(log)
    if now == saved:
        return True
    grown = now._replace(end=saved.end, producers=saved.producers)
    if grown != saved:
        return False
    try:
        if log.segments.active.link_count > _LINKS_OF_ONE_COPY:
            return False
        log.truncate_to(saved.end, ProducerTable(saved.producers, saved.end.next_offset))
    except OSError:
        return False
    return True


def save_log(log: Log, saved: str) -> None:
    """Save the present state of an open log in a new directory. Raises OSError."""
    os.mkdir(saved)
    log.epoch_file.write(log.leader_epochs)
    for name in _REPLACED_FILES:
        _link_existing(os.path.join(log.directory, name), os.path.join(saved, name))
    active = log.segments.active
    for segment in log.segments:
        suffixes = (LOG,) if segment is active else SEGMENT_SUFFIXES
        for suffix in suffixes:
            file = offset_file(log.directory, segment.base_offset, suffix)
            _link_existing(file, offset_file(saved, segment.base_offset, suffix))
    active.save_indexes(saved)
    for offset in offsets_of(log.directory, SNAPSHOT):
        _copy(offset_file(log.directory, offset, SNAPSHOT), offset_file(saved, offset, SNAPSHOT))
    write_snapshot(saved, log.producers)
    clean = (log.log_end_offset, active.size)
    checkpoint = Checkpoint(log.log_start_offset, log.recovery_point, clean, log.producers)
    write_checkpoint(saved, checkpoint, sync=False)


def restore_log(saved: str, directory: str) -> None:
    """Make a new partition directory as a saved one. Raises OSError.

    The directory of the log that the copy was made of must be removed before, so that only other
    copies share the records.
    """
    os.mkdir(directory)
    last = offsets_of(saved, LOG)[-1]
    checkpoint = read_checkpoint(saved)
    assert checkpoint is not None
    assert checkpoint.clean is not None
    _cut_records(offset_file(saved, last, LOG), checkpoint.clean[1])
    changed = {offset_file(saved, last, suffix) for suffix in SEGMENT_SUFFIXES if suffix != LOG}
    for name in os.listdir(saved):
        source, target = f"{saved}/{name}", f"{directory}/{name}"
        if source in changed or name.endswith(SNAPSHOT):
            _copy(source, target)
        else:
            os.link(source, target)


def _cut_records(path: str, size: int) -> None:
    """Remove the records that were appended after the copy was made, for others to be appended."""
    status = os.stat(path)
    if status.st_nlink == 1:
        if status.st_size != size:
            os.truncate(path, size)
        return
    # Another copy has the file, maybe with later records or as a complete segment.
    own = f"{path}.own"
    with open(path, "rb") as shared, open(own, "wb") as file:
        position = 0
        while position < size:
            count = copy_range(shared.fileno(), file.fileno(), size - position)
            if not count:
                raise OSError(errno.EIO, "the file is shorter than its copy", path)
            position += count
    os.replace(own, path)


def _link_existing(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        return


def _copy(source: str, target: str) -> None:
    with open(source, "rb", buffering=0) as read:
        write_file(target, read.readall())
