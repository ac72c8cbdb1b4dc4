"""The shared clock: its arithmetic on a hand-turned machine clock, and two real processes."""

from __future__ import annotations

import math
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from minibroker.runtime.clock import (
    ADVANCE_MS_MAX,
    RATE_MAX,
    RATE_MIN,
    SETTLE_S,
    SIMULATED_WALL_MS,
    SLOTS,
    Alarms,
    ClockError,
    SharedClock,
    SimulatedClock,
)

PATIENCE_S = 120.0


class Machine:
    """The machine's monotonic clock, turned by hand."""

    def __init__(self, seconds: float = 5000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def clock(machine: Machine) -> SharedClock:
    return SharedClock(real=machine, wall=lambda: 1_000_000.0)


def about(seconds: float) -> Any:
    """But for the last bits."""
    return pytest.approx(seconds, rel=0, abs=1e-9)


def test_clock_starts_at_machine_time(clock: SharedClock, machine: Machine) -> None:
    machine.seconds += 1.5
    state = clock.state()
    assert state.now == clock.now() == clock.current_time() == machine.seconds
    assert (state.rate, state.frozen, state.offset_ms) == (1.0, False, 0.0)
    assert state.wall_ms == clock.wall_ms() == 1_000_001_500


def test_advance_moves_time_and_wall_time_alike(clock: SharedClock, machine: Machine) -> None:
    before = clock.state()
    clock.advance(11_000)
    after = clock.state()
    assert after.now - before.now == about(11)
    assert after.wall_ms - before.wall_ms == 11_000
    assert after.offset_ms == 11_000


@given(st.floats(1, 1e9), st.lists(st.integers(1, 2000), min_size=1, max_size=20))
def test_deadline_is_reached_when_its_time_has_passed_in_parts(
    began: float, parts: list[int]
) -> None:
    clock = SharedClock(real=Machine(began), wall=lambda: 1_000_000.0)
    clock.freeze(True)
    deadline = clock.now() + sum(parts) / 1000
    for part in parts:
        assert clock.now() < deadline
        clock.advance(part)
    assert clock.deadline_to_sleep_time(deadline) == 0.0


def test_rate_bends_time_from_now_on(clock: SharedClock, machine: Machine) -> None:
    machine.seconds += 1
    clock.set_rate(60)
    began = clock.now()
    machine.seconds += 2
    assert clock.now() - began == 120
    assert clock.deadline_to_sleep_time(clock.now() + 30) == pytest.approx(0.5)


def test_frozen_clock_stands_until_released(clock: SharedClock, machine: Machine) -> None:
    clock.set_rate(2)
    clock.freeze(True)
    stood = clock.now()
    machine.seconds += 100
    assert clock.now() == stood
    assert clock.state().frozen
    assert clock.deadline_to_sleep_time(stood + 0.001) == math.inf
    clock.advance(1)
    assert clock.now() == about(stood + 0.001)
    assert clock.deadline_to_sleep_time(stood + 0.001) == 0.0
    clock.freeze(False)
    began = clock.now()
    machine.seconds += 1
    assert clock.now() - began == 2
    assert not clock.state().frozen


def test_rate_set_on_frozen_clock_applies_after_release(
    clock: SharedClock, machine: Machine
) -> None:
    clock.freeze(True)
    clock.set_rate(10)
    stood = clock.now()
    machine.seconds += 1
    assert clock.now() == stood
    assert clock.state().rate == 10
    clock.freeze(False)
    machine.seconds += 1
    assert clock.now() - stood == 10


def test_freezing_takes_effect_ahead_of_every_reader(clock: SharedClock, machine: Machine) -> None:
    """A reader that computes by the old slot while it changes never sees a later time."""
    seen_by_the_old_slot = clock.now() + 0.9 * SETTLE_S
    clock.freeze(True)
    assert clock.now() >= seen_by_the_old_slot


@pytest.mark.parametrize("milliseconds", [-1, -0.001, ADVANCE_MS_MAX + 1, math.inf, math.nan])
def test_invalid_advance_is_rejected(clock: SharedClock, milliseconds: float) -> None:
    before = clock.now()
    with pytest.raises(ClockError, match="never goes back"):
        clock.advance(milliseconds)
    assert clock.now() == before


@pytest.mark.parametrize("rate", [0, -1, RATE_MIN / 2, RATE_MAX * 2, math.inf, math.nan])
def test_invalid_rate_is_rejected(clock: SharedClock, rate: float) -> None:
    with pytest.raises(ClockError, match="freeze it"):
        clock.set_rate(rate)
    assert clock.state().rate == 1.0


turns = st.one_of(
    st.tuples(st.just("pass"), st.floats(0, 1000)),
    st.tuples(st.just("advance"), st.floats(0, 1e9)),
    st.tuples(st.just("rate"), st.floats(RATE_MIN, RATE_MAX)),
    st.tuples(st.just("freeze"), st.booleans()),
)


@given(st.lists(turns, max_size=3 * SLOTS))
def test_time_is_monotonic(history: list[tuple[str, float]]) -> None:
    machine = Machine()
    clock = SharedClock(real=machine, wall=lambda: 0.0)
    act: dict[str, Callable[[float], None]] = {
        "pass": lambda x: setattr(machine, "seconds", machine.seconds + x),
        "advance": clock.advance,
        "rate": clock.set_rate,
        "freeze": lambda x: clock.freeze(bool(x)),
    }
    readings = [clock.state()]
    for kind, amount in history:
        act[kind](amount)
        readings.append(clock.state())
    assert all(a.now <= b.now and a.wall_ms <= b.wall_ms for a, b in pairwise(readings))


def test_dead_writer_leaves_the_table_unchanged(clock: SharedClock) -> None:
    """The next slot is filled and the count not raised: readers go on, the next writer too."""
    before = clock.state()
    slot_bytes = 8 * 8
    next_slot = clock._count[0] + 1
    clock._page[slot_bytes * (1 + next_slot) : slot_bytes * (1 + next_slot) + 8] = b"\xff" * 8
    assert clock.state() == before
    clock.advance(5)
    assert clock.now() == about(before.now + 0.005)


def test_reader_delayed_for_a_ring_of_changes_reads_again() -> None:
    """The machine's clock is read in the middle of a reading: there the writer interferes."""
    machine = Machine()
    intrude: list[Callable[[], None]] = []

    def real() -> float:
        while intrude:
            intrude.pop()()
        return machine.seconds

    clock = SharedClock(real=real, wall=lambda: 0.0)
    before = clock.now()

    def turn_the_ring() -> None:
        for _ in range(SLOTS + 3):
            clock.advance(1000)

    intrude.append(turn_the_ring)
    assert clock.current_time() == about(before + SLOTS + 3)


def test_late_change_does_not_turn_time_back() -> None:
    """The writer is delayed between reading the machine's clock and its change."""
    machine = Machine()
    seen: list[float] = []
    held_up: list[Callable[[], None]] = []

    def real() -> float:
        seconds = machine.seconds
        while held_up:
            held_up.pop()()
        return seconds

    clock = SharedClock(real=real, wall=lambda: 0.0)

    def a_second_passes() -> None:
        machine.seconds += 1
        seen.append(clock.now())

    held_up.append(a_second_passes)
    clock.freeze(True)
    assert clock.now() == clock.state().now >= seen[0]


@pytest.mark.parametrize(
    "turn", [lambda clock: clock.freeze(True), lambda clock: clock.set_rate(0.5)]
)
def test_reader_of_a_later_time_agrees_after_a_late_change(
    turn: Callable[[SharedClock], None],
) -> None:
    """Else a millisecond would have passed for one process and not for the other."""
    machine = Machine()
    ahead: list[float] = []
    seen: list[float] = []

    def real() -> float:
        seconds = machine.seconds
        if ahead:
            machine.seconds += ahead.pop()
            seen.append(machine.seconds)  # as another process reads it by the old slot
        return seconds

    clock = SharedClock(real=real, wall=lambda: 0.0)
    ahead += [0.0, 0.004, 0.003]
    turn(clock)
    assert clock._doubles[8 * (1 + clock._count[0])] >= max(seen)


def test_reader_delayed_during_a_freeze_reads_again() -> None:
    machine = Machine()
    intrude: list[Callable[[], None]] = []

    def real() -> float:
        if intrude:
            intrude.pop()()
            machine.seconds += 5
        return machine.seconds

    clock = SharedClock(real=real, wall=lambda: 0.0)
    began = clock.now()
    intrude.append(lambda: clock.freeze(True))
    assert clock.now() == about(began + SETTLE_S)


def test_constantly_changed_clock_does_not_block_readers(clock: SharedClock) -> None:
    class Restless:
        def __init__(self) -> None:
            self.count = 0

        def __getitem__(self, index: int) -> int:
            self.count += SLOTS
            return self.count

    clock._count = Restless()  # type: ignore[assignment]
    clock.current_time()
    clock.state()


@contextmanager
def forked(main: Callable[[], None]) -> Iterator[None]:
    """`main` in a forked process, killed and reaped at the end whatever happened."""
    pid = os.fork()
    if pid == 0:
        try:
            main()
        finally:
            os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def read_bounded(fd: int) -> bytes:
    assert select.select([fd], [], [], PATIENCE_S)[0], f"nothing within {PATIENCE_S} s"
    return os.read(fd, 100)


@pytest.mark.parametrize("turn", ["advance", "thaw", "hurry"])
def test_wake_up_is_seen_by_other_process(turn: str) -> None:
    """A real process sleeps an hour; the clock is turned here, and one byte wakes its loop."""
    clock = SharedClock()
    if turn == "thaw":
        clock.freeze(True)
    said_read, said_write = os.pipe()
    wake_read, wake_write = os.pipe()

    async def child() -> None:
        began = trio.current_time()
        hours = {"advance": 1.0, "thaw": 0.0, "hurry": 0.001}[turn]
        deadline = began + 0.001 + hours * 3600
        os.write(said_write, b"sleeping")

        async def take_messages() -> None:
            await trio.lowlevel.wait_readable(wake_read)
            os.read(wake_read, 1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_messages)
            await trio.sleep_until(deadline)
        os.write(said_write, f"{trio.current_time() - began:.3f}".encode())

    with forked(lambda: trio.run(child, clock=clock)):
        assert read_bounded(said_read) == b"sleeping"
        if turn == "advance":
            clock.advance(3_600_001)
        elif turn == "thaw":
            clock.freeze(False)
        else:
            clock.set_rate(RATE_MAX)
        os.write(wake_write, b"!")
        assert float(read_bounded(said_read)) >= {"advance": 3600, "thaw": 0, "hurry": 3.6}[turn]
    for fd in (said_read, said_write, wake_read, wake_write):
        os.close(fd)


def test_processes_agree_on_a_frozen_clock() -> None:
    clock = SharedClock()
    clock.freeze(True)
    read_end, write_end = os.pipe()
    with forked(lambda: (os.write(write_end, clock.now().hex().encode()), None)[1]):
        assert float.fromhex(read_bounded(read_end).decode()) == clock.now()
    os.close(read_end)
    os.close(write_end)


def test_two_simulations_stamp_alike() -> None:
    clock = SimulatedClock(MockClock())
    assert (clock.now(), clock.wall_ms()) == (0.0, SIMULATED_WALL_MS)
    clock.advance(1)
    assert clock.wall_ms() == SIMULATED_WALL_MS + 1
    clock.advance(10_000)
    state = clock.state()
    assert state.wall_ms - SIMULATED_WALL_MS == state.offset_ms == 10_001
    with pytest.raises(ClockError):
        clock.advance(-1)


async def test_simulation_obeys_its_clock(autojump_clock: MockClock) -> None:
    clock = SimulatedClock(autojump_clock)
    await trio.sleep(3)
    assert clock.now() == trio.current_time() == pytest.approx(3)
    clock.freeze(True)
    with trio.move_on_after(1000) as scope:
        clock.advance(1_000_000)
        await trio.sleep_forever()
    assert scope.cancelled_caught
    assert clock.state().frozen
    clock.freeze(False)
    await trio.sleep(3)
    assert clock.now() == pytest.approx(1006)


def test_simulated_rate_waits_for_the_thaw() -> None:
    mock = MockClock()
    clock = SimulatedClock(mock)
    clock.freeze(True)
    clock.set_rate(5)
    assert mock.rate == 0
    clock.freeze(False)
    assert mock.rate == clock.state().rate == 5
    with pytest.raises(ClockError):
        clock.set_rate(0)


def test_real_time_is_independent_of_the_controlled_clock() -> None:
    clock = SharedClock()

    async def wait() -> None:
        clock.freeze(True)
        await clock.sleep_real(0.001)
        clock.advance(1000)
        with trio.move_on_after(0) as scope:
            await clock.sleep_real(3600)
        assert scope.cancelled_caught

    trio.run(wait, clock=clock)


async def test_simulation_also_mocks_real_time(autojump_clock: MockClock) -> None:
    await SimulatedClock(autojump_clock).sleep_real(3600)
    assert trio.current_time() == 3600


async def _turns(number: int = 3) -> None:
    for _ in range(number):
        await trio.lowlevel.checkpoint()


async def test_wait_ends_at_its_deadline() -> None:
    real = Machine()
    alarms = Alarms(real)
    over: list[int] = []

    async def wait(seconds: int) -> None:
        await alarms.sleep(seconds)
        over.append(seconds)

    async with trio.open_nursery() as nursery:
        for seconds in (3, 1, 2, 2):
            nursery.start_soon(wait, seconds)
        await _turns()
        assert alarms.seconds_to_next() == 1
        real.seconds += 0.999
        await _turns()
        assert not over
        real.seconds += 1.001
        await _turns()
        assert sorted(over) == [1, 2, 2]
        assert alarms.seconds_to_next() == 1
        real.seconds += 10
        assert alarms.seconds_to_next() == 0
        await _turns()
    assert over[-1] == 3
    assert alarms.seconds_to_next() == math.inf


async def test_loop_that_always_has_work_rings_all_the_same() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_for_ever)
        await Alarms().sleep(0.001)
        nursery.cancel_scope.cancel()


async def _for_ever() -> None:
    while True:
        await trio.lowlevel.checkpoint()


async def test_cancelled_wait_is_removed() -> None:
    real = Machine()
    alarms = Alarms(real)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarms.sleep, 2)
        await _turns()
        with trio.move_on_after(0) as scope:
            await alarms.sleep(1)
        assert scope.cancelled_caught
        assert alarms.seconds_to_next() == 2
        real.seconds += 2
        await _turns()
    assert alarms.seconds_to_next() == math.inf


async def test_wait_may_start_when_another_ends() -> None:
    real = Machine()
    alarms = Alarms(real)

    async def twice() -> None:
        await alarms.sleep(1)
        await alarms.sleep(1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(twice)
        nursery.start_soon(alarms.sleep, 1)
        for _ in range(2):
            await _turns()
            real.seconds += 1
        await _turns()


async def test_waiting_takes_no_thread() -> None:
    alarms = Alarms()
    others = set(threading.enumerate())  # Other tests leave some that wait for work.
    async with trio.open_nursery() as nursery:
        for _ in range(len(others) + 1):
            nursery.start_soon(alarms.sleep, 3600)
        await _turns()
        assert not set(threading.enumerate()) - others
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("seconds", [0, -1])
async def test_no_time_is_over_at_once(seconds: float) -> None:
    await Alarms().sleep(seconds)
