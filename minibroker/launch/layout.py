"""Which roles a broker has, which of them share a process, and in which order processes stop.

Owns the layout shared by processes and tasks, and how the two roles of a combined process run. It
must never know how a process is started. Invariant: a role stops before the roles that it depends
on, so none waits for a stopped one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeAlias

import trio

from minibroker.broker.process.environment import (
    ACCEPTOR,
    CONTROLLER,
    PROCESSOR,
    RECORDER,
    WORKER,
    Environment,
    role_name,
)
from minibroker.broker.process.journal_counts import JournalCounts
from minibroker.broker.roles.acceptor import acceptor
from minibroker.broker.roles.controller import controller
from minibroker.broker.roles.io_worker import io_worker
from minibroker.broker.roles.processor import processor
from minibroker.broker.settings import (
    ACCEPTOR_MODE,
    ACTIVITY_ENABLE,
    COMBINED,
    NUM_IO_THREADS,
    NUM_NETWORK_THREADS,
    PROCESS_MODE,
    SINGLE,
    Settings,
)
from minibroker.lab.control.attach import attach_control


async def _recorder(env: Environment) -> None:
    # Imported when it runs, because almost no broker has one.
    from minibroker.lab.observers.recorder import recorder

    await recorder(env)


Role: TypeAlias = Callable[[Environment], Awaitable[None]]
"""Runs a role until its environment is stopped."""
Roles: TypeAlias = Mapping[str, Role]

ROLES: Final[Roles] = {
    ACCEPTOR: acceptor,
    PROCESSOR: processor,
    WORKER: io_worker,
    CONTROLLER: partial(controller, attach=attach_control),
    RECORDER: _recorder,
}

COMBINED_NAME: Final = "combined"
"""Name of a process with a network processor and an I/O worker, before its number."""


class RoleInstance(NamedTuple):
    """One role of one broker."""

    role: str
    number: int

    @property
    def name(self) -> str:
        """Name of the role, and its address in the transport."""
        return role_name(self.role, self.number)


class ProcessPlan(NamedTuple):
    """One process and its roles: one role, or a network processor and its I/O worker."""

    name: str
    roles: tuple[RoleInstance, ...]

    def has(self, role: str) -> bool:
        """Whether a role runs in this process."""
        return any(instance.role == role for instance in self.roles)


def process_plans(settings: Settings) -> list[ProcessPlan]:
    """Return all processes in the order of their start."""
    acceptors = [RoleInstance(ACCEPTOR, 0)] if settings[ACCEPTOR_MODE] == SINGLE else []
    recorders = [RoleInstance(RECORDER, 0)] if settings[ACTIVITY_ENABLE] else []
    return [
        _alone(RoleInstance(CONTROLLER, 0)),
        *_serving_processes(settings),
        *map(_alone, recorders),
        *map(_alone, acceptors),
    ]


def journal_counts(settings: Settings) -> JournalCounts:
    """Return unused counts of the entries that all roles record for the journal."""
    return JournalCounts(
        [instance.name for plan in process_plans(settings) for instance in plan.roles]
    )


def _alone(instance: RoleInstance) -> ProcessPlan:
    return ProcessPlan(instance.name, (instance,))


def _serving_processes(settings: Settings) -> list[ProcessPlan]:
    """The processes of processors and workers; those with the same number may share one."""
    processors = [
        RoleInstance(PROCESSOR, number) for number in range(settings[NUM_NETWORK_THREADS])
    ]
    workers = [RoleInstance(WORKER, number) for number in range(settings[NUM_IO_THREADS])]
    shared = 0
    if settings[PROCESS_MODE] == COMBINED:
        shared = min(len(processors), len(workers))
    return [
        *(
            ProcessPlan(f"{COMBINED_NAME}-{number}", (processors[number], workers[number]))
            for number in range(shared)
        ),
        *map(_alone, workers[shared:]),
        *map(_alone, processors[shared:]),
    ]


def stop_groups(settings: Settings) -> list[list[str]]:
    """Return the names of processes that stop together, in the order of stopping.

    The recorder writes the last events of processors by a worker. If that worker shares a process
    with a processor, all three stop together, and wait for each other.
    """
    plans = process_plans(settings)
    combined = [plan.name for plan in plans if len(plan.roles) > 1]
    by_role = {
        role: [plan.name for plan in plans if plan.roles[0].role == role and len(plan.roles) == 1]
        for role in (ACCEPTOR, PROCESSOR, RECORDER, WORKER, CONTROLLER)
    }
    if combined:
        serving = [[*by_role[PROCESSOR], *combined, *by_role[RECORDER]]]
    else:
        serving = [by_role[PROCESSOR], by_role[RECORDER]]
    groups = [by_role[ACCEPTOR], *serving, by_role[WORKER], by_role[CONTROLLER]]
    return [group for group in groups if group]


async def run_roles(environments: Sequence[Environment], roles: Roles = ROLES) -> None:
    """Run the roles of one process until the first environment is stopped.

    That environment's ``ready`` is called when all roles are ready. A worker outlives the processor
    that shares its process, whose last requests it executes.
    """
    first, *others = environments
    if not others:
        await roles[first.role](first)
        return
    _join_ready(environments)
    async with trio.open_nursery() as nursery:
        for env in others:
            nursery.start_soon(_run_worker, roles[env.role], env)
        await roles[first.role](first)
        for env in others:
            env.stopping.set()


def _join_ready(environments: Sequence[Environment]) -> None:
    """Let the last role that becomes ready report that the process is."""
    report, missing = environments[0].ready, set(range(len(environments)))

    def ready(number: int) -> None:
        missing.discard(number)
        if not missing:
            report()

    for number, env in enumerate(environments):
        env.ready = partial(ready, number)


async def _run_worker(worker: Role, env: Environment) -> None:
    """Run an I/O worker whose work is charged to it and not to the process alone."""
    assert env.local_worker is not None
    with env.work_time.charge(env.local_worker.account):
        await worker(env)
