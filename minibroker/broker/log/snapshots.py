"""The producer snapshots of a log: written when a segment is rolled, read by recovery.

Owns which snapshots are kept. It must never know what is in the segments. Invariant: a snapshot
that is damaged is removed and an older one is used. Echoes ``ProducerStateManager``.
"""

from __future__ import annotations

import os
from collections.abc import Collection

from minibroker.broker.log.paths import SNAPSHOT, offset_file, offsets_of, remove_files, write_file
from minibroker.broker.log.producers import ProducerTable, decode_snapshot, encode_snapshot
from minibroker_protocol.errors import DecodeError


def write_snapshot(directory: str, producers: ProducerTable) -> None:
    """Write the producers' states at the end of the log, if it has records. Raises OSError."""
    if producers.end_offset > 0:
        path = offset_file(directory, producers.end_offset, SNAPSHOT)
        write_file(path, encode_snapshot(producers))


def read_snapshot(directory: str, offset: int) -> ProducerTable:
    """The newest snapshot at or before ``offset``; an empty table without one. Raises OSError."""
    for snapshot_offset in reversed(offsets_of(directory, SNAPSHOT)):
        if snapshot_offset <= offset:
            path = offset_file(directory, snapshot_offset, SNAPSHOT)
            try:
                with open(path, "rb") as file:
                    return decode_snapshot(file.read(), snapshot_offset)
            except DecodeError:
                os.unlink(path)
    return ProducerTable()


def remove_unused_snapshots(directory: str, usable: Collection[int]) -> None:
    """Keep the newest snapshot and those at offsets from which recovery may start."""
    for offset in offsets_of(directory, SNAPSHOT)[:-1]:
        if offset not in usable:
            remove_files(directory, offset, (SNAPSHOT,))


def remove_snapshots_after(directory: str, offset: int) -> None:
    """Remove the snapshots after ``offset``, the end of a log that recovery truncated."""
    for snapshot_offset in offsets_of(directory, SNAPSHOT):
        if snapshot_offset > offset:
            remove_files(directory, snapshot_offset, (SNAPSHOT,))
