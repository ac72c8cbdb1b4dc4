"""Worked time on a timer turned by hand: work is what turns it, and waiting isn't charged."""

from __future__ import annotations

import gc
import threading
import time
import traceback
import weakref
from collections.abc import Awaitable, Callable, Iterator

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from minibroker.runtime.worktime import Account, LoopTime, WorkThread, WorkTime


class Timer:
    """Nanoseconds that pass only during work."""

    def __init__(self) -> None:
        self.ns = 1000

    def __call__(self) -> int:
        return self.ns

    def work(self, ns: int) -> None:
        self.ns += ns


@pytest.fixture
def timer() -> Timer:
    return Timer()


@pytest.fixture
def work_time(timer: Timer) -> WorkTime:
    return WorkTime(timer)


def run(work_time: WorkTime, main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, instruments=[work_time], clock=MockClock(autojump_threshold=0))


def test_only_steps_inside_are_charged(work_time: WorkTime, timer: Timer) -> None:
    account = Account()

    async def main() -> None:
        timer.work(1)
        await trio.lowlevel.checkpoint()
        timer.work(10)
        with work_time.charge(account):
            timer.work(100)
            await trio.lowlevel.checkpoint()
            timer.work(1000)
        timer.work(10_000)
        await trio.lowlevel.checkpoint()
        timer.work(100_000)

    run(work_time, main)
    assert account.worked_ns == 1100


def test_waiting_and_other_tasks_are_not_charged(work_time: WorkTime, timer: Timer) -> None:
    first, second = Account(), Account()
    turn = trio.testing.Sequencer()

    async def one() -> None:
        with work_time.charge(first):
            async with turn(0):
                timer.work(1)
            await trio.sleep(3600)
            async with turn(2):
                timer.work(10)

    async def other() -> None:
        with work_time.charge(second):
            async with turn(1):
                timer.work(100)
            await trio.sleep(1)
            timer.work(1000)

    async def bystander() -> None:
        await trio.sleep(2)
        timer.work(10_000)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for task in (one, other, bystander):
                nursery.start_soon(task)

    run(work_time, main)
    assert (first.worked_ns, second.worked_ns) == (11, 1100)


def test_nested_account_is_charged_within_a_step(work_time: WorkTime, timer: Timer) -> None:
    outer, inner = Account(), Account()

    async def main() -> None:
        with work_time.charge(outer):
            timer.work(1)
            with work_time.charge(inner):
                timer.work(10)
                await trio.lowlevel.checkpoint()
                timer.work(100)
            timer.work(1000)

    run(work_time, main)
    assert (outer.worked_ns, inner.worked_ns) == (1001, 110)


def test_tasks_started_inside_are_charged_too(work_time: WorkTime, timer: Timer) -> None:
    account = Account()

    async def helper() -> None:
        timer.work(10)
        await trio.lowlevel.checkpoint()
        timer.work(100)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with work_time.charge(account):
                nursery.start_soon(helper)
            nursery.start_soon(helper)

    run(work_time, main)
    assert account.worked_ns == 110


def test_account_read_inside_its_step_is_settled_first(work_time: WorkTime, timer: Timer) -> None:
    account = Account()
    seen: list[int] = []

    async def main() -> None:
        with work_time.charge(account):
            timer.work(5)
            seen.append(account.worked_ns)
            work_time.settle()
            seen.append(account.worked_ns)
            timer.work(2)

    run(work_time, main)
    assert seen == [0, 5]
    assert account.worked_ns == 7


def test_account_can_be_read_inside_its_step_without_settling(
    work_time: WorkTime, timer: Timer
) -> None:
    account = Account()
    seen: list[int] = []

    async def main() -> None:
        with work_time.charge(account):
            timer.work(5)
            seen.append(work_time.worked_ns(account))
            seen.append(account.worked_ns)
            timer.work(2)
            seen.append(work_time.worked_ns(account))

    run(work_time, main)
    assert seen == [5, 0, 7]
    assert account.worked_ns == 7
    assert work_time.worked_ns(account) == 7  # Outside of any step.


def test_step_that_fails_is_charged(work_time: WorkTime, timer: Timer) -> None:
    account = Account()

    async def main() -> None:
        with work_time.charge(account):
            timer.work(5)
            await trio.lowlevel.checkpoint()
            timer.work(7)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        run(work_time, main)
    assert account.worked_ns == 12


def test_charge_outside_of_loop_records_nothing(work_time: WorkTime, timer: Timer) -> None:
    account = Account()
    with work_time.charge(account):
        timer.work(5)
    assert account.worked_ns == 0


def test_idle_time_is_the_time_the_loop_waited(work_time: WorkTime, timer: Timer) -> None:
    class Waits(trio.abc.Instrument):
        """Time passes while the loop waits, and while it only looks."""

        def before_io_wait(self, timeout: float) -> None:
            timer.work(100 if timeout > 0 else 1)

    spans: list[LoopTime] = []

    async def main() -> None:
        before = work_time.loop_time()
        await trio.lowlevel.checkpoint()  # only looks
        await trio.testing.wait_all_tasks_blocked(0.001)  # waits
        timer.work(98)
        spans.append(work_time.loop_time().since(before))

    trio.run(main, instruments=[work_time, Waits()])
    assert spans[0].idle_ns % 100 == 0
    assert spans[0].idle_ns >= 100
    assert spans[0].total_ns - spans[0].idle_ns >= 99
    assert spans[0].idle_share == spans[0].idle_ns / spans[0].total_ns


def test_loop_that_has_not_lived_is_idle() -> None:
    assert LoopTime(0, 0).idle_share == 1.0


def test_polling_is_idle_time_and_charged_to_no_account(work_time: WorkTime, timer: Timer) -> None:
    account = Account()

    async def main() -> None:
        with work_time.charge(account):
            timer.work(100)
            before = work_time.loop_time()
            timer.work(40)
            work_time.add_idle(40)
            timer.work(3)
            assert work_time.loop_time().since(before) == LoopTime(43, 40)

    run(work_time, main)
    assert account.worked_ns == 103


def test_turns_of_the_loop_are_counted(work_time: WorkTime) -> None:
    async def main() -> None:
        before = work_time.turns
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        assert work_time.turns == before + 5

    run(work_time, main)


@pytest.fixture
def cpu_timer() -> Timer:
    return Timer()


@pytest.fixture
def shared(timer: Timer, cpu_timer: Timer) -> WorkTime:
    """Work time of a process in which threads work, too."""
    return WorkTime(timer, cpu_timer)


def test_steps_while_a_thread_works_are_charged_by_cpu_time(
    shared: WorkTime, timer: Timer, cpu_timer: Timer
) -> None:
    account = Account()

    async def main() -> None:
        with shared.charge(account):
            timer.work(1)
            with shared.with_thread_at_work():
                timer.work(1000)  # Waits for the thread, except for 10 ns.
                cpu_timer.work(10)
                await trio.lowlevel.checkpoint()
                timer.work(1000)
                cpu_timer.work(20)
                assert shared.worked_ns(account) == 31
            timer.work(100)
            cpu_timer.work(100)

    run(shared, main)
    assert account.worked_ns == 131


def test_steps_are_charged_by_cpu_time_until_the_last_thread_ends(
    shared: WorkTime, timer: Timer, cpu_timer: Timer
) -> None:
    account = Account()

    async def main() -> None:
        with shared.charge(account), shared.with_thread_at_work():
            with shared.with_thread_at_work():
                cpu_timer.work(1)
            timer.work(1000)
            cpu_timer.work(10)

    run(shared, main)
    assert account.worked_ns == 11


def test_polling_while_a_thread_works_never_reduces_a_charge(
    shared: WorkTime, timer: Timer, cpu_timer: Timer
) -> None:
    account = Account()

    async def main() -> None:
        with shared.charge(account), shared.with_thread_at_work():
            cpu_timer.work(5)
            shared.add_idle(1000)
            cpu_timer.work(10)

    run(shared, main)
    assert account.worked_ns == 10


def test_thread_keeps_its_process_busy(work_time: WorkTime, timer: Timer) -> None:
    async def main() -> None:
        work_time.add(500)
        timer.work(1)

    run(work_time, main)
    assert work_time.busy_ns() == 501


# --------------- The thread for long work: its time is measured, and it runs one function at a time


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Buffer:
    """Represents decompressed bytes."""


def decompress(made: list[weakref.ref[Buffer]]) -> None:
    buffer = Buffer()
    made.append(weakref.ref(buffer))
    raise ValueError("damaged")


def fail(made: list[weakref.ref[Buffer]]) -> None:
    try:
        decompress(made)
    except ValueError as error:
        raise KeyError("rejected") from error


async def test_work_thread_returns_the_result_and_adds_its_time() -> None:
    work_time = WorkTime()
    account = Account()
    with work_time.charge(account):
        assert await WorkThread(work_time).run(lambda: sum(range(100_000))) == 4_999_950_000
    assert account.worked_ns > 0


async def test_work_thread_runs_one_function_at_a_time() -> None:
    thread, running = WorkThread(WorkTime()), threading.Lock()

    def work() -> None:
        assert running.acquire(blocking=False)
        running.release()

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(thread.run, work)


async def test_steps_while_the_thread_works_are_charged_by_cpu_time() -> None:
    work_time, working, done = WorkTime(), threading.Event(), threading.Event()
    real_timer = work_time.step_timer

    def work() -> None:
        working.set()
        assert done.wait(60)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(WorkThread(work_time).run, work)
        while not working.is_set():
            await trio.lowlevel.checkpoint()
        assert work_time.step_timer is time.thread_time_ns
        done.set()
    assert work_time.step_timer is real_timer


async def test_work_thread_with_error_releases_buffers(without_collector: None) -> None:
    made: list[weakref.ref[Buffer]] = []
    with pytest.raises(KeyError) as caught:
        await WorkThread(WorkTime()).run(lambda: fail(made))
    assert [each() for each in made] == [None]
    assert "in decompress" in "".join(traceback.format_exception(caught.value))
