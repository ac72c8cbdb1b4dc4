"""Waits in real time, in a loop whose clock may stand still, jump or run at another rate.

Owns the waiting tasks and their deadlines, in seconds of the machine's clock. It must never know
the loop's clock, which asks how long the loop may sleep (``seconds_to_next``). Invariant: a task is
woken in the first turn of the loop after its deadline, however busy the loop is, and a wait needs
no thread and no descriptor, which may be unavailable in a connection storm.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from itertools import count

import trio


class Alarms(trio.abc.Instrument):
    """Waits of one loop. It is among the loop's instruments while any task waits."""

    def __init__(self, real: Callable[[], float] = time.monotonic) -> None:
        self._real = real
        self._waiting: list[tuple[float, int, trio.Event]] = []
        self._numbers = count()
        """Order waits with the same deadline."""
        self._sleepers = 0
        """Tasks that wait, including those that were woken and have not run yet."""

    async def sleep(self, seconds: float) -> None:
        """Wait for real seconds."""
        if seconds <= 0:
            await trio.lowlevel.checkpoint()
            return
        passed = trio.Event()
        waiter = self._real() + seconds, next(self._numbers), passed
        if self._sleepers == 0:
            trio.lowlevel.add_instrument(self)
        self._sleepers += 1
        heapq.heappush(self._waiting, waiter)
        try:
            await passed.wait()
        finally:
            if waiter in self._waiting:  # Cancelled: rare, and there are never many.
                self._waiting.remove(waiter)
                heapq.heapify(self._waiting)
            self._sleepers -= 1
            if self._sleepers == 0:
                trio.lowlevel.remove_instrument(self)

    def seconds_to_next(self) -> float:
        """Real seconds until the first deadline; infinite without one."""
        return max(0.0, self._waiting[0][0] - self._real()) if self._waiting else math.inf

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's shape
        """Wake tasks whose deadline has passed; called after the loop has waited."""
        while self._waiting and self._waiting[0][0] <= self._real():
            heapq.heappop(self._waiting)[2].set()
