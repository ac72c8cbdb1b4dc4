"""A thread for long work, so that the event loop is not blocked.

Owns the thread and the CPU time that it used. It must never know what the work is. Invariants: one
function runs at a time; if it fails, its buffers are released before the exception is raised again.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import TypeVar

import trio

from minibroker.runtime.worktime import Account, WorkTime

T = TypeVar("T")


class WorkThread:
    """Runs functions in a thread; the time they take is added to ``work_time``."""

    def __init__(self, work_time: WorkTime) -> None:
        self._work_time = work_time
        self._limiter = trio.CapacityLimiter(1)

    async def run(self, work: Callable[[], T]) -> T:
        """Run a function after all earlier ones, and return its result."""
        account = Account()

        def measured() -> T:
            started_ns = time.thread_time_ns()
            try:
                return work()
            except Exception as error:
                _release_locals(error)
                raise
            finally:
                account.worked_ns = time.thread_time_ns() - started_ns

        try:
            with self._work_time.with_thread_at_work():
                return await trio.to_thread.run_sync(measured, limiter=self._limiter)
        finally:
            self._work_time.add(account.worked_ns)


def _release_locals(error: BaseException) -> None:
    """Clear the local variables of the calls that an exception ended, and those of its context.

    trio keeps the exception of a thread in a reference cycle, so each decompressed batch would stay
    in memory until the garbage collector runs.
    """
    current: BaseException | None = error
    while current is not None:
        traceback.clear_frames(current.__traceback__)
        current = current.__context__
