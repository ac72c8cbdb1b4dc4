"""The process that cleans logs for an I/O worker: reads tasks from its input, writes the results.

Owns the pace of a cleaning. It must never know a broker: a task names files, and only ``.cleaned``
files are written. Invariant: it ends when its input ends or its parent is gone. Kafka's
``CleanerThread``; a thread of Python would delay the worker's requests.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from struct import Struct
from typing import Final

from minibroker.broker.log.cleaner.cleaning import (
    CleaningFailedError,
    CleaningResult,
    CleaningTask,
    clean,
)

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
