"""Files of active segments are opened when they are used, within a limit."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.segment import SegmentFiles, sync_files
from tests.descriptors import open_below
from tests.runtime.test_system import no_descriptor_left

NOW_MS = 1_700_000_000_000
MakeBatch = Callable[..., bytes]


def created(tmp_path: Path, *names: str) -> list[str]:
    paths = [str(tmp_path / name) for name in names]
    for path in paths:
        Path(path).touch()
    return paths


def test_segment_files_beyond_the_limit_close_the_least_recently_used(tmp_path: Path) -> None:
    before = open_below(tmp_path)
    a, b, c = created(tmp_path, "a", "b", "c")
    files = SegmentFiles(2)
    first = files.descriptor(a)
    files.descriptor(b)
    assert files.descriptor(a) == first
    files.descriptor(c)  # b was used least recently
    assert (len(files), open_below(tmp_path)) == (2, before + 2)
    assert files.descriptor(a) == first
    for path in (a, b, c):
        os.pwrite(files.descriptor(path), path.encode(), 0)
        files.close(path)
        files.close(path)
    assert open_below(tmp_path) == before
    assert [Path(path).read_text() for path in (a, b, c)] == [a, b, c]


def test_segment_files_create_files_by_create_only(tmp_path: Path) -> None:
    files = SegmentFiles(2)
    path = str(tmp_path / "new")
    with pytest.raises(FileNotFoundError):
        files.descriptor(path)
    assert files.create(path) == files.descriptor(path) == files.create(path)
    files.close_directory(str(tmp_path))
    assert len(files) == 0


def test_segment_files_of_other_directories_stay_open(tmp_path: Path) -> None:
    (tmp_path / "t-1").mkdir()
    (tmp_path / "t-11").mkdir()
    files = SegmentFiles(9)
    for name in ("t-1/0.log", "t-1/5.log", "t-11/0.log"):
        files.create(str(tmp_path / name))
    files.close_directory(str(tmp_path / "t-1"))
    assert len(files) == 1
    files.close_directory(str(tmp_path / "t-11"))


def test_segment_files_with_limit_zero_are_rejected() -> None:
    with pytest.raises(ValueError, match="at least one"):
        SegmentFiles(0)


def test_segment_files_out_of_descriptors_close_least_recently_used(tmp_path: Path) -> None:
    a, b, c, d = created(tmp_path, "a", "b", "c", "d")
    files = SegmentFiles(100)
    for path in (a, b, c):
        files.descriptor(path)
    with no_descriptor_left():
        assert files.descriptor(d) >= 0
        assert len(files) == 2
    files.close_directory(str(tmp_path))
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        files.descriptor(a)
    assert len(files) == 0


def test_logs_beyond_descriptor_limit_are_written_read_and_recovered(
    tmp_path: Path, batch: MakeBatch
) -> None:
    before, files = open_below(tmp_path), SegmentFiles(3)
    config = LogConfig(segment_bytes=300)

    def opened() -> list[Log]:
        return [
            Log.open(tmp_path, "t", number, config, now_ms=NOW_MS, files=files)
            for number in range(20)
        ]

    logs = opened()
    for _ in range(5):
        for log in logs:
            log.append(batch(0), now_ms=NOW_MS)
            assert open_below(tmp_path) <= before + 3
    assert all(len(log.segments) > 1 for log in logs)
    for log in logs:
        pieces = [log.read(offset, 1000) for offset in range(5)]
        assert all(piece is not None and piece.load() for piece in pieces)
        log.abandon()
    assert open_below(tmp_path) == before
    again = opened()
    assert [log.log_end_offset for log in again] == [5] * 20
    for log in again:
        log.close(now_ms=NOW_MS)
    assert open_below(tmp_path) == before
    assert all(log.opened_clean for log in opened())
    for number in range(20):
        files.close_directory(str(tmp_path / f"t-{number}"))


def test_failed_recovery_leaves_no_descriptor_open(
    tmp_path: Path, batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, files = open_below(tmp_path), SegmentFiles(3)
    log = Log.open(tmp_path, "t", 0, LogConfig(), now_ms=NOW_MS, files=files)
    log.append(batch(0), now_ms=NOW_MS)
    log.abandon()

    def fail(*_: object, **__: object) -> None:
        raise OSError("no")

    with monkeypatch.context() as context:
        context.setattr(os, "pwritev", fail)
        with pytest.raises(OSError, match="no"):
            Log.open(tmp_path, "t", 0, LogConfig(), now_ms=NOW_MS, files=files)
    assert open_below(tmp_path) == before


def test_closed_log_does_not_write_to_new_log_of_same_name(
    tmp_path: Path, batch: MakeBatch
) -> None:
    log = Log.open(tmp_path, "t", 0, LogConfig(), now_ms=NOW_MS)
    log.append(batch(0), now_ms=NOW_MS)
    log.abandon()
    os.rename(tmp_path / "t-0", tmp_path / "aside")
    again = Log.open(tmp_path, "t", 0, LogConfig(), now_ms=NOW_MS)
    with pytest.raises(Exception, match="the log is closed"):
        log.append(batch(0), now_ms=NOW_MS)
    assert os.path.getsize(tmp_path / "t-0" / f"{0:020d}.log") == 0
    again.abandon()


def test_files_that_are_gone_need_no_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    (tmp_path / "there").write_bytes(b"")
    sync_files([str(tmp_path / "gone"), str(tmp_path / "there")])
    assert len(synced) == 1
