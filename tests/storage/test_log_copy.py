"""A saved log is returned to with all its records, indexes and producers, any number of times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minibroker.storage.log import Log
from minibroker.storage.log_copy import log_mark, restore_log, save_log
from minibroker.storage.validation import Origin, prepare_batch
from protocol.control_records import EndTransactionMarker

NOW_MS = 1_700_000_000_000
OpenLog = Callable[..., Log]
MakeBatch = Callable[..., bytes]


def read(log: Log) -> list[bytes]:
    found, offset = [], log.log_start_offset
    while offset < log.log_end_offset:
        piece = log.read(offset, 1 << 20)
        assert piece is not None
        found.append(piece.load())
        offset = log.next_segment_offset(offset)
    return found


def state(log: Log) -> tuple[object, ...]:
    return (
        read(log),
        log.log_start_offset,
        log.log_end_offset,
        log.segments.base_offsets,
        [segment.max_timestamp for segment in log.segments],
        log.leader_epochs.entries,
        dict(log.producers.producers),
        log.max_timestamp(),
        log.offset_for_time(NOW_MS + 3),
    )


def give_up(log: Log) -> None:
    """Remove a log's directory, as a worker does before a return."""
    log.abandon()
    directory = Path(log.directory)
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()


@pytest.fixture
def fill(batch: MakeBatch) -> Callable[..., None]:
    def append(log: Log, count: int, leader_epoch: int = 0, **options: Any) -> None:
        for _ in range(count):
            after_ms = log.log_end_offset
            records = batch(after_ms, after_ms, **options)
            log.append(records, now_ms=NOW_MS + after_ms, leader_epoch=leader_epoch)

    return append


def test_restored_log_equals_the_saved_one_and_needs_no_recovery(
    tmp_path: Path, open_log: OpenLog, fill: Callable[..., None]
) -> None:
    log = open_log(segment_bytes=500)
    fill(log, 20)
    log.append_marker(7, 0, EndTransactionMarker(False, 0), transaction_version=1, now_ms=NOW_MS)
    log.delete_records(3)
    fill(log, 1, leader_epoch=4)
    before = state(log)
    saved = str(tmp_path / "saved")
    save_log(log, saved)
    for _ in range(3):
        fill(log, 9)
        log.delete_records(10)
        log.apply_retention(now_ms=NOW_MS)
        give_up(log)
        restore_log(saved, str(tmp_path / "t-0"))
        log = open_log(segment_bytes=500)
        assert log.opened_clean
        assert state(log) == before


def test_copies_that_share_records_do_not_change_each_other(
    tmp_path: Path, open_log: OpenLog, fill: Callable[..., None]
) -> None:
    log = open_log(segment_bytes=500)
    states = {}
    for name in ("a", "b", "c", "d"):
        states[name] = state(log)
        save_log(log, str(tmp_path / name))
        if name == "b":
            log.roll(now_ms=NOW_MS)
        else:
            fill(log, 2)
    for name in "abcddcbaacbd":
        fill(log, 3, value=name.encode())
        give_up(log)
        restore_log(str(tmp_path / name), str(tmp_path / "t-0"))
        log = open_log(segment_bytes=500)
        assert state(log) == states[name], name


def test_aborted_transactions_are_restored(
    tmp_path: Path, open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log()
    records = batch(0, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    guard = log.producers.verifications.begin(7, 0, 0, adds=False, now_ms=NOW_MS)
    log.append_prepared(
        prepare_batch(records, log.config, now_ms=NOW_MS, origin=Origin.CLIENT),
        now_ms=NOW_MS,
        guard=guard,
    )
    log.append_marker(7, 0, EndTransactionMarker(False, 0), transaction_version=1, now_ms=NOW_MS)
    _, before = log.read_committed(0, 1000, log.log_end_offset)
    save_log(log, str(tmp_path / "saved"))
    give_up(log)
    restore_log(str(tmp_path / "saved"), str(tmp_path / "t-0"))
    log = open_log()
    assert log.read_committed(0, 1000, log.log_end_offset)[1] == before
    assert len(before) == 1


def test_mark_changes_with_the_log(open_log: OpenLog, fill: Callable[..., None]) -> None:
    log = open_log()
    marks = [log_mark(log)]
    assert marks[0] == log_mark(log)
    for change in (
        lambda: fill(log, 1),
        lambda: log.roll(now_ms=NOW_MS),
        lambda: log.delete_records(1),
        lambda: log.assign_leader_epoch(9, log.log_end_offset),
    ):
        change()
        assert log_mark(log) not in marks
        marks.append(log_mark(log))
