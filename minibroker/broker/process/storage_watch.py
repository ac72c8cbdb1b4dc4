"""Watches the storage of a role's data directory after it failed, until it can be written again.

Owns the pauses between attempts. It must never know which write failed.
Invariant: ``on_change`` is called with False when writes begin to fail and with True when they
succeed again. Kafka has no equivalent: a failed log directory stays offline until a restart.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Final

import trio

from minibroker.broker.log.errors import free_bytes
from minibroker.broker.metadata.topics import RESERVED_BYTES
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.metrics.storage_health import StorageHealth
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
