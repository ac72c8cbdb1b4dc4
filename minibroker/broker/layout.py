"""Which roles a broker has, how many of each, and in which order they stop.

Owns the layout shared by processes and tasks. It must never know how a role is started. Invariant:
a role stops before the roles that it depends on, so none waits for a stopped one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from minibroker.config import (
    ACCEPTOR_MODE,
    ACTIVITY_ENABLE,
    NUM_IO_THREADS,
    NUM_NETWORK_THREADS,
    SINGLE,
    Settings,
)
from minibroker.process.environment import (
    ACCEPTOR,
    CONTROLLER,
    PROCESSOR,
    RECORDER,
    WORKER,
    Environment,
    role_name,
)
from minibroker.roles.acceptor import acceptor
from minibroker.roles.controller import controller
from minibroker.roles.io_worker import io_worker
from minibroker.roles.processor import processor


async def _recorder(env: Environment) -> None:
    # Imported when it runs, because almost no broker has one.
    from minibroker.roles.recorder import recorder

    await recorder(env)


ROLES: Final[Mapping[str, Callable[[Environment], Awaitable[None]]]] = {
    ACCEPTOR: acceptor,
    PROCESSOR: processor,
    WORKER: io_worker,
    CONTROLLER: controller,
    RECORDER: _recorder,
}

STOP_ORDER: Final = (ACCEPTOR, PROCESSOR, RECORDER, WORKER, CONTROLLER)


class RoleInstance(NamedTuple):
    """One role of one broker."""

    role: str
    number: int

    @property
    def name(self) -> str:
        """Name of the process and the address at which it listens."""
        return role_name(self.role, self.number)


def role_instances(settings: Settings) -> list[RoleInstance]:
    """Return all roles in the order of their start."""
    workers = [RoleInstance(WORKER, number) for number in range(settings[NUM_IO_THREADS])]
    processors = [
        RoleInstance(PROCESSOR, number) for number in range(settings[NUM_NETWORK_THREADS])
    ]
    acceptors = [RoleInstance(ACCEPTOR, 0)] if settings[ACCEPTOR_MODE] == SINGLE else []
    recorders = [RoleInstance(RECORDER, 0)] if settings[ACTIVITY_ENABLE] else []
    return [RoleInstance(CONTROLLER, 0), *workers, *recorders, *processors, *acceptors]


def stop_groups(settings: Settings) -> list[list[str]]:
    """Return the names of roles that stop together, in the order of stopping."""
    groups = (
        [instance.name for instance in role_instances(settings) if instance.role == role]
        for role in STOP_ORDER
    )
    return [group for group in groups if group]
