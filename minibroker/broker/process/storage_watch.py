"""Health of a worker's storage: failures are logged once, counted, and shown until they end.

Owns the decision when a failure is worth a log line and when it is over. It must never know the
request that caused it, nor wait: the worker says when to look again. Invariant: while writes fail
there is a condition that names the path, the error and the free bytes, and it ends after a write
succeeds. Kafka takes the log directory offline instead (``LogDirFailureChannel``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Final

import trio

from minibroker.broker.log.errors import describe, free_bytes, is_unwritable, probe
from minibroker.broker.log.recovery import Truncation
from minibroker.broker.metadata.topics import RESERVED_BYTES
from minibroker.broker.metrics.conditions import ConditionKind, Conditions
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.metrics import ProcessMetrics
from minibroker.broker.process.environment import Environment

PROBE_S: Final = 1.0
"""First pause, in real time, before a failed storage is tried again; each pause doubles it."""

PROBE_MAX_S: Final = 8.0
"""The longest pause between two attempts."""


def pauses_s() -> Iterator[float]:
    """Yield the pauses between attempts, without end."""
    pause_s = PROBE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, PROBE_MAX_S)


def _succeed() -> bool:
    return False


def _ignore_change(is_writable: bool) -> None:
    del is_writable


class StorageWatch:
    """The storage of one role; ``run`` must be running."""

    def __init__(
        self, env: Environment, log: EventLog, on_change: Callable[[bool], None] = _ignore_change
    ) -> None:
        self._directory = str(env.data_dir)
        self._sleep = env.clock.sleep_real
        self._on_change = on_change
        self._failing = trio.Event()
        self.fails_on_purpose: Callable[[], bool] = _succeed
        """Whether a fault rule still lets writes fail."""
        self.health = StorageHealth(
            self._directory, env.conditions, env.metrics, log, env.clock.wall_ms
        )

    def failed(self, path: str, error: OSError) -> None:
        """Note that a file could not be read or written."""
        self.health.failed(path, error)
        if self.health.is_failing and not self._failing.is_set():
            self._failing.set()
            self._on_change(False)

    def free_bytes(self) -> int:
        """Free bytes on the disk; too few for a new partition count as a failure."""
        free = free_bytes(self._directory)
        if 0 <= free < RESERVED_BYTES:
            self.failed(self._directory, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return free

    async def run(self) -> None:
        """Probe a failed storage until it can be written. Run until cancelled."""
        while True:
            await self._failing.wait()
            for pause_s in pauses_s():
                await self._sleep(pause_s)
                if not self.fails_on_purpose() and self.health.probe():
                    break
            self._failing = trio.Event()
            self._on_change(True)


class StorageHealth:
    """The storage of one worker's data directory."""

    def __init__(
        self,
        directory: str,
        conditions: Conditions,
        metrics: ProcessMetrics,
        log: EventLog,
        wall_ms: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._conditions = conditions
        self._metrics = metrics
        self._log = log
        self._wall_ms = wall_ms
        self._error: int | None = None

    @property
    def is_failing(self) -> bool:
        """Whether a write has failed, and none has succeeded since."""
        return self._error is not None

    def failed(self, path: str, error: OSError) -> None:
        """A file could not be read or written."""
        self._metrics.storage_failed(error)
        if not is_unwritable(error) or error.errno == self._error:
            return
        self._error = error.errno
        text = describe(path, error)
        self._conditions.set(ConditionKind.STORAGE_FAILED, self._directory, text, self._wall_ms())
        self._log.error("storage cannot be written", reason=text)

    def probe(self) -> bool:
        """Try to write if the last write failed; returns whether the failure has just ended."""
        if self._error is None:
            return False
        error = probe(self._directory)
        if error is not None:
            if error.errno != self._error:
                self.failed(self._directory, error)
            return False
        self._error = None
        self._conditions.clear(ConditionKind.STORAGE_FAILED, self._directory)
        self._log.warning("storage can be written again", path=self._directory)
        return True

    def truncated(self, found: Truncation) -> None:
        """Recovery cut a log off."""
        self._metrics.log_truncated(found.records, found.size_bytes)
        write = self._log.error if found.records else self._log.warning
        write(
            "a log was truncated by recovery",
            file=found.file,
            position=found.position,
            reason=found.reason,
            records_lost=found.records,
            bytes_lost=found.size_bytes,
            later_segments_removed=found.segments,
        )
        if found.records:
            text = (
                f"recovery removed {found.records} records and {found.size_bytes} bytes from "
                f"position {found.position} on: {found.reason}"
            )
            self._conditions.set(ConditionKind.RECORDS_TRUNCATED, found.file, text, self._wall_ms())
