"""Runs a broker as tasks: the same roles in one trio run, on a clock that a test controls.

Owns the incarnations of each role; ``kill`` does to tasks what a SIGKILL does to processes. Roles
communicate over channels in memory and clients connect through ``MemorySource``; only the data
directory is real. Invariant: a run is determined by seed, clock and clients, because all randomness
comes from ``seed`` and all time from the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

import trio

from minibroker.broker.metrics.metrics import ProcessMetrics
from minibroker.broker.process.environment import CONTROLLER, Environment, role_name
from minibroker.broker.process.local_worker import LocalWorker
from minibroker.broker.quotas.ledger import QuotaLedger
from minibroker.broker.roles.controller import controller
from minibroker.broker.settings import (
    ACCEPTOR_MODE,
    NUM_IO_THREADS,
    NUM_NETWORK_THREADS,
    QUOTA_WINDOW_NUM,
    QUOTA_WINDOW_SIZE_SECONDS,
    SHARDED,
    Settings,
)
from minibroker.lab.control.attach import attach_control
from minibroker.lab.control.broker import ControlledBroker
from minibroker.lab.observers.attaching import ProcessObservers
from minibroker.launch.layout import (
    ROLES,
    ProcessPlan,
    RoleInstance,
    Roles,
    journal_counts,
    process_plans,
    run_roles,
    stop_groups,
)
from minibroker.runtime.addressing import MemorySources, MemoryTransport, Transport
from minibroker.runtime.arena import Arena
from minibroker.runtime.clock import ControlledClock
from minibroker.runtime.restarts import BACKOFF_S
from minibroker.runtime.worktime import WorkTime

if TYPE_CHECKING:
    from minibroker.broker.apis.base import ControllerScope
    from minibroker.broker.roles.metadata_publisher import MetadataPublisher

SIMULATED_PORT: Final = 9092


class _Incarnation:
    """One incarnation of a process."""

    def __init__(self, environments: Sequence[Environment]) -> None:
        self.environments = environments
        self.scope = trio.CancelScope()
        self.ready = trio.Event()
        self.ended = trio.Event()
        environments[0].ready = self.ready.set


class TaskBroker:
    """A complete broker in one nursery; ``run`` must be running."""

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        *,
        clock: ControlledClock,
        seed: int,
        transport: Transport | None = None,
    ) -> None:
        self._settings = settings
        self._plans = process_plans(settings)
        self._data_dir = data_dir
        self._clock = clock
        self._seed = seed
        self._processors = settings[NUM_NETWORK_THREADS]
        self._workers = settings[NUM_IO_THREADS]
        self._transport = transport or MemoryTransport()
        self._incarnations: dict[str, _Incarnation] = {}
        self._stopping = False
        self.control: ControlledBroker
        """What the control API controls: the controller that was started last."""
        self._secret = _random_source(seed, "secret").randbytes(32)
        self._started_us = clock.real_us()
        self.arena = Arena.create(settings.request_memory_bytes, self._processors)
        self.ledger = QuotaLedger(
            settings[QUOTA_WINDOW_NUM], settings[QUOTA_WINDOW_SIZE_SECONDS] * 1000, shared=False
        )
        self._journal_counts = journal_counts(settings)
        self.work_time = WorkTime()
        """Pass it to ``trio.run`` as an instrument to measure work."""
        names = [listener.name for listener in settings.client_listeners]
        sharded = settings[ACCEPTOR_MODE] == SHARDED
        sources = self._processors if sharded else 1
        self.sources = {
            name: MemorySources(
                ("127.0.0.1", SIMULATED_PORT + number), sources, _random_source(seed, name)
            )
            for number, name in enumerate(names)
        }
        """Where clients connect, by listener name."""

    @property
    def names(self) -> list[str]:
        """Names of all processes in the order of their start."""
        return [plan.name for plan in self._plans]

    @property
    def role_names(self) -> list[str]:
        """Names of all roles in the order of their start."""
        return [instance.name for plan in self._plans for instance in plan.roles]

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until ``stop``; started when every role is ready.

        An error in a role ends the run, and so does one that ends by itself (`RuntimeError`).
        """
        async with trio.open_nursery() as nursery:
            for plan in self._plans:
                self._incarnations[plan.name] = _Incarnation(self._environments(plan, 1))
            for plan in self._plans:
                nursery.start_soon(self._run_process, plan)
            await self.wait_ready()
            task_status.started()

    async def wait_ready(self) -> None:
        """Wait until every role is ready, including restarted ones."""
        for name in self.names:
            while (life := self._incarnations[name]).scope.cancel_called:
                await life.ended.wait()
            await life.ready.wait()

    async def _run_process(self, plan: ProcessPlan) -> None:
        """Run all incarnations of one process, one after the other."""
        roles: Roles = {**ROLES, CONTROLLER: partial(controller, attach=self._attach_control)}
        incarnation = 1
        while True:
            life = self._incarnations[plan.name]
            with life.scope:
                await run_roles(life.environments, roles)
            life.ended.set()
            if self._stopping:
                return
            if not life.scope.cancel_called:
                raise RuntimeError(f"{plan.name} ended by itself")
            incarnation += 1
            self._incarnations[plan.name] = _Incarnation(self._environments(plan, incarnation))
            await trio.sleep(BACKOFF_S)

    def _environments(self, plan: ProcessPlan, incarnation: int) -> list[Environment]:
        local_worker = LocalWorker(self.work_time) if len(plan.roles) > 1 else None
        observers = ProcessObservers(self._journal_counts)
        return [
            observers.prepare(self._environment(instance, incarnation, local_worker))
            for instance in plan.roles
        ]

    def _environment(
        self, instance: RoleInstance, incarnation: int, local_worker: LocalWorker | None
    ) -> Environment:
        role, index = instance
        return Environment(
            role=role,
            index=index,
            incarnation=incarnation,
            processors=self._processors,
            workers=self._workers,
            settings=self._settings,
            transport=self._transport,
            clock=self._clock,
            arena=self.arena,
            ledger=self.ledger,
            started_us=self._started_us,
            metrics=ProcessMetrics(role_name(role, index)),
            work_time=self.work_time,
            local_worker=local_worker,
            random=_random_source(self._seed, role, index, incarnation),
            data_dir=self._data_dir,
            journal_counts=self._journal_counts,
            secret=self._secret,
            ready=lambda: None,
            listeners={
                name: sources.parts[index]
                for name, sources in self.sources.items()
                if index < len(sources.parts)
            },
            endpoints={name: source.address for name, source in self.sources.items()},
        )

    def _attach_control(
        self,
        env: Environment,
        scope: ControllerScope,
        publisher: MetadataPublisher,
        nursery: trio.Nursery,
    ) -> None:
        self.control = attach_control(env, scope, publisher, nursery)

    def environment(self, name: str) -> Environment:
        """Return the environment of a role's current incarnation, e.g. for its metrics."""
        environments = self._incarnations[self._process_of(name)].environments
        return next(env for env in environments if env.name == name)

    def _process_of(self, role: str) -> str:
        return next(
            plan.name for plan in self._plans if role in {instance.name for instance in plan.roles}
        )

    def kill(self, name: str) -> None:
        """Cancel a process, named by itself or by one of its roles, as SIGKILL would.

        It is restarted.
        """
        process = name if name in self._incarnations else self._process_of(name)
        self._incarnations[process].scope.cancel()

    async def stop(self) -> None:
        """Stop all roles in the supervisor's order, letting them finish."""
        self._stopping = True
        for group in stop_groups(self._settings):
            lives = [self._incarnations[name] for name in group]
            for life in lives:
                life.environments[0].stopping.set()
                if not life.ready.is_set():  # It has no work to finish.
                    life.scope.cancel()
            for life in lives:
                await life.ended.wait()


def _random_source(seed: int, *whose: object) -> Random:
    """Return a source of randomness that the seed determines."""
    return Random(" ".join(map(str, (seed, *whose))))  # noqa: S311 - to be foreseen, in a simulation
