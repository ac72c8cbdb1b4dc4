"""Which roles a broker has, how many of each, and in which order they end.

Owns the layout that processes and tasks have in common; never how a role is brought to life.
Invariant: who is served ends after who serves it, so nobody waits at the end for somebody gone.
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
    # Loaded where it runs, as nearly every broker has none.
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


class Seat(NamedTuple):
    """One role of one broker."""

    role: str
    number: int

    @property
    def name(self) -> str:
        """What the process is called, and where it is dialled."""
        return role_name(self.role, self.number)


def seats(settings: Settings) -> list[Seat]:
    """All roles, in the order in which they are started."""
    workers = [Seat(WORKER, number) for number in range(settings[NUM_IO_THREADS])]
    processors = [Seat(PROCESSOR, number) for number in range(settings[NUM_NETWORK_THREADS])]
    acceptors = [Seat(ACCEPTOR, 0)] if settings[ACCEPTOR_MODE] == SINGLE else []
    recorders = [Seat(RECORDER, 0)] if settings[ACTIVITY_ENABLE] else []
    return [Seat(CONTROLLER, 0), *workers, *recorders, *processors, *acceptors]


def stop_groups(settings: Settings) -> list[list[str]]:
    """Names of roles that are told to end together, the first group first."""
    groups = ([seat.name for seat in seats(settings) if seat.role == role] for role in STOP_ORDER)
    return [group for group in groups if group]
