"""The broker as tasks: the same roles in one trio run, on a clock that a test turns.

Owns the layout and each role's lives; what a supervisor does to processes, ``kill`` does to
tasks. Roles talk over channels in memory and clients connect through ``MemorySource``; only the
data directory is real. Invariant: with the same seed, the same clock and the same clients, a run
is the same run, because all chance comes from ``seed`` and all time from the clock.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Final

import trio

from minibroker.config import NUM_IO_THREADS, NUM_NETWORK_THREADS, Settings
from minibroker.controller import controller
from minibroker.io_worker import io_worker
from minibroker.network.acceptor import acceptor
from minibroker.network.processor import processor
from minibroker.observability.metrics import ProcessMetrics
from minibroker.roles.environment import (
    ACCEPTOR,
    CONTROLLER,
    PROCESSOR,
    WORKER,
    Environment,
    role_name,
)
from minibroker.runtime.arena import Arena
from minibroker.runtime.clock import ControlledClock
from minibroker.runtime.listening import MemorySource
from minibroker.runtime.switchboard import MemorySwitchboard
from minibroker.runtime.worktime import WorkTime

SIMULATED_PORT: Final = 9092

_ROLES: Final[dict[str, Callable[[Environment], Awaitable[None]]]] = {
    ACCEPTOR: acceptor,
    PROCESSOR: processor,
    WORKER: io_worker,
    CONTROLLER: controller,
}


class TaskBroker:
    """A whole broker in one nursery; ``run`` must be running."""

    def __init__(
        self, settings: Settings, data_dir: Path, *, clock: ControlledClock, seed: int
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._clock = clock
        self._seed = seed
        self._processors = settings[NUM_NETWORK_THREADS]
        self._workers = settings[NUM_IO_THREADS]
        self._switchboard = MemorySwitchboard()
        self._arena = Arena.create(settings.request_memory_bytes, self._processors)
        self._work_time = WorkTime()
        self._scopes: dict[str, trio.CancelScope] = {}
        self._ready: dict[str, trio.Event] = {}
        self._stopping = trio.Event()
        names = [listener.name for listener in settings.client_listeners]
        self.sources = {
            name: MemorySource(("127.0.0.1", SIMULATED_PORT + number))
            for number, name in enumerate(names)
        }
        """Where clients connect, by listener name."""

    @property
    def names(self) -> list[str]:
        """All roles by the names that processes have."""
        return [role_name(role, index) for role, index in self._layout()]

    def _layout(self) -> list[tuple[str, int]]:
        workers = [(WORKER, index) for index in range(self._workers)]
        processors = [(PROCESSOR, index) for index in range(self._processors)]
        return [(CONTROLLER, 0), *workers, *processors, (ACCEPTOR, 0)]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Runs until ``stop``; started when every role serves."""
        async with trio.open_nursery() as nursery:
            for role, index in self._layout():
                name = role_name(role, index)
                self._ready[name] = trio.Event()
                nursery.start_soon(self._live, role, index)
            for name in self.names:
                await self._ready[name].wait()
            task_status.started()

    async def _live(self, role: str, index: int) -> None:
        """All lives of one role, one after the other."""
        name = role_name(role, index)
        incarnation = 0
        while not self._stopping.is_set():
            incarnation += 1
            with trio.CancelScope() as scope:
                self._scopes[name] = scope
                await _ROLES[role](self._environment(role, index, incarnation))

    def _environment(self, role: str, index: int, incarnation: int) -> Environment:
        name = role_name(role, index)
        return Environment(
            role=role,
            index=index,
            incarnation=incarnation,
            processors=self._processors,
            workers=self._workers,
            settings=self._settings,
            switchboard=self._switchboard,
            clock=self._clock,
            arena=self._arena,
            metrics=ProcessMetrics(role, index),
            work_time=self._work_time,
            random=Random(f"{self._seed} {name} {incarnation}"),
            data_dir=self._data_dir,
            ready=self._ready[name].set,
            listeners=self.sources,
            endpoints={name: source.address for name, source in self.sources.items()},
            stopping=self._stopping,
        )

    def kill(self, name: str) -> None:
        """Ends a role's life at once, as SIGKILL would; its next life begins by itself."""
        self._scopes[name].cancel()

    def stop(self) -> None:
        """Lets all roles finish what they do and end."""
        self._stopping.set()
