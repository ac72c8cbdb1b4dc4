"""Measures work: the time of task steps, charged to accounts, and the loop's idle time.

It must never know what an account represents (a request, a connection), or what time means: it
reads a timer, which a simulation replaces. Invariant: a moment in a task's step is charged to at
most one account, the one in force at that moment, and waiting is charged to none. Like Kafka's
`requestThreadTimeNanos` (KIP-124), which includes long polls there, and the idle percentage of its
handler and network threads.

The account in force is a context variable, so tasks started inside `charge` are charged to the same
account, and other tasks of the loop are not.

Work is real time, as in Kafka. But while a thread of the process works, a step that needs a few
microseconds waits for milliseconds until it may continue: Python runs one thread at a time. Then
the CPU time of steps is charged instead, or clients would pay for the thread's work.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import trio

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextvars import Token
    from types import TracebackType


_NOT_STEPPING: Final = -1


class Account:
    """Worked nanoseconds up to the end of the last step; `WorkTime.settle` adds the rest."""

    __slots__ = ("worked_ns",)

    def __init__(self) -> None:
        self.worked_ns = 0


_account: ContextVar[Account | None] = ContextVar("account", default=None)


class LoopTime(NamedTuple):
    """Nanoseconds since the start of a loop; the loop waited for `idle_ns` of them."""

    total_ns: int
    idle_ns: int

    @property
    def idle_share(self) -> float:
        """0.0 (never waited) to 1.0; 1.0 for a loop that has just started."""
        return self.idle_ns / self.total_ns if self.total_ns else 1.0

    def since(self, earlier: LoopTime) -> LoopTime:
        """Return the difference from an earlier reading, for rates over that time."""
        return LoopTime(self.total_ns - earlier.total_ns, self.idle_ns - earlier.idle_ns)


class WorkTime(trio.abc.Instrument):
    """Pass it to the loop: `trio.run(..., instruments=[work_time])`. One per loop.

    `timer` counts nanoseconds; a simulation passes its own, so that the same seed results in the
    same work. `cpu_timer` counts those in which the calling thread was executed.
    """

    def __init__(
        self,
        timer: Callable[[], int] = time.perf_counter_ns,
        cpu_timer: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        self._timer = timer
        self._cpu_timer = cpu_timer
        self.step_timer = timer
        """Times work within a step, in nanoseconds; it may be another one in the next step."""
        self._threads = 0
        self._thread_ns = 0
        self._step_from = _NOT_STEPPING
        self._wait_from = 0
        self._idle_ns = 0
        self._started_ns = timer()
        self.turns = 0
        """Number of times the loop has polled for events."""

    def charge(self, account: Account) -> Charge:
        """`with work_time.charge(account):` charges the steps inside to `account`.

        Nests: the outer account is not charged for the inner one. Waiting inside is free.
        """
        return Charge(self, account)

    def switch(self, account: Account | None) -> None:
        """Charge the running step up to now, and the steps of this task from now to ``account``."""
        self.settle()
        _account.set(account)

    def settle(self) -> None:
        """Charge the running step up to now, to read an account within its step."""
        if self._step_from != _NOT_STEPPING:
            now = self.step_timer()
            account = _account.get()
            if account is not None:
                account.worked_ns += now - self._step_from
            self._step_from = now

    @contextmanager
    def with_thread_at_work(self) -> Iterator[None]:
        """Charge the CPU time of steps for as long as a thread works."""
        self._threads += 1
        self._time_steps()
        try:
            yield
        finally:
            self._threads -= 1
            self._time_steps()

    def _time_steps(self) -> None:
        self.settle()
        self.step_timer = self._cpu_timer if self._threads else self._timer
        if self._step_from != _NOT_STEPPING:
            self._step_from = self.step_timer()

    def add(self, worked_ns: int) -> None:
        """Charge work that was done in a thread to the account in force."""
        self._thread_ns += worked_ns
        account = _account.get()
        if account is not None:
            account.worked_ns += worked_ns

    def move(self, account: Account, worked_ns: int) -> None:
        """Charge a part of the running step to another account than the one in force."""
        account.worked_ns += worked_ns
        if self._step_from != _NOT_STEPPING:
            self._step_from += worked_ns

    def worked_ns(self, account: Account) -> int:
        """Return the work of the account in force, including the running step, without charging
        it.
        """
        running = self._step_from != _NOT_STEPPING
        return account.worked_ns + (self.step_timer() - self._step_from if running else 0)

    def add_idle(self, spent_ns: int) -> None:
        """Count time of the running step as idle: it polled instead of waiting.

        No account is charged for it. Polling takes less CPU time than real time.
        """
        self._idle_ns += spent_ns
        if self._step_from != _NOT_STEPPING:
            self._step_from = min(self._step_from + spent_ns, self.step_timer())

    def loop_time(self) -> LoopTime:
        """Return the time since the start of the loop, and its idle part."""
        return LoopTime(self._timer() - self._started_ns, self._idle_ns)

    def busy_ns(self) -> int:
        """Return how long the loop and threads have worked, without waiting."""
        elapsed = self.loop_time()
        return elapsed.total_ns - elapsed.idle_ns + self._thread_ns

    def before_run(self) -> None:
        """Note the start of the loop."""
        self._started_ns = self._timer()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:  # noqa: ARG002 - trio's shape
        """Note that a task continues."""
        self._step_from = self.step_timer()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Note that a task waits or has ended."""
        account = task.context.get(_account)
        if account is not None:
            account.worked_ns += self.step_timer() - self._step_from
        self._step_from = _NOT_STEPPING

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's shape
        """Note that the loop polls for events."""
        self.turns += 1
        self._wait_from = self._timer()

    def after_io_wait(self, timeout: float) -> None:
        """Count the wait for events as idle, unless the loop had work to do (no timeout)."""
        if timeout > 0:
            self._idle_ns += self._timer() - self._wait_from


class Charge:
    """Context that `WorkTime.charge` returns; enter it once."""

    __slots__ = ("_account", "_token", "_work_time")

    def __init__(self, work_time: WorkTime, account: Account) -> None:
        self._work_time = work_time
        self._account = account
        self._token: Token[Account | None] | None = None

    def __enter__(self) -> None:
        self._work_time.settle()
        self._token = _account.set(self._account)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._work_time.settle()
        assert self._token is not None
        _account.reset(self._token)


# ------------------------------------ A thread for long work, so that the event loop is not blocked
# Owns the thread and the CPU time that it used. It must never know what the work is. Invariants:
# one function runs at a time; if it fails, its buffers are released before the exception is raised
# again.


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
