"""The storage of a role is probed while it fails, ever less often, and its end is reported."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from minibroker.broker.metadata.topics import RESERVED_BYTES
from minibroker.broker.metrics import storage_health
from minibroker.broker.metrics.conditions import ConditionKind
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process import storage_watch
from minibroker.broker.process.environment import CONTROLLER, Environment
from minibroker.broker.process.storage_watch import PROBE_MAX_S, StorageWatch
from tests.broker.process.conftest import MakeEnvironment


class Watched:
    """A storage that fails until the test says otherwise."""

    def __init__(self, env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
        self.env = env
        self.error: OSError | None = OSError(errno.EIO, os.strerror(errno.EIO))
        self.probed: list[float] = []
        self.changes: list[tuple[float, bool]] = []
        monkeypatch.setattr(storage_health, "probe", self._probe)
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
