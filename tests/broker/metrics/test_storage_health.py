"""A storage that fails: one log line, a condition, and an end by itself."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from minibroker.broker.log.recovery import Truncation
from minibroker.broker.metrics import storage_health
from minibroker.broker.metrics.conditions import ConditionKind, Conditions
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import ProcessMetrics
from minibroker.broker.metrics.storage_health import StorageHealth


class Watched:
    """A storage's health, and its reports."""

    def __init__(self, directory: Path, caplog: pytest.LogCaptureFixture) -> None:
        self.conditions = Conditions()
        self.metrics = ProcessMetrics("worker-0")
        self.directory = str(directory)
        self._caplog = caplog
        log = EventLog("worker-0")
        self.health = StorageHealth(
            self.directory, self.conditions, self.metrics, log, lambda: 1000
        )

    def fail(self, number: int, name: str = "t-0") -> None:
        path = os.path.join(self.directory, name)
        self.health.failed(path, OSError(number, os.strerror(number)))

    def lines(self) -> list[str]:
        return self._caplog.messages

    def counted(self) -> dict[str, int]:
        counters = self.metrics.snapshot().counters
        name = "minibroker_storage_errors_total"
        return {labels[0]: count for (each, labels), count in counters.items() if each == name}


@pytest.fixture
def watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Watched:
    return Watched(tmp_path, caplog)


def test_full_disk_is_logged_once_and_every_error_is_counted(watched: Watched) -> None:
    for _ in range(100):
        watched.fail(errno.ENOSPC)
    assert watched.lines() == ["storage cannot be written"]
    assert watched.counted() == {"ENOSPC": 100}
    (condition,) = watched.conditions.all()
    assert condition.kind is ConditionKind.STORAGE_FAILED
    assert "t-0: No space left on device" in condition.text
    assert "bytes are free" in condition.text


def test_different_failure_is_logged(watched: Watched) -> None:
    watched.fail(errno.ENOSPC)
    watched.fail(errno.EROFS)
    assert len(watched.lines()) == 2
    (condition,) = watched.conditions.all()
    assert "Read-only file system" in condition.text


def test_error_of_a_single_file_is_counted_only(watched: Watched) -> None:
    watched.fail(errno.ENOENT)
    assert watched.lines() == []
    assert watched.conditions.all() == ()
    assert watched.counted() == {"ENOENT": 1}


def test_storage_failure_is_cleared_if_a_write_succeeds(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not watched.health.probe()
    watched.fail(errno.ENOSPC)
    monkeypatch.setattr(storage_health, "probe", lambda _: OSError(errno.ENOSPC, "full"))
    assert not watched.health.probe()
    assert [watched.health.is_failing] == [True]
    monkeypatch.undo()
    assert watched.health.probe()
    assert [watched.health.is_failing] == [False]
    assert watched.conditions.all() == ()
    assert watched.lines()[-1] == "storage can be written again"
    assert os.listdir(watched.directory) == []


def test_truncated_records_set_condition_and_partial_batch_does_not(watched: Watched) -> None:
    watched.health.truncated(Truncation("/d/t-0/5.log", 700, "cut short", 0, 30, 0))
    assert watched.conditions.all() == ()
    watched.health.truncated(Truncation("/d/t-0/0.log", 100, "the checksum is wrong", 50, 900, 2))
    (condition,) = watched.conditions.all()
    assert condition.kind is ConditionKind.RECORDS_TRUNCATED
    assert condition.subject == "/d/t-0/0.log"
    assert "removed 50 records and 900 bytes from position 100 on" in condition.text
    counters = watched.metrics.snapshot().counters
    assert counters["minibroker_log_truncated_records_total", ()] == 50
    assert counters["minibroker_log_truncated_bytes_total", ()] == 930
    assert watched.lines() == ["a log was truncated by recovery"] * 2
