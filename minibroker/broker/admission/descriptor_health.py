"""Detects that a process has run out of file descriptors for connections.

Owns when a shortage starts and ends, for one process. It must never know listeners, clients or
requests. Invariant: a shortage is logged when it starts and when it ends, and is a condition
meanwhile; it ends after a second of real time without a failure, if a descriptor can be opened.
Kafka logs an error for every failed ``accept``.
"""

from __future__ import annotations

import errno
from typing import Final

import trio

from minibroker.broker.metrics.conditions import ConditionKind
from minibroker.broker.metrics.log import EventLog
from minibroker.broker.process.environment import Environment
from minibroker.runtime.system import OUT_OF_DESCRIPTORS, descriptors_max, has_descriptor

RETRY_S: Final = 0.1
"""Delay, in real time, before a failed ``accept`` is tried again."""

CALM_S: Final = 1.0
"""Real time without a failed ``accept`` after which a shortage is over."""

SUBJECT: Final = "open files"

THIS_PROCESS: Final = "this process"


class DescriptorHealth:
    """The descriptors of one process that opens connections; ``run`` ends a shortage."""

    def __init__(self, env: Environment, log: EventLog) -> None:
        self._env = env
        self._log = log
        self._failed_at_s: float | None = None
        self._is_exhausted = trio.Event()

    async def accept_failed(self, listener: str, error: OSError) -> None:
        """Note a failed ``accept``, and wait before the next one."""
        if error.errno in OUT_OF_DESCRIPTORS:
            self.exhausted("the system" if error.errno == errno.ENFILE else THIS_PROCESS)
        else:
            self._log.warning("connections wait", listener=listener, error=error)
        await self._env.clock.sleep_real(RETRY_S)

    def exhausted(self, owner: str = THIS_PROCESS) -> None:
        """Note that no descriptor was left for a connection, and in which process."""
        began = self._failed_at_s is None
        self._failed_at_s = self._env.clock.real_s()
        if not began:
            return
        text = (
            f"connections cannot be accepted because {owner} has no descriptor left; this process "
            f"may open {descriptors_max()} files: raise the limit (ulimit -n) or lower "
            "max.connections"
        )
        now_ms = self._env.clock.wall_ms()
        self._env.conditions.set(ConditionKind.DESCRIPTORS_EXHAUSTED, SUBJECT, text, now_ms)
        self._log.error("descriptors are exhausted", reason=text)
        self._is_exhausted.set()

    async def run(self) -> None:
        """End each shortage when it is over; runs until cancelled."""
        clock = self._env.clock
        while True:
            await self._is_exhausted.wait()
            await clock.sleep_real(CALM_S)
            assert self._failed_at_s is not None
            if clock.real_s() - self._failed_at_s < CALM_S or not has_descriptor():
                continue
            self._failed_at_s = None
            self._is_exhausted = trio.Event()
            self._env.conditions.clear(ConditionKind.DESCRIPTORS_EXHAUSTED, SUBJECT)
            self._log.warning("descriptors are available again")
