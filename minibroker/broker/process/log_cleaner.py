"""The log cleaner of an I/O worker: cleans the dirtiest log, again and again.

Owns which logs are being cleaned, and those that cannot be. It must never know the rules of
compaction. Invariant: one log is cleaned at a time, outside the worker's loop; a log whose cleaning
failed is not cleaned again until its topic is deleted or the broker restarts, and the others are.
Without disk space, cleanings are tried again.
Kafka's ``LogCleaner`` and ``LogCleanerManager``.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from struct import Struct
from typing import Final, Protocol

import trio

from minibroker.broker.log.batch_filter import entries_max
from minibroker.broker.log.cleaning import (
    Buffers,
    CleanableRange,
    CleaningFailedError,
    CleaningResult,
    CleaningTask,
    LogCleaning,
    clean,
)
from minibroker.broker.log.errors import NO_SPACE_ERRNOS, LogError
from minibroker.broker.log.log import Log
from minibroker.broker.log.replica_manager import LogManager, Partition
from minibroker.broker.log.segment import Segment
from minibroker.broker.metadata.image import Image
from minibroker.broker.metrics.conditions import ConditionKind
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import CleanerFigures
from minibroker.broker.process.environment import Environment, note_state
from minibroker.broker.settings import (
    LOG_CLEANER_BACKOFF_MS,
    LOG_CLEANER_DEDUPE_BUFFER_SIZE,
    LOG_CLEANER_ENABLE,
    LOG_CLEANER_IO_BUFFER_LOAD_FACTOR,
    LOG_CLEANER_IO_BUFFER_SIZE,
    LOG_CLEANER_IO_MAX_BYTES_PER_SECOND,
    Settings,
)
from minibroker.broker.settings.dynamic import effective
from minibroker.python_command import python_command

# -------------- The process that cleans logs: reads tasks from its input and writes the results
# Owns the pace of a cleaning. It must never know a broker: a task names files, and only
# ``.cleaned`` files are written. Invariant: it ends when its input ends or its parent is gone.
# Kafka's ``CleanerThread``; a thread of Python would delay the worker's requests.


LENGTH: Final = Struct(">Q")
"""Before each pickle in both directions."""

NICENESS: Final = 10
"""Nice value: other processes get about ten times the CPU time on a busy core."""


class Pace:
    """Limits the bytes per second of one cleaning. Kafka's ``Throttler``."""

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self._bytes_per_second = bytes_per_second
        self._started = now
        self._bytes = 0

    def pause_s(self, size: int, now: float) -> float:
        """How long to pause after a step that has read and written ``size`` bytes."""
        self._bytes += size
        return max(0.0, self._started + self._bytes / self._bytes_per_second - now)


def run(task: CleaningTask, bytes_per_second: float, parent: int) -> CleaningResult:
    """Run all steps of a task. Raises as ``clean``."""
    pace = Pace(bytes_per_second, time.perf_counter())
    steps = clean(task)
    while True:
        if os.getppid() != parent:
            raise SystemExit
        try:
            size = next(steps)
        except StopIteration as end:
            result: CleaningResult = end.value
            return result
        pause_s = pace.pause_s(size, time.perf_counter())
        if pause_s:
            time.sleep(pause_s)  # noqa: TID251 - a process without a loop


def main() -> None:
    """Serve tasks of the parent process whose id is the argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to all processes.
    os.nice(NICENESS)
    parent = int(sys.argv[1])
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while head := source.read(LENGTH.size):
        body = source.read(*LENGTH.unpack(head))
        task, bytes_per_second = pickle.loads(body)  # noqa: S301 - packed by the worker
        result: CleaningResult | CleaningFailedError | OSError
        try:
            result = run(task, bytes_per_second, parent)
        except (CleaningFailedError, OSError) as error:
            result = error
        body = pickle.dumps(result, 5)
        target.write(LENGTH.pack(len(body)) + body)
        target.flush()


BUFFER_BYTES_MIN: Final = 64 * 1024
"""The smallest buffer; a larger batch is read as a whole."""

PASSES_MAX: Final = 1000
"""Cleanings of one log for one request: each continues where the map of the previous was full."""

BACKOFF_MIN_S: Final = 0.1
"""The shortest pause, so that a backoff of 0 does not keep the worker busy."""

PartitionKey = tuple[str, int]


class CleanedWorker(Protocol):
    """What the cleaner uses of its worker."""

    @property
    def image(self) -> Image:
        """The newest image."""

    def partition(self, topic: str, index: int) -> Partition | None:
        """The partition of an open log. Raises LogError."""


class LogCleaner:
    """Cleans the logs of one worker; ``run`` must be running."""

    def __init__(
        self,
        env: Environment,
        logs: LogManager,
        flush: Callable[[Log], Awaitable[None]],
        worker: CleanedWorker,
    ) -> None:
        """``flush`` writes a log to the disk and raises LogError."""
        self._env = env
        self._log = EventLog(env.name)
        self._logs = logs
        self._worker = worker
        self._flush = flush
        self._runner = ProcessRunner() if env.starts_processes else LoopRunner()
        self._cleanings: dict[PartitionKey, LogCleaning] = {}
        self._failed: dict[PartitionKey, str] = {}
        self._waits_for_space = False
        self._lock = trio.Lock()
        self._figures = CleanerFigures()
        env.metrics.watch_gauges(self._gauges)

    async def run(self) -> None:
        """Clean dirty logs until cancelled."""
        try:
            while True:
                async with self._lock:
                    enabled = self._settings()[LOG_CLEANER_ENABLE]
                    cleaned = enabled and await self._clean_dirtiest()
                    if not cleaned:  # Not outside the lock: a request may be compacting a topic.
                        await self._runner.close()
                if not cleaned:
                    backoff_s = self._settings()[LOG_CLEANER_BACKOFF_MS] / 1000
                    await trio.sleep(max(BACKOFF_MIN_S, backoff_s))
        finally:
            await self._runner.close()

    def paused(self) -> trio.Lock:
        """Wait until no log is being cleaned; none is inside of this context."""
        return self._lock

    def _settings(self) -> Settings:
        return effective(self._env.settings, self._worker.image.configs)

    def _partitions(self) -> Iterator[tuple[PartitionKey, Partition]]:
        """The open partitions of compacted topics."""
        for key, log in list(self._logs.items()):
            if log.config.compact:
                with suppress(LogError):  # The topic is being deleted.
                    partition = self._worker.partition(*key)
                    if partition is not None:
                        yield key, partition

    async def compact(self, topic: str) -> str:
        """Compact the logs of a topic as far as possible now; returns what failed, or nothing."""
        failures = []
        async with self._lock:
            for key, partition in list(self._partitions()):
                if key[0] == topic:
                    failures.append(await self._compact(key, partition))
        return "; ".join(filter(None, failures))

    async def _compact(self, key: PartitionKey, partition: Partition) -> str:
        self._failed.pop(key, None)
        cleaning = self._cleaning(key, partition)
        try:
            partition.log.roll(now_ms=self._env.clock.wall_ms())
            await self._flush(partition.log)
        except LogError as error:
            return error.text
        for _ in range(PASSES_MAX):
            found = cleaning.range(self._env.clock.wall_ms())
            if found.clean_bytes + found.cleanable_bytes:
                failure = await self._clean(key, cleaning, found)
                if failure:
                    return failure
            if not cleaning.range(self._env.clock.wall_ms()).cleanable_bytes:
                break
        return ""

    async def _clean_dirtiest(self) -> bool:
        """Clean the log with the largest share of dirty bytes; returns False if none is due."""
        now_ms = self._env.clock.wall_ms()
        self._figures.last_run_ms = now_ms
        ranges: dict[PartitionKey, CleanableRange] = {}
        due: list[PartitionKey] = []
        self._forget_closed()
        for key, partition in self._partitions():
            if key in self._failed:
                continue
            try:
                found = ranges[key] = self._cleaning(key, partition).range(now_ms)
            except OSError as error:
                self._fail(key, f"{error}")
                continue
            if found.is_due(partition.log.config):
                due.append(key)
        self._figures.max_dirty_ratio = max((each.ratio for each in ranges.values()), default=0.0)
        delays = (each.delay_ms for each in ranges.values())
        self._figures.max_delay_ms = max(delays, default=0)
        if not due:
            return False
        dirtiest = max(due, key=lambda key: ranges[key].ratio)
        return not await self._clean(dirtiest, self._cleanings[dirtiest], ranges[dirtiest])

    def _forget_closed(self) -> None:
        for key, cleaning in list(self._cleanings.items()):
            if not cleaning.log.is_open:
                del self._cleanings[key]
                self._recovered(key)

    def _cleaning(self, key: PartitionKey, partition: Partition) -> LogCleaning:
        cleaning = self._cleanings.get(key)
        if cleaning is None or cleaning.partition is not partition:
            cleaning = self._cleanings[key] = LogCleaning(partition)
            self._recovered(key)
        return cleaning

    async def _clean(self, key: PartitionKey, cleaning: LogCleaning, found: CleanableRange) -> str:
        """Clean a part of a log; returns what failed, or nothing."""
        settings, workers = self._settings(), self._env.workers
        clock = self._env.clock
        map_bytes = settings[LOG_CLEANER_DEDUPE_BUFFER_SIZE] / workers
        load_factor = settings[LOG_CLEANER_IO_BUFFER_LOAD_FACTOR]
        # Half for reading and half for writing.
        buffer_bytes = settings[LOG_CLEANER_IO_BUFFER_SIZE] // (2 * workers)
        buffers = Buffers(
            entries_max(int(map_bytes * load_factor)), max(BUFFER_BYTES_MIN, buffer_bytes)
        )
        rate = max(1.0, settings[LOG_CLEANER_IO_MAX_BYTES_PER_SECOND] / workers)
        started_ms = clock.real_us() // 1000
        sources: list[list[Segment]] = []
        try:
            task = cleaning.task(found, buffers, clock.wall_ms())
            sources = cleaning.sources(task)
            result = await self._runner.run(task, rate)
            cleaning.apply(result, sources, clock.wall_ms())
        except (CleanerEndedError, CleaningFailedError, OSError) as error:
            cleaning.discard()
            return self._note_failure(key, error, is_current=cleaning.is_current(sources))
        self._waits_for_space = False
        self._recovered(key)
        self._figures.add(
            result.bytes_read,
            result.bytes_written,
            result.map_utilization,
            clock.real_us() // 1000 - started_ms,
        )
        self._report(key, found.first_dirty, result)
        return ""

    def _note_failure(self, key: PartitionKey, error: Exception, *, is_current: bool) -> str:
        """Note a failed cleaning; returns what failed, or nothing if the log has changed."""
        if isinstance(error, CleanerEndedError):
            self._log.error("the log cleaner ended; retrying later", reason=error)
        elif isinstance(error, OSError) and error.errno in NO_SPACE_ERRNOS:
            if not self._waits_for_space:
                self._log.warning("the log cleaner waits for disk space", reason=error)
            self._waits_for_space = True
        elif is_current:
            self._fail(key, f"{error}")
        else:
            return ""
        return f"{error}"

    def _report(self, key: PartitionKey, first_dirty: int, result: CleaningResult) -> None:
        name, end = f"{key[0]}-{key[1]}", str(result.end_offset)
        note_state(self._env, "compacted", name, str(first_dirty), end)
        self._log.info(
            "a log was compacted",
            topic=key[0],
            partition=key[1],
            end_offset=result.end_offset,
            records=result.records_read,
            kept=result.records_kept,
        )

    def _fail(self, key: PartitionKey, why: str) -> None:
        """Mark a partition as one that cannot be cleaned."""
        self._failed[key] = why
        topic, partition = key
        now_ms = self._env.clock.wall_ms()
        text = f"{topic}-{partition} can't be compacted: {why}"
        if self._env.conditions.set(
            ConditionKind.LOG_UNCLEANABLE, f"{topic}-{partition}", text, now_ms
        ):
            self._log.error(
                "a log can't be compacted; others are", topic=topic, partition=partition, reason=why
            )

    def _recovered(self, key: PartitionKey) -> None:
        self._failed.pop(key, None)
        self._env.conditions.clear(ConditionKind.LOG_UNCLEANABLE, f"{key[0]}-{key[1]}")

    def _gauges(self) -> Mapping[tuple[str, tuple[str, ...]], float]:
        self._figures.uncleanable_partitions = len(self._failed)
        return self._figures.gauges(self._env.clock.wall_ms())


# --------------------------------------------------------------------------------------------------
# Runs the tasks of a log cleaner: in a process of its own, or step by step in the loop.
#
# Owns the process. It must never know logs. Invariant: at most one task runs, and the process is
# ended with the runner. The steps in the loop are for a broker that runs as tasks, on a clock that
# a test controls.


class CleanerEndedError(Exception):
    """The process ended before it returned a result."""


class CleanerRunner(Protocol):
    """Runs one task at a time."""

    async def run(self, task: CleaningTask, bytes_per_second: float) -> CleaningResult:
        """Run a task. Raises as ``clean``, and CleanerEndedError."""

    async def close(self) -> None:
        """End what the runner has started; it may be used again."""


class LoopRunner:
    """Runs the steps of a task in the event loop."""

    async def run(self, task: CleaningTask, bytes_per_second: float) -> CleaningResult:
        del bytes_per_second
        steps = clean(task)
        while True:
            await trio.lowlevel.checkpoint()
            try:
                next(steps)
            except StopIteration as end:
                result: CleaningResult = end.value
                return result

    async def close(self) -> None:
        """Do nothing."""


class ProcessRunner:
    """Runs tasks in a process that starts with the first one."""

    def __init__(self) -> None:
        self._process: trio.Process | None = None

    async def run(self, task: CleaningTask, bytes_per_second: float) -> CleaningResult:
        try:
            result = await self._request((task, bytes_per_second))
        except (OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            await self.close()
            raise CleanerEndedError(f"the process that cleans logs ended: {error}") from error
        except BaseException:
            await self.close()
            raise
        if isinstance(result, CleaningFailedError | OSError):
            raise result
        assert isinstance(result, CleaningResult)
        return result

    async def _request(self, request: object) -> object:
        if self._process is None:
            self._process = await _start()
        source, target = self._process.stdout, self._process.stdin
        assert source is not None
        assert target is not None
        body = pickle.dumps(request, 5)
        await target.send_all(LENGTH.pack(len(body)) + body)
        (length,) = LENGTH.unpack(await _receive(source, LENGTH.size))
        return pickle.loads(await _receive(source, length))  # noqa: S301 - packed by the child

    async def close(self) -> None:
        """Kill the process, and wait until it is gone, also if cancelled."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                await stream.aclose()


async def _start() -> trio.Process:
    program = "from minibroker.broker.process.log_cleaner import main; main()"
    return await trio.lowlevel.open_process(
        python_command(program, str(os.getpid())),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )


async def _receive(source: trio.abc.ReceiveStream, size: int) -> bytes:
    """Receive ``size`` bytes. Raises EOFError."""
    data = bytearray()
    while len(data) < size:
        chunk = await source.receive_some(size - len(data))
        if not chunk:
            raise EOFError("it closed its output")
        data += chunk
    return bytes(data)
