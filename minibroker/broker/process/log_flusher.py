"""Flushes the logs of an I/O worker: those that are due each second, and others on request.

Owns the thread in which files are written to the disk. It must never know when a log is due.
Invariant: the worker's loop does not wait for the disk, except for what was appended while the
thread was at work; a log is flushed only if none of its files failed. Kafka's counterparts are the
scheduler's ``kafka-log-flusher`` and ``flush-log`` tasks.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from minibroker.broker.log.errors import LogError
from minibroker.broker.log.log import Log
from minibroker.broker.log.manager import LogManager
from minibroker.broker.log.segment import sync_files
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import Environment

CHECK_S: Final = 1.0
"""How often logs are checked for ``flush.ms`` and for segments that were rolled."""


class LogFlusher:
    """Flushes the logs of one worker; ``run`` must be running."""

    def __init__(self, env: Environment, logs: LogManager) -> None:
        self._log = EventLog(env.name)
        self._logs = logs
        self._wall_ms = env.clock.wall_ms
        # A broker of tasks has a clock of its own, which would not wait for a thread.
        self._has_threads = env.starts_processes

    async def run(self) -> None:
        """Flush logs that are due until cancelled."""
        while True:
            await trio.sleep(CHECK_S)
            for _, log in list(self._logs.items()):
                if log.is_open and log.is_flush_due(now_ms=self._wall_ms()):
                    try:
                        await self.flush(log)
                    except LogError as error:
                        self._log.error("flush failed", reason=error)

    async def flush(self, log: Log) -> None:
        """Write all records of a log to the disk. Raises LogError."""
        if self._has_threads:
            sync = partial(sync_files, log.unflushed_files())
            try:
                await trio.to_thread.run_sync(sync)
            except OSError as error:
                raise log.storage_error("flushed", error) from error
        if log.is_open:
            log.flush(now_ms=self._wall_ms())
