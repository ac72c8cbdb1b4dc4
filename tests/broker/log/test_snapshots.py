"""Snapshots of the producers: which one is read, and which ones are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.broker.log.producers import ProducerTable
from minibroker.broker.log.snapshots import (
    read_snapshot,
    remove_snapshots_after,
    remove_unused_snapshots,
    write_snapshot,
)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with snapshots at 3, 5 and 9."""
    for offset in (0, 3, 5, 9):
        write_snapshot(str(tmp_path), ProducerTable(end_offset=offset))
    return tmp_path


def kept(directory: Path) -> list[int]:
    return sorted(int(path.stem) for path in directory.iterdir())


@pytest.mark.parametrize(("offset", "found"), [(2, 0), (3, 3), (8, 5), (100, 9)])
def test_newest_snapshot_at_or_before_offset_is_read(
    directory: Path, offset: int, found: int
) -> None:
    assert kept(directory) == [3, 5, 9]
    assert read_snapshot(str(directory), offset).end_offset == found


def test_corrupt_snapshot_is_removed_and_older_one_read(directory: Path) -> None:
    (directory / f"{5:020d}.snapshot").write_bytes(b"damaged")
    assert read_snapshot(str(directory), 8).end_offset == 3
    assert kept(directory) == [3, 9]


def test_snapshots_are_kept_if_usable_or_newest(directory: Path) -> None:
    remove_unused_snapshots(str(directory), {3, 4})
    assert kept(directory) == [3, 9]


def test_snapshots_after_the_end_of_the_log_are_removed(directory: Path) -> None:
    remove_snapshots_after(str(directory), 5)
    assert kept(directory) == [3, 5]
