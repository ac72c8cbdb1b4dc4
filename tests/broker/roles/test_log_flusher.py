"""The flusher of a worker: logs that are due are flushed, and failures are reported."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Log
from minibroker.broker.process.environment import WORKER
from minibroker.broker.roles.io_worker import LogFlusher
from minibroker_protocol.records import Record, build_batch
from tests.broker.process.conftest import MakeEnvironment

BATCH = build_batch([Record(value=b"v")])


class World:
    """A log, and the flusher of its worker."""

    def __init__(self, make_env: MakeEnvironment, directory: Path, *, threads: bool) -> None:
        env = dataclasses.replace(make_env(WORKER), starts_processes=threads)
        self.now_ms = env.clock.wall_ms
        self.log = Log.open(directory, "t", 0, LogConfig(flush_ms=5000), now_ms=self.now_ms())
        logs: Any = SimpleNamespace(items=lambda: [(("t", 0), self.log)])
        self.flusher = LogFlusher(env, logs)

    def append(self) -> None:
        self.log.append(BATCH, now_ms=self.now_ms())


@pytest.fixture(params=[False, True], ids=["in the loop", "in a thread"])
async def world(
    make_env: MakeEnvironment, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[World]:
    made = World(make_env, tmp_path, threads=request.param)
    yield made
    made.log.abandon()


async def test_log_is_flushed_when_due(
    make_env: MakeEnvironment, tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = World(make_env, tmp_path, threads=False)
    world.append()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.flusher.run)
        await trio.sleep(4.5)
        assert not world.log.is_flush_due(now_ms=world.now_ms())
        world.log.roll(now_ms=world.now_ms())
        assert world.log.recovery_point == 0
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert world.log.recovery_point == 1
    world.log.abandon()


async def test_large_writes_to_the_disk_do_not_block_the_loop(
    make_env: MakeEnvironment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(make_env, tmp_path, threads=True)
    world.append()
    world.log.roll(now_ms=world.now_ms())
    world.append()
    threads: dict[str, list[str]] = {}

    def note(fd: int) -> None:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        threads.setdefault(name, []).append(threading.current_thread().name)

    monkeypatch.setattr(os, "fsync", note)
    await world.flusher.flush(world.log)
    world.log.abandon()
    for segment in (0, 1):
        first, *_ = threads[f"{segment:020}.log"]
        assert first != threading.main_thread().name


async def test_failure_of_the_disk_leaves_the_recovery_point(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.append()
    world.log.roll(now_ms=world.now_ms())

    def fail(_fd: int) -> None:
        raise OSError("no")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(LogError, match="flushed"):
            await world.flusher.flush(world.log)
    assert world.log.recovery_point == 0
    await world.flusher.flush(world.log)
    assert world.log.recovery_point == 1
