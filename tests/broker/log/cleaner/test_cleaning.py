from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.log.cleaner.cleaning import clean
from minibroker.broker.log.cleaner.task import CleaningFailedError, CleaningTask, SourceSegment
from minibroker_protocol.records import Record, build_batch, iter_records
from tests.broker.log.cleaner.cleaned_partition import run


def task(directory: Path, size: int, **changes: Any) -> CleaningTask:
    groups = ((SourceSegment(0, size, 0),),)
    whole = CleaningTask(str(directory), groups, 0, 100, 0, 10, 4096, 10, 100, {}, ())
    return whole._replace(**changes)


def write(directory: Path, *batches: bytes) -> int:
    return (directory / f"{0:020}.log").write_bytes(b"".join(batches))


def test_steps_report_the_bytes_of_each_buffer(tmp_path: Path) -> None:
    large = build_batch([Record(key=b"a", value=bytes(300))])
    small = build_batch([Record(key=b"b", value=b"")], base_offset=1)
    steps = clean(task(tmp_path, write(tmp_path, large, small)))
    assert list(steps) == [len(large), len(small), 2 * len(large), 2 * len(small)]


def test_result_counts_bytes_and_records(tmp_path: Path) -> None:
    batches = [build_batch([Record(key=b"a", value=b"1")], base_offset=at) for at in range(3)]
    size = write(tmp_path, *batches)
    result = run(task(tmp_path, size))
    assert (result.records_read, result.records_kept, result.end_offset) == (3, 1, 100)
    assert (result.bytes_read, result.bytes_written) == (2 * size, size // 3)
    assert result.map_utilization == 0.1
    data = (tmp_path / f"{0:020}.log.cleaned").read_bytes()
    assert [record.offset for record in iter_records(data)] == [2]


def test_log_that_is_clean_loses_expired_tombstones_only(tmp_path: Path) -> None:
    batches = [build_batch([Record(key=b"a", value=None)]), build_batch([Record(key=b"b")])]
    result = run(task(tmp_path, write(tmp_path, *batches), first_dirty_offset=100))
    assert (result.records_kept, result.end_offset) == (2, 100)


@pytest.mark.parametrize("missing", [1, 70])
def test_incomplete_batch_fails_the_cleaning(tmp_path: Path, missing: int) -> None:
    data = build_batch([Record(key=b"a", value=bytes(50))])
    write(tmp_path, data[:-missing])
    with pytest.raises(CleaningFailedError, match=str(tmp_path)):
        run(task(tmp_path, len(data) - missing))


def test_missing_file_fails_the_cleaning(tmp_path: Path) -> None:
    with pytest.raises(CleaningFailedError, match="No such file"):
        run(task(tmp_path, 100))


def test_full_disk_is_no_failure_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = write(tmp_path, build_batch([Record(key=b"a", value=b"1")]))

    def refuse(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space left"):
        run(task(tmp_path, size))
