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
    """State of a process. `WAITING` is between its death and its next start."""

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
    """Table of all roles; the supervisor creates it before it forks, and children only read it."""

    def __init__(self, names: Sequence[str]) -> None:
        if not 1 <= len(names) <= ROLES_MAX or len(set(names)) != len(names):
            raise ValueError(f"give 1 to {ROLES_MAX} roles with different names, not {names!r}")
        self.names = tuple(names)
        self._cells = memoryview(mmap.mmap(-1, len(names) * _COLUMNS * 8)).cast("q")
        for index in range(len(names)):
            self._cells[index * _COLUMNS + 4] = _NO_STATUS

    def read(self) -> list[RoleStatus]:
        """Return all rows, in the order of `names`."""
        return [self._row(index) for index in range(len(self.names))]

    def started(self, index: int, pid: int, incarnation: int) -> None:
        """Set that a process was forked."""
        cells, at = self._cells, index * _COLUMNS
        cells[at] = pid
        cells[at + 1] = incarnation
        cells[at + 2] = RoleState.STARTING
        cells[at + 3] = incarnation - 1

    def ready(self, index: int) -> None:
        """Set that the process is ready."""
        self._cells[index * _COLUMNS + 2] = RoleState.READY

    def ended(self, index: int, status: int, *, restarts: bool) -> None:
        """Set that the process ended with this wait status; `restarts`: it will be restarted."""
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
    """Describe a wait status: `exit status 3`, `signal 9 (SIGKILL)`."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"exit status {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"
