"""Kills and stops processes of the broker on request.

Owns the signals. It must never know why a process is killed or stopped. Invariant: a process hands
over what it has recorded before it is killed or stopped, if it responds, and one that was stopped
continues, also if the request for it is cancelled. Kafka's Trogdor has ``ProcessStopFault``.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, Protocol

from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import CONTROLLER
from minibroker.lab.schema import Fault, InvalidJson
from minibroker.runtime.clock import ControlledClock
from minibroker.runtime.roles import RoleStatus

RUNNING: Final = "running"
PAUSED: Final = "paused"
KILLED: Final = "killed"

_log = EventLog(CONTROLLER)


class HandOver(Protocol):
    """Lets a process hand over its records for the journal, if that is on and the process responds.

    A process that ``ends`` may end by itself, so that it records nothing afterwards.
    """

    async def __call__(self, process: str, *, ends: bool) -> None: ...


class ProcessSignals:
    """The processes of one broker."""

    def __init__(
        self,
        clock: ControlledClock,
        statuses: Callable[[], Sequence[RoleStatus]],
        on_state: Callable[[str, str, str], object],
        hand_over: HandOver,
    ) -> None:
        """``on_state`` is called with a process, and its states before and after a signal.

        ``hand_over`` is awaited before a process gets a signal that it cannot handle.
        """
        self._clock = clock
        self._statuses = statuses
        self._on_state = on_state
        self._hand_over = hand_over

    def check(self, action: str, process: str) -> None:
        """Raise ``InvalidJson`` if the action ``kill`` or ``pause`` can't be done to a process."""
        known = [status.name for status in self._statuses() if status.pid]
        if action == "pause":  # A stopped controller could not continue itself.
            known = [name for name in known if name != CONTROLLER]
        if process not in known:
            names = ", ".join(known) or "none"
            raise InvalidJson([Fault("process", f"is not one of the processes here: {names}")])

    def _pid(self, process: str) -> int | None:
        pids = [status.pid for status in self._statuses() if status.name == process]
        return pids[0] if any(pids) else None

    async def kill(self, process: str, reason: str) -> None:
        """Kill a process, unless it is being restarted."""
        pid = self._pid(process)
        if pid is None:
            return
        _log.warning("a process is killed by request", process=process, reason=reason)
        self._on_state(process, RUNNING, KILLED)
        await self._hand_over(process, ends=True)
        if self._pid(process) == pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    async def pause(self, process: str, duration_ms: int) -> None:
        """Stop a process for some real time, unless it is being restarted."""
        pid = self._pid(process)
        if pid is None:
            return
        await self._hand_over(process, ends=False)
        if self._pid(process) != pid:
            return
        self._on_state(process, RUNNING, PAUSED)
        os.kill(pid, signal.SIGSTOP)
        try:
            await self._clock.sleep_real(duration_ms / 1000)
        finally:
            self._on_state(process, PAUSED, RUNNING)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
