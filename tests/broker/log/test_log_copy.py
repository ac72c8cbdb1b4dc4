"""A saved log is returned to with all its records, indexes and producers, any number of times."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import SavedState, restore_log, return_to, save_log, saved_state
from minibroker.broker.log.validation import Origin, prepare_batch
from minibroker_protocol.control_records import EndTransactionMarker

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


def abort_transaction(log: Log, producer_id: int) -> None:
    marker = EndTransactionMarker(False, 0)
    log.append_marker(producer_id, 0, marker, transaction_version=1, now_ms=NOW_MS)


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
    abort_transaction(log, 7)
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


@pytest.fixture
def begin_transaction(batch: MakeBatch) -> Callable[[Log], None]:
    def begin(log: Log) -> None:
        last = log.producers.producers.get(7)
        sequence = 0 if last is None else last.last_sequence + 1
        sequences = {"producer_id": 7, "producer_epoch": 0, "base_sequence": sequence}
        records = batch(0, transactional=True, **sequences)
        guard = log.producers.verifications.begin(7, sequence, 0, adds=False, now_ms=NOW_MS)
        prepared = prepare_batch(records, log.config, now_ms=NOW_MS, origin=Origin.CLIENT)
        log.append_prepared(prepared, now_ms=NOW_MS, guard=guard)

    return begin


def test_aborted_transactions_are_restored(
    tmp_path: Path, open_log: OpenLog, begin_transaction: Callable[[Log], None]
) -> None:
    log = open_log()
    begin_transaction(log)
    abort_transaction(log, 7)
    _, before = log.read_committed(0, 1000, log.log_end_offset)
    save_log(log, str(tmp_path / "saved"))
    give_up(log)
    restore_log(str(tmp_path / "saved"), str(tmp_path / "t-0"))
    log = open_log()
    assert log.read_committed(0, 1000, log.log_end_offset)[1] == before
    assert len(before) == 1


@pytest.fixture
def saved_log(tmp_path: Path, open_log: OpenLog, fill: Callable[..., None]) -> SavedState:
    """A log of two segments with a producer and an aborted transaction, just after its copy."""
    log = open_log(index_interval_bytes=1)
    fill(log, 2)
    log.roll(now_ms=NOW_MS)
    fill(log, 3)
    fill(log, 1, producer_id=8, producer_epoch=0, base_sequence=0)
    abort_transaction(log, 7)
    log.flush(now_ms=NOW_MS)
    save_log(log, str(tmp_path / "saved"))
    return saved_state(log)


def test_log_that_has_grown_is_truncated(
    saved_log: SavedState, tmp_path: Path, open_log: OpenLog, fill: Callable[..., None]
) -> None:
    log = saved_log.log
    before = state(log)
    for is_flushed in (False, True):
        fill(log, 4)
        fill(log, 1, producer_id=9, producer_epoch=0, base_sequence=0)
        abort_transaction(log, 8)
        if is_flushed:
            log.flush(now_ms=NOW_MS)
        assert return_to(saved_log, log)
        assert state(log) == before
        assert saved_state(log) == saved_log
    fill(log, 1, value=b"later")
    after = state(log)
    log.close(now_ms=NOW_MS)
    again = open_log(index_interval_bytes=1)
    assert again.opened_clean
    assert state(again) == after
    again.abandon()


@pytest.mark.parametrize("is_flushed", [False, True])
def test_truncated_log_is_recovered_after_a_crash(
    saved_log: SavedState, open_log: OpenLog, fill: Callable[..., None], is_flushed: bool
) -> None:
    log = saved_log.log
    before = state(log)
    fill(log, 9)
    if is_flushed:
        log.flush(now_ms=NOW_MS)
    assert return_to(saved_log, log)
    log.abandon()
    assert state(open_log(index_interval_bytes=1)) == before


def test_truncated_log_reads_the_entries_of_aborted_transactions_that_are_left(
    tmp_path: Path, open_log: OpenLog, begin_transaction: Callable[[Log], None]
) -> None:
    log = open_log()
    begin_transaction(log)
    abort_transaction(log, 7)
    save_log(log, str(tmp_path / "saved"))
    saved = saved_state(log)
    end = log.log_end_offset
    before = log.read_committed(0, 1000, end)
    begin_transaction(log)
    abort_transaction(log, 7)
    log.flush(now_ms=NOW_MS)
    assert len(log.read_committed(0, 1000, log.log_end_offset)[1]) == 2
    assert return_to(saved, log)
    assert log.read_committed(0, 1000, end) == before
    log.close(now_ms=NOW_MS)
    assert open_log().read_committed(0, 1000, end) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda log: log.roll(now_ms=NOW_MS),
        lambda log: log.delete_records(1),
        lambda log: log.assign_leader_epoch(9, log.log_end_offset),
        Log.abandon,
    ],
    ids=["rolled", "shortened", "new leader epoch", "closed"],
)
def test_log_that_has_changed_otherwise_is_not_truncated(
    saved_log: SavedState, fill: Callable[..., None], change: Callable[[Log], None]
) -> None:
    log = saved_log.log
    fill(log, 1)
    end = log.log_end_offset
    change(log)
    assert not return_to(saved_log, log)
    assert log.log_end_offset == end


def test_records_that_another_copy_shares_are_not_truncated(
    saved_log: SavedState, tmp_path: Path, fill: Callable[..., None]
) -> None:
    log = saved_log.log
    fill(log, 1)
    save_log(log, str(tmp_path / "later"))
    fill(log, 1)
    assert not return_to(saved_log, log)


def test_log_without_its_file_is_not_truncated(
    saved_log: SavedState, fill: Callable[..., None]
) -> None:
    log = saved_log.log
    fill(log, 1)
    log.segments.active.close()
    assert not return_to(saved_log, log)


def test_expired_producers_return(saved_log: SavedState) -> None:
    log = saved_log.log
    before = dict(log.producers.producers)
    log.expire_producers(now_ms=NOW_MS + 10**10)
    assert not log.producers.producers
    assert return_to(saved_log, log)
    assert log.producers.producers == before
