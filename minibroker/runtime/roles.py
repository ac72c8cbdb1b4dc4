"""Table of processes in shared memory, one row each, for all processes to read.

It must never know how processes are started or ended: the supervisor writes, others read.
Invariant: each number is stored atomically; a row that is read during a change may mix two moments.
Kafka has no equivalent, because its threads share a heap; `ps` is similar.
"""

from __future__ import annotations

import enum
import mmap
import os
import signal
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

ROLES_MAX: Final = 1024
_COLUMNS: Final = 5  # pid, incarnation, state, restarts, last status
_NO_STATUS: Final = -1


class RoleState(enum.IntEnum):
    """How far a process is. `WAITING` is between its death and its next start."""

    NOT_STARTED = 0
    STARTING = 1
    READY = 2
    WAITING = 3
    ENDED = 4


class RoleStatus(NamedTuple):
    """One process: `pid` is 0 when none runs, `last_exit` None before the first death."""

    name: str
    pid: int
    incarnation: int
    state: RoleState
    restarts: int
    last_exit: str | None


class RoleTable:
    """Made by the supervisor before it forks; in the children it is for reading."""

    def __init__(self, names: Sequence[str]) -> None:
        if not 1 <= len(names) <= ROLES_MAX or len(set(names)) != len(names):
            raise ValueError(f"give 1 to {ROLES_MAX} roles with names of their own, not {names!r}")
        self.names = tuple(names)
        self._cells = memoryview(mmap.mmap(-1, len(names) * _COLUMNS * 8)).cast("q")
        for index in range(len(names)):
            self._cells[index * _COLUMNS + 4] = _NO_STATUS

    def read(self) -> list[RoleStatus]:
        """All rows, in the order in which the roles were given."""
        return [self._row(index) for index in range(len(self.names))]

    def started(self, index: int, pid: int, incarnation: int) -> None:
        """A process was forked."""
        cells, at = self._cells, index * _COLUMNS
        cells[at] = pid
        cells[at + 1] = incarnation
        cells[at + 2] = RoleState.STARTING
        cells[at + 3] = incarnation - 1

    def ready(self, index: int) -> None:
        """The process said that it serves."""
        self._cells[index * _COLUMNS + 2] = RoleState.READY

    def ended(self, index: int, status: int, *, restarts: bool) -> None:
        """The process is gone with this wait status; `restarts` says whether another follows."""
        cells, at = self._cells, index * _COLUMNS
        cells[at] = 0
        cells[at + 2] = RoleState.WAITING if restarts else RoleState.ENDED
        cells[at + 4] = status

    def _row(self, index: int) -> RoleStatus:
        at = index * _COLUMNS
        pid, incarnation, state, restarts, status = self._cells[at : at + _COLUMNS]
        last_exit = None if status == _NO_STATUS else describe_exit(status)
        return RoleStatus(
            self.names[index], pid, incarnation, RoleState(state), restarts, last_exit
        )


def describe_exit(status: int) -> str:
    """A wait status in words: `exit status 3`, `signal 9 (SIGKILL)`."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
