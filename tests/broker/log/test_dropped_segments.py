"""DroppedSegments: files are removed when they are due."""

from __future__ import annotations

from pathlib import Path

from minibroker.broker.log.dropped_segments import DroppedSegments
from minibroker.broker.log.paths import LOG, SNAPSHOT, offset_file


def test_files_of_dropped_segments_are_removed_when_due(tmp_path: Path) -> None:
    def make(offset: int, suffix: str) -> Path:
        path = Path(offset_file(str(tmp_path), offset, suffix))
        path.touch()
        return path

    first, second, third = make(0, LOG), make(5, LOG), make(9, LOG)
    snapshot, kept = make(0, SNAPSHOT), make(12, LOG)
    dropped = DroppedSegments(str(tmp_path))
    dropped.add([0, 5], 1000)
    dropped.add([9], 2000)
    dropped.remove_due(999)
    assert first.exists()
    dropped.remove_due(1000)
    assert not any(path.exists() for path in (first, second, snapshot))
    assert third.exists()
    dropped.remove_all()
    assert not third.exists()
    assert kept.exists()
    dropped.remove_due(5000)
