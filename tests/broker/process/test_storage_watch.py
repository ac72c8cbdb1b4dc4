"""The storage of a role is probed while it fails, ever less often, and its end is reported."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.log.recovery import Truncation
from minibroker.broker.metadata.topics import RESERVED_BYTES
from minibroker.broker.metrics.conditions import ConditionKind, Conditions
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import ProcessMetrics
from minibroker.broker.process import storage_watch
from minibroker.broker.process.environment import CONTROLLER, Environment
from minibroker.broker.process.storage_watch import PROBE_MAX_S, StorageHealth, StorageWatch
from tests.broker.process.conftest import MakeEnvironment


class Watched:
    """A storage that fails until the test says otherwise."""

    def __init__(self, env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
        self.env = env
        self.error: OSError | None = OSError(errno.EIO, os.strerror(errno.EIO))
        self.probed: list[float] = []
        self.changes: list[tuple[float, bool]] = []
        monkeypatch.setattr(storage_watch, "probe", self._probe)
        self.watch = StorageWatch(
            env, EventLog("test"), lambda now: self.changes.append((trio.current_time(), now))
        )

    def _probe(self, _directory: str) -> OSError | None:
        self.probed.append(trio.current_time())
        return self.error

    def fail(self) -> None:
        self.watch.failed("/d/t-0", OSError(errno.EIO, os.strerror(errno.EIO)))


@pytest.fixture
async def watched(make_env: MakeEnvironment, monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(make_env(CONTROLLER), monkeypatch)


@pytest.mark.parametrize("times", [1, 5])
async def test_storage_watch_of_failed_storage_probes_until_it_is_writable(
    watched: Watched, autojump_clock: MockClock, times: int
) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.watch.run)
        await trio.sleep(10)
        for _ in range(times):
            watched.fail()
        assert watched.changes == [(10, False)]
        assert [each.kind for each in watched.env.conditions.all()] == [
            ConditionKind.STORAGE_FAILED
        ]
        await trio.sleep(30)
        pauses = [11, 13, 17, 17 + PROBE_MAX_S, 17 + 2 * PROBE_MAX_S]
        assert watched.probed == pauses
        watched.error = None
        await trio.sleep(PROBE_MAX_S)
        assert watched.changes[1:] == [(pauses[-1] + PROBE_MAX_S, True)]
        assert watched.env.conditions.all() == ()
        await trio.sleep(60)
        assert len(watched.probed) == len(pauses) + 1
        watched.fail()
        await wait_all_tasks_blocked()
        assert watched.changes[-1][1] is False
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("free", "fails"),
    [(RESERVED_BYTES - 1, True), (0, True), (RESERVED_BYTES, False), (-1, False)],
)
async def test_storage_watch_without_room_for_a_partition_reports_a_failure(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, free: int, fails: bool, tmp_path: Path
) -> None:
    monkeypatch.setattr(storage_watch, "free_bytes", lambda _: free)
    assert watched.watch.free_bytes() == free
    assert [on_change for _, on_change in watched.changes] == ([False] if fails else [])
    assert [each.subject for each in watched.env.conditions.all()] == (
        [str(tmp_path)] if fails else []
    )


class ObservedHealth:
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
def observed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> ObservedHealth:
    return ObservedHealth(tmp_path, caplog)


def test_full_disk_is_logged_once_and_every_error_is_counted(observed: ObservedHealth) -> None:
    for _ in range(100):
        observed.fail(errno.ENOSPC)
    assert observed.lines() == ["storage cannot be written"]
    assert observed.counted() == {"ENOSPC": 100}
    (condition,) = observed.conditions.all()
    assert condition.kind is ConditionKind.STORAGE_FAILED
    assert "t-0: No space left on device" in condition.text
    assert "bytes are free" in condition.text


def test_different_failure_is_logged(observed: ObservedHealth) -> None:
    observed.fail(errno.ENOSPC)
    observed.fail(errno.EROFS)
    assert len(observed.lines()) == 2
    (condition,) = observed.conditions.all()
    assert "Read-only file system" in condition.text


def test_error_of_a_single_file_is_counted_only(observed: ObservedHealth) -> None:
    observed.fail(errno.ENOENT)
    assert observed.lines() == []
    assert observed.conditions.all() == ()
    assert observed.counted() == {"ENOENT": 1}


def test_storage_failure_is_cleared_if_a_write_succeeds(
    observed: ObservedHealth, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not observed.health.probe()
    observed.fail(errno.ENOSPC)
    monkeypatch.setattr(storage_watch, "probe", lambda _: OSError(errno.ENOSPC, "full"))
    assert not observed.health.probe()
    assert [observed.health.is_failing] == [True]
    monkeypatch.undo()
    assert observed.health.probe()
    assert [observed.health.is_failing] == [False]
    assert observed.conditions.all() == ()
    assert observed.lines()[-1] == "storage can be written again"
    assert os.listdir(observed.directory) == []


def test_truncated_records_set_condition_and_partial_batch_does_not(
    observed: ObservedHealth,
) -> None:
    observed.health.truncated(Truncation("/d/t-0/5.log", 700, "cut short", 0, 30, 0))
    assert observed.conditions.all() == ()
    observed.health.truncated(Truncation("/d/t-0/0.log", 100, "the checksum is wrong", 50, 900, 2))
    (condition,) = observed.conditions.all()
    assert condition.kind is ConditionKind.RECORDS_TRUNCATED
    assert condition.subject == "/d/t-0/0.log"
    assert "removed 50 records and 900 bytes from position 100 on" in condition.text
    counters = observed.metrics.snapshot().counters
    assert counters["minibroker_log_truncated_records_total", ()] == 50
    assert counters["minibroker_log_truncated_bytes_total", ()] == 930
    assert observed.lines() == ["a log was truncated by recovery"] * 2
