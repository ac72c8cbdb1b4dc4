"""Tests."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.log.cleaner.batch_filter import LastRecord
from minibroker.broker.log.cleaner.cleaning import (
    CleanedSegment,
    CleaningFailedError,
    CleaningTask,
    SourceSegment,
    clean,
)
from minibroker.broker.log.producers import AbortedTransaction, TransactionIndex
from minibroker.broker.log.segment import OFFSET_ENTRY, TIME_ENTRY
from minibroker_protocol.records import Record, build_batch, iter_records, parse_batch_header
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


def test_task_is_plain_data() -> None:
    groups = ((SourceSegment(0, 1, 2),),)
    aborted = (AbortedTransaction(1, 2, 3, 4),)
    task = CleaningTask("d", groups, 0, 1, 2, 3, 4, 5, 6, {1: LastRecord(2, 3)}, aborted)
    assert pickle.loads(pickle.dumps(task)) == task


STEM = f"{100:020}"


def test_cleaned_copy_has_all_indexes(tmp_path: Path) -> None:
    (tmp_path / f"{STEM}.log.cleaned").write_bytes(b"of a killed process")
    copy = CleanedSegment(str(tmp_path), 100, index_interval_bytes=1, buffer_bytes=4096)
    data = b""
    for offset in (100, 105, 109):
        data = build_batch([Record(timestamp=offset, key=b"k")], base_offset=offset)
        copy.write(parse_batch_header(data), data, offset)
    aborted = AbortedTransaction(1, 100, 105, 106)
    group = copy.finish([aborted], has_index=False, modified_ms=7000)
    log = tmp_path / f"{STEM}.log.cleaned"
    assert group.size == log.stat().st_size == 3 * len(data)
    assert (group.next_offset, group.max_timestamp, group.aborted_count) == (110, 109, 1)
    assert log.stat().st_mtime == 7
    assert group.inode == log.stat().st_ino
    offsets = (tmp_path / f"{STEM}.index.cleaned").read_bytes()
    assert list(OFFSET_ENTRY.iter_unpack(offsets)) == [(5, len(data)), (9, 2 * len(data))]
    times = (tmp_path / f"{STEM}.timeindex.cleaned").read_bytes()
    assert list(TIME_ENTRY.iter_unpack(times)) == [(105, 5), (109, 9)]
    index = TransactionIndex((tmp_path / f"{STEM}.txnindex.cleaned").read_bytes())
    assert list(index) == [aborted]


def test_empty_transaction_index_replaces_one(tmp_path: Path) -> None:
    copy = CleanedSegment(str(tmp_path), 100, index_interval_bytes=1, buffer_bytes=4096)
    copy.finish([], has_index=True, modified_ms=0)
    assert (tmp_path / f"{STEM}.txnindex.cleaned").read_bytes() == b""
    copy = CleanedSegment(str(tmp_path), 7, index_interval_bytes=1, buffer_bytes=4096)
    copy.close()
    assert not (tmp_path / f"{7:020}.txnindex.cleaned").exists()
