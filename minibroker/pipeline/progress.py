"""Progress of a job, printed while it runs.

Owns when a line is printed, and its text; it must never influence the job. Invariant: only what has
run for a while is reported, so short jobs and the batches of a stream print nothing. Spark's
counterpart is its progress bar, which needs a terminal.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRESS_EVERY_S: Final = 5.0
_JOIN_SECONDS_MAX: Final = 1.0


class StageTasks(NamedTuple):
    """The tasks of a stage that runs."""

    completed: int
    total: int


class ProgressLines:
    """Decides what to print."""

    def __init__(self, started_s: float) -> None:
        self._started_s = started_s
        self._seen: frozenset[int] = frozenset()
        self._last: dict[int, StageTasks] = {}

    def line(self, now_s: float, running: Mapping[int, StageTasks]) -> str | None:
        """The line for the stages that run now and ran at the last call, by id; None if they are
        where they were.
        """
        lasting = {number: running[number] for number in sorted(running) if number in self._seen}
        self._seen = frozenset(running)
        if not lasting or lasting == self._last:
            return None
        self._last = lasting
        completed = sum(stage.completed for stage in lasting.values())
        total = sum(stage.total for stage in lasting.values())
        return f"{now_s - self._started_s:7.1f} s  {completed:,} of {total:,} tasks done"


@contextmanager
def progress_printed(spark: SparkSession, echo: Callable[[str], None]) -> Iterator[None]:
    """Print the progress of the jobs that run in the block."""
    ended = threading.Event()

    def watch() -> None:
        lines = ProgressLines(time.monotonic())
        while not ended.wait(PROGRESS_EVERY_S):
            line = lines.line(time.monotonic(), _running(spark))
            if line is not None and not ended.is_set():
                echo(line)

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # Spark may not answer any more, which must not keep the job from ending.
        thread.join(_JOIN_SECONDS_MAX)


def _running(spark: SparkSession) -> dict[int, StageTasks]:
    from py4j.protocol import Py4JError

    try:
        tracker = spark.sparkContext.statusTracker()
        found = {number: tracker.getStageInfo(number) for number in tracker.getActiveStageIds()}
    except Py4JError:  # The JVM ended, which the job reports.
        return {}
    return {
        number: StageTasks(info.numCompletedTasks, info.numTasks)
        for number, info in found.items()
        if info is not None  # It has just ended.
    }
