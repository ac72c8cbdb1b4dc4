"""Waits of real time in a loop whose own clock may stand still, leap or run at another rate.

Owns who waits and until when, in seconds of the machine's clock; it must never know the loop's
clock, which must ask how long the loop may sleep at most (``soonest_s``). Invariant: nobody waits
any longer than until the loop's next turn after his time, however busy the loop is, and a wait
takes no thread and no descriptor, neither of which can be had for sure in a storm of connections.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable
from itertools import count

import trio


class Alarms(trio.abc.Instrument):
    """Those of one loop. It is among the loop's instruments while somebody waits."""

    def __init__(self, real: Callable[[], float] = time.monotonic) -> None:
        self._real = real
        self._waiting: list[tuple[float, int, trio.Event]] = []
        self._numbers = count()
        """Tell apart who waits for the same moment."""
        self._sleepers = 0
        """Those that wait, and those that need not any more but have not gone on yet."""

    async def sleep(self, seconds: float) -> None:
        """Let real seconds pass."""
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
            if waiter in self._waiting:  # Cancelled: rare, and never are there many.
                self._waiting.remove(waiter)
                heapq.heapify(self._waiting)
            self._sleepers -= 1
            if self._sleepers == 0:
                trio.lowlevel.remove_instrument(self)

    def soonest_s(self) -> float:
        """Real seconds until the first wait is over; infinite without one."""
        return max(0.0, self._waiting[0][0] - self._real()) if self._waiting else math.inf

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's shape
        """The loop has waited. Whose time has come goes on in this turn."""
        while self._waiting and self._waiting[0][0] <= self._real():
            heapq.heappop(self._waiting)[2].set()
