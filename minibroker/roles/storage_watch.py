"""Watches the storage of a role's data directory while it fails, until it can be written again.

Owns when a storage that failed is tried again. It must never know what was to be written.
Invariant: ``changed`` is called with False when writes begin to fail and with True when they
succeed again. Kafka has no equivalent: a failed log directory stays offline until a restart.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Final

import trio

from minibroker.cluster.mutations import KEPT_FREE_BYTES
from minibroker.observability.log import Log
from minibroker.observability.storage_health import StorageHealth
from minibroker.roles.environment import Environment
from minibroker.storage.failures import free_bytes

PROBE_S: Final = 1.0
"""How soon, in real time, a storage that failed is tried again; the pause doubles after that."""

PROBE_MAX_S: Final = 8.0
"""The longest pause between two tries."""


def pauses_s() -> Iterator[float]:
    """The pauses between tries, without end."""
    pause_s = PROBE_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, PROBE_MAX_S)


def _ignore_change(is_writable: bool) -> None:
    del is_writable


class StorageWatch:
    """The storage of one role; ``run`` must be running."""

    def __init__(
        self, env: Environment, log: Log, changed: Callable[[bool], None] = _ignore_change
    ) -> None:
        self._directory = str(env.data_dir)
        self._sleep = env.clock.sleep_real
        self._changed = changed
        self._failing = trio.Event()
        self.health = StorageHealth(
            self._directory, env.conditions, env.metrics, log, env.clock.wall_ms
        )

    def failed(self, path: str, error: OSError) -> None:
        """A file could not be read or written."""
        self.health.failed(path, error)
        if self.health.is_failing and not self._failing.is_set():
            self._failing.set()
            self._changed(False)

    def free_bytes(self) -> int:
        """The bytes that are free; too few for any new partition count as a failure."""
        free = free_bytes(self._directory)
        if 0 <= free < KEPT_FREE_BYTES:
            self.failed(self._directory, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        return free

    async def run(self) -> None:
        """Try a storage that failed again and again until it can be written."""
        while True:
            await self._failing.wait()
            for pause_s in pauses_s():
                await self._sleep(pause_s)
                if self.health.look_again():
                    break
            self._failing = trio.Event()
            self._changed(True)
