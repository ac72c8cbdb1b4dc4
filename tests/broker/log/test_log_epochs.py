"""Leader epochs of a log: assigned by appends, restored when the log is opened again."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.broker.log.checkpoint import LEADER_EPOCH_CHECKPOINT
from minibroker.broker.log.log import Log
from tests.broker.log.conftest import NOW_MS, MakeBatch, OpenLog


def append(log: Log, batch: MakeBatch, *epochs: int) -> None:
    """Append a batch of two records in each epoch."""
    for epoch in epochs:
        log.append(batch(0, 1), now_ms=NOW_MS, leader_epoch=epoch)


def entries(log: Log) -> list[tuple[int, int]]:
    return [(entry.epoch, entry.start_offset) for entry in log.leader_epochs.entries]


def checkpoint(log: Log) -> Path:
    return Path(log.directory) / LEADER_EPOCH_CHECKPOINT


def test_append_assigns_first_offset_of_each_epoch(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log()
    append(log, batch, 0, 0, 3, 3, 4)
    assert entries(log) == [(0, 0), (3, 4), (4, 8)]
    assert checkpoint(log).read_text() == "0\n3\n0 0\n3 4\n4 8\n"


def test_append_in_same_epoch_does_not_write_file(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log()
    append(log, batch, 2)
    checkpoint(log).unlink()
    append(log, batch, 2, 2)
    assert not checkpoint(log).exists()


@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("text", [None, "damaged", "0\n1\n0 0\n"])
def test_epochs_are_restored_when_log_is_opened(
    open_log: OpenLog, batch: MakeBatch, text: str | None, *, is_clean: bool
) -> None:
    log = open_log()
    append(log, batch, 0, 3)
    log.roll(now_ms=NOW_MS)
    append(log, batch, 3, 4)
    if is_clean:
        log.close(now_ms=NOW_MS)
    else:
        log.abandon()
    if text is None:
        checkpoint(log).unlink()
    elif text == "damaged" or not is_clean:  # After an orderly close a whole file is trusted.
        checkpoint(log).write_text(text)
    again = open_log()
    assert again.opened_clean == is_clean
    assert entries(again) == [(0, 0), (3, 2), (4, 6)]


def test_epochs_of_records_truncated_by_recovery_are_removed(
    open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log()
    append(log, batch, 0, 3, 4)
    log.abandon()
    (path,) = Path(log.directory).glob("*.log")
    path.write_bytes(path.read_bytes()[:-1])
    assert entries(open_log()) == [(0, 0), (3, 2)]


def test_epochs_follow_log_start(open_log: OpenLog, batch: MakeBatch) -> None:
    log = open_log(retention_ms=1000)
    append(log, batch, 0, 3, 4)
    log.delete_records(3)
    assert entries(log) == [(3, 3), (4, 4)]
    log.apply_retention(now_ms=NOW_MS + 10_000)
    assert entries(log) == [(4, 6)]
    log.close(now_ms=NOW_MS)
    assert entries(open_log()) == []  # The leader assigns its epoch when it opens the log.


def test_epoch_without_records_is_replaced_by_its_successor(
    open_log: OpenLog, batch: MakeBatch
) -> None:
    log = open_log()
    append(log, batch, 0)
    log.assign_leader_epoch(1, log.log_end_offset)
    log.assign_leader_epoch(2, log.log_end_offset)
    assert entries(log) == [(0, 0), (2, 2)]


def test_file_that_cannot_be_written_is_reported_and_written_later(
    open_log: OpenLog, batch: MakeBatch, tmp_path: Path
) -> None:
    failures: list[str] = []
    log = open_log()
    log._on_failure = lambda directory, _: failures.append(directory)
    blocking = Path(f"{checkpoint(log)}.tmp")
    blocking.mkdir()
    append(log, batch, 5)
    assert (failures, log.log_end_offset) == ([log.directory], 2)
    blocking.rmdir()
    log.close(now_ms=NOW_MS)
    assert checkpoint(log).read_text() == "0\n1\n5 0\n"
