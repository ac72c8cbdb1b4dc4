"""The log cleaner of a worker on the mock clock, with real logs, and its process."""

from __future__ import annotations

import errno
import logging
import os
import pickle
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from minibroker.broker.log.cleaning import (
    CleaningFailedError,
    CleaningResult,
    CleaningTask,
    SourceSegment,
)
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.metadata.image import Image
from minibroker.broker.metrics.conditions import ConditionKind
from minibroker.broker.process.environment import WORKER
from minibroker.broker.process.log_cleaner import (
    LENGTH,
    CleanerEndedError,
    CleanerRunner,
    LogCleaner,
    LoopRunner,
    Pace,
    ProcessRunner,
    run,
)
from minibroker.broker.settings import Settings
from minibroker.python_command import python_command
from minibroker_protocol.records import Record, build_batch, iter_batches, iter_records
from tests.broker.process.conftest import MakeEnvironment


def task(directory: Path) -> CleaningTask:
    batches = [build_batch([Record(key=b"a", value=b"1")], base_offset=at) for at in range(3)]
    size = (directory / f"{0:020}.log").write_bytes(b"".join(batches))
    groups = ((SourceSegment(0, size, 0),),)
    return CleaningTask(str(directory), groups, 0, 3, 0, 10, 4096, 10, 100, {}, ())


def test_pace_keeps_the_average() -> None:
    pace = Pace(100.0, now=5.0)
    assert pace.pause_s(200, now=5.5) == 1.5
    assert pace.pause_s(100, now=9.0) == 0


def test_cleaning_ends_without_its_parent(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        run(task(tmp_path), 1e9, parent=-1)


def test_child_answers_each_task(tmp_path: Path) -> None:
    requests = b""
    for each in (task(tmp_path), task(tmp_path)._replace(directory="/nowhere")):
        body = pickle.dumps((each, 1e9))
        requests += LENGTH.pack(len(body)) + body
    program = "from minibroker.broker.process.log_cleaner import main; main()"
    command = python_command(program, str(os.getpid()))
    answers = subprocess.run(command, input=requests, capture_output=True, check=True).stdout
    found = []
    while answers:
        (length,) = LENGTH.unpack_from(answers)
        found.append(pickle.loads(answers[LENGTH.size : LENGTH.size + length]))
        answers = answers[LENGTH.size + length :]
    assert isinstance(found[0], CleaningResult)
    assert found[0].records_kept == 1
    assert isinstance(found[1], CleaningFailedError)
    assert "No such file" in str(found[1])


Key = tuple[str, int]


class World:
    """Partitions of topic ``t``, and their cleaner."""

    def __init__(self, make_env: MakeEnvironment, directory: Path) -> None:
        self.env = make_env(WORKER)
        self.directory = directory
        self.partitions: dict[Key, Partition] = {}
        logs: Any = SimpleNamespace(items=self.logs)
        self.image = Image()
        self.cleaner = LogCleaner(self.env, logs, self.flush, self)

    def partition(self, topic: str, index: int) -> Partition | None:
        return self.partitions.get((topic, index))

    async def flush(self, log: Log) -> None:
        log.flush(now_ms=self.now_ms)

    def logs(self) -> Iterator[tuple[Key, Log]]:
        return ((key, each.log) for key, each in self.partitions.items())

    def add(self, index: int, **config: Any) -> Partition:
        settings = LogConfig(**{"compact": True, "delete": False, **config})
        log = Log.open(self.directory, "t", index, settings, now_ms=self.now_ms)
        made = Partition(log, bytes(16), broker_id=1, leader_id=1, leader_epoch=0)
        self.partitions["t", index] = made
        return made

    @property
    def now_ms(self) -> int:
        return self.env.clock.wall_ms()

    def write(self, partition: Partition, *values: bytes, roll: bool = True) -> None:
        for value in values:
            batch = build_batch([Record(timestamp=self.now_ms, key=b"k", value=value)])
            partition.append_as_leader(batch, now_ms=self.now_ms)
        if roll:
            partition.log.roll(now_ms=self.now_ms)
            partition.log.flush(now_ms=self.now_ms)


def values(partition: Partition) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = 0
    while (piece := partition.read(offset, 99999)) is not None:
        data = piece.load()
        for position, header in iter_batches(data):
            found += [r.value for r in iter_records(data[position : position + header.size])]
            offset = header.next_offset
    return found


@pytest.fixture
def world(make_env: MakeEnvironment, tmp_path: Path) -> Iterator[World]:
    made = World(make_env, tmp_path)
    yield made
    for partition in made.partitions.values():
        partition.log.abandon()


async def running(world: World, seconds: float, check: Callable[[], None]) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.cleaner.run)
        await trio.sleep(seconds)
        check()
        nursery.cancel_scope.cancel()


async def test_dirty_log_is_cleaned_after_the_backoff(
    world: World, autojump_clock: MockClock
) -> None:
    partition = world.add(0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.cleaner.run)
        await trio.sleep(1)
        world.write(partition, b"1", b"2")
        await trio.sleep(13)
        assert values(partition) == [b"1", b"2"]
        await trio.sleep(2)
        assert values(partition) == [b"2"]
        nursery.cancel_scope.cancel()


async def test_log_of_a_partition_that_was_opened_again_is_cleaned_up_to_its_new_end(
    world: World, autojump_clock: MockClock
) -> None:
    earlier = world.add(0)
    world.write(earlier, b"1", b"2")
    await running(world, 1, lambda: None)
    assert values(earlier) == [b"2"]
    # A return to a snapshot keeps the log open.
    partition = world.partitions["t", 0] = Partition(
        earlier.log, bytes(16), broker_id=1, leader_id=1, leader_epoch=0
    )
    world.write(partition, b"3", b"4")
    await running(world, 20, lambda: None)
    assert values(partition) == [b"4"]


async def test_log_below_the_dirty_ratio_waits_for_max_compaction_lag(
    world: World, autojump_clock: MockClock
) -> None:
    partition = world.add(0, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=60_000)
    world.write(partition, b"1", b"2")

    def check() -> None:
        assert values(partition) == [b"1", b"2"]

    await running(world, 50, check)
    await running(world, 30, lambda: None)
    assert values(partition) == [b"2"]


async def test_topic_is_compacted_on_request_with_its_active_segment(
    world: World, autojump_clock: MockClock
) -> None:
    partition, other = world.add(0), world.add(1, compact=False)
    world.write(partition, b"1", b"2", roll=False)
    world.write(other, b"1", b"2", roll=False)
    assert await world.cleaner.compact("t") == ""
    assert values(partition) == [b"2"]
    assert values(other) == [b"1", b"2"]
    world.write(partition, b"3", roll=False)
    assert await world.cleaner.compact("t") == ""
    assert values(partition) == [b"3"]


async def test_damaged_log_is_marked_and_others_are_cleaned(
    world: World, autojump_clock: MockClock
) -> None:
    damaged, partition = world.add(0), world.add(1)
    world.write(damaged, b"1", b"2", b"3")
    world.write(partition, b"1", b"2")
    path = Path(damaged.log.directory) / f"{0:020}.log"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"?")

    def check() -> None:
        assert values(partition) == [b"2"]
        (condition,) = world.env.conditions.all()
        assert condition.kind is ConditionKind.LOG_UNCLEANABLE
        assert "checksum" in condition.text

    await running(world, 60, check)
    path.write_bytes(content)
    assert await world.cleaner.compact("t") == ""
    assert values(damaged) == [b"3"]
    assert not world.env.conditions.all()


async def test_failure_of_a_request_is_returned(world: World, autojump_clock: MockClock) -> None:
    damaged = world.add(0)
    world.write(damaged, b"1", b"2")
    path = Path(damaged.log.directory) / f"{0:020}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "checksum" in await world.cleaner.compact("t")


async def test_full_disk_delays_cleanings(
    world: World,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    partition = world.add(0)
    world.write(partition, b"1", b"2")

    def refuse(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "fsync", refuse)
        await running(world, 60, lambda: None)
        assert "No space left" in await world.cleaner.compact("t")
    assert caplog.messages == ["the log cleaner waits for disk space"]
    assert not world.env.conditions.all()
    assert values(partition) == [b"1", b"2"]
    await running(world, 60, lambda: None)
    assert values(partition) == [b"2"]


async def test_figures_are_gauges(world: World, autojump_clock: MockClock) -> None:
    partition = world.add(0)
    world.write(partition, b"1", b"2")
    await running(world, 60, lambda: None)
    gauges = world.env.metrics.snapshot().gauges
    assert gauges["minibroker_log_cleaner_runs", ()] == 1
    assert gauges["minibroker_log_cleaner_max_dirty_ratio", ()] == 0


async def test_disabled_cleaner_leaves_a_requested_compaction_running(
    world: World, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings.from_sources(pairs=["log.cleaner.enable=false"])
    monkeypatch.setattr(world.cleaner, "_settings", lambda: settings)
    runner = world.cleaner._runner
    run, close = runner.run, runner.close
    running_now = False

    async def slow_run(task: CleaningTask, bytes_per_second: float) -> CleaningResult:
        nonlocal running_now
        running_now = True
        await trio.sleep(100)
        running_now = False
        return await run(task, bytes_per_second)

    async def checked_close() -> None:
        assert not running_now
        await close()

    monkeypatch.setattr(runner, "run", slow_run)
    monkeypatch.setattr(runner, "close", checked_close)
    partition = world.add(0)
    world.write(partition, b"1", b"2")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.cleaner.run)
        assert await world.cleaner.compact("t") == ""
        assert values(partition) == [b"2"]
        nursery.cancel_scope.cancel()


@pytest.fixture(params=[LoopRunner, ProcessRunner])
async def runner(request: pytest.FixtureRequest) -> AsyncIterator[CleanerRunner]:
    made: CleanerRunner = request.param()
    yield made
    await made.close()


async def test_runner_returns_results_and_errors(runner: CleanerRunner, tmp_path: Path) -> None:
    assert (await runner.run(task(tmp_path), 1e9)).records_kept == 1
    with pytest.raises(CleaningFailedError, match="No such file"):
        await runner.run(task(tmp_path)._replace(directory="/nowhere"), 1e9)
    await runner.close()
    assert (await runner.run(task(tmp_path), 1e9)).records_kept == 1


async def test_process_that_was_killed_is_replaced(tmp_path: Path) -> None:
    runner = ProcessRunner()
    await runner.run(task(tmp_path), 1e9)
    assert runner._process is not None
    runner._process.kill()
    await runner._process.wait()
    with pytest.raises(CleanerEndedError):
        await runner.run(task(tmp_path), 1e9)
    assert (await runner.run(task(tmp_path), 1e9)).records_kept == 1
    await runner.close()
