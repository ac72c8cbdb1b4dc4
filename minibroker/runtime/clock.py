"""The clock of all processes: monotonic time plus an offset, a rate and a freeze.

It must never know its readers; the machine's clock is read only here. Invariant: in each process
time never goes back, and the wall clock is at a constant distance from `now()`, so that timestamps
and timeouts agree however the clock is changed. Like Kafka's `Time` / `MockTime`, except that one
call changes the clock of all processes at once.

How a change reaches all processes. The page is mapped before the fork. One process (the controller)
writes it, then sends each process any message. Trio reads the clock after every wait for I/O and
before the next one, so any message makes a loop check its deadlines and compute its next sleep by
the changed clock. Nothing needs to be registered.

How a change is never seen half-written. The page is a ring of slots and a count of changes. The
writer fills the next slot, then increments the count; a reader takes the slot that the count names.
A writer that dies before that leaves the count unchanged, so no reader waits for it. A reader whose
slot was replaced while it read the machine's clock reads again, so no slot is torn, and a reading
after the end of its slot is possible only for a reader that was delayed just then.
"""

from __future__ import annotations

import heapq
import math
import mmap
import time
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import trio

if TYPE_CHECKING:
    from collections.abc import Callable

    from trio.testing import MockClock

RATE_MIN: Final = 0.001
RATE_MAX: Final = 1000.0
"""Virtual seconds per real second. A stopped clock is `freeze(True)`, not a rate of 0."""

ADVANCE_MS_MAX: Final = 10 * 366 * 24 * 3600 * 1000
"""Ten years per call: a float still resolves microseconds after many such calls."""

SIMULATED_WALL_MS: Final = 1_704_067_200_000
"""Start of a simulation's wall clock: 2024-01-01T00:00:00Z."""

# A change that slows time down takes effect a little after the real time of the call. Otherwise a
# process that read the old slot just before could have seen a later time than the new slot gives,
# and processes would disagree about which deadlines have passed on a frozen clock. A writer that
# was delayed for longer doubles the margin and writes again.
SETTLE_S: Final = 0.001

# A sum of floats may be too small by its last bits. A deadline that has been reached would then
# seem to be in the future until time passes, which it does not while the clock is frozen.
ROUNDED_OFF: Final = 4

SLOTS: Final = 64
READ_TRIES: Final = 8
_SLOT_DOUBLES: Final = 8  # one cache line: virtual base, real base, speed, rate, frozen
_FIRST_SLOT: Final = _SLOT_DOUBLES  # the first line of the page contains the count
_PAGE_BYTES: Final = mmap.PAGESIZE * -(-(SLOTS + 1) * _SLOT_DOUBLES * 8 // mmap.PAGESIZE)

assert SLOTS & (SLOTS - 1) == 0, "the hot path takes the slot by a mask"


class ClockError(ValueError):
    """A change of the clock that is rejected; the text gives the accepted values."""


@dataclass(frozen=True, slots=True)
class ClockState:
    """One consistent reading. `offset_ms` is the distance of virtual time from real time."""

    rate: float
    frozen: bool
    offset_ms: float
    now: float
    wall_ms: int


class Clock(Protocol):
    """Time as roles use it. `now()` equals `trio.current_time()` in the role's loop."""

    def now(self) -> float:
        """Monotonic virtual seconds, from an arbitrary start."""

    @property
    def epoch_s(self) -> float:
        """Return the seconds to add to `now()` for virtual seconds since 1970."""

    def wall_ms(self) -> int:
        """Virtual milliseconds since 1970, as in record timestamps."""

    def real_us(self) -> int:
        """Real microseconds since 1970, unaffected by changes of the clock: unique unless the
        machine's clock is set back.
        """

    def real_s(self) -> float:
        """Monotonic real seconds, unaffected by changes of the clock, as `sleep_real` uses.

        Simulated time in a simulation.
        """

    async def sleep_real(self, seconds: float) -> None:
        """Wait for real seconds, even if the clock is frozen, e.g. for other programs.

        Simulated time in a simulation.
        """


def now_ms(clock: Clock) -> int:
    """Return the clock's time in whole milliseconds, the unit of quotas and connection rates."""
    return whole_ms(clock.now())


def whole_ms(now: float) -> int:
    """Convert a reading in seconds to whole milliseconds."""
    # Without the margin, a millisecond that has just passed might be missing.
    return int(now * 1000 + 1e-6)


class ControlledClock(Clock, Protocol):
    """A clock that can be changed, for the controller. Only one process may change it."""

    def advance(self, milliseconds: float) -> None:
        """Advance the time. Raises `ClockError` if negative or too much."""

    def freeze(self, frozen: bool) -> None:
        """Stop time, or let it run again at its former rate."""

    def set_rate(self, rate: float) -> None:
        """Set the virtual seconds per real second. Raises `ClockError` out of bounds."""

    def state(self) -> ClockState:
        """Return a consistent reading of the clock."""


class _Slot(NamedTuple):
    virtual_base: float
    real_base: float
    speed: float  # factor used by the hot path: the rate, or 0 when frozen
    rate: float
    frozen: float

    def at(self, real: float) -> float:
        return self.virtual_base + (real - self.real_base) * self.speed


class Alarms(trio.abc.Instrument):
    """Waits in real time, in a loop whose clock may stand still, jump or run at another rate.

    It is among the loop's instruments while any task waits. Invariant: a task is woken in the first
    turn of the loop after its deadline, however busy the loop is, and a wait needs no thread and no
    descriptor, which may be unavailable in a connection storm. The clock asks how long the loop may
    sleep.
    """

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


class SharedClock(trio.abc.Clock):
    """A trio clock on a page shared by all processes that are forked later.

    Pass the same object to `trio.run(..., clock=clock)` in each of them. `real` and `wall` are the
    machine's clocks (seconds); wall time is read once, here, so a step of the machine's wall clock
    (NTP) does not affect a running broker.
    """

    def __init__(
        self,
        real: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._page = mmap.mmap(-1, _PAGE_BYTES)
        whole = memoryview(self._page)
        self._doubles = whole.cast("d")
        self._count = whole[:8].cast("q")
        self._real = real
        self._wall = wall
        self._latest = -math.inf
        self._alarms = Alarms(real)
        started = real()
        self._wall_base_s = wall() - started
        self._publish(_Slot(started, started, 1.0, 1.0, 0.0))

    def start_clock(self) -> None:
        """Do nothing: the page is created before the process."""

    def current_time(self) -> float:
        """Virtual seconds; trio reads them several times per turn of its loop."""
        doubles = self._doubles
        count = self._count[0]
        at = _FIRST_SLOT + (count & (SLOTS - 1)) * _SLOT_DOUBLES
        now = doubles[at] + (self._real() - doubles[at + 1]) * doubles[at + 2]
        if self._count[0] != count:
            now = self._reading()[1]
        if now < self._latest:
            return self._latest
        self._latest = now
        return now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Real seconds until the virtual `deadline`; `inf` when frozen (trio limits it to a day).

        Less if a task waits for real time.
        """
        remaining = deadline - self.current_time()
        if remaining <= 0:
            return 0.0
        # A double is read atomically; a value newer than the time above is more accurate.
        count = self._count[0]
        speed = self._doubles[_FIRST_SLOT + (count & (SLOTS - 1)) * _SLOT_DOUBLES + 2]
        return min(remaining / speed if speed else math.inf, self._alarms.seconds_to_next())

    now = current_time

    @property
    def epoch_s(self) -> float:
        """Return the seconds to add to `now()` for virtual seconds since 1970."""
        return self._wall_base_s

    def wall_ms(self) -> int:
        """Virtual milliseconds since 1970."""
        return int((self._wall_base_s + self.current_time()) * 1000)

    def real_us(self) -> int:
        """Real microseconds since 1970."""
        return int(self._wall() * 1_000_000)

    def real_s(self) -> float:
        """Monotonic real seconds."""
        return self._real()

    async def sleep_real(self, seconds: float) -> None:
        """Wait for real seconds."""
        await self._alarms.sleep(seconds)

    def state(self) -> ClockState:
        """Return rate, freeze, offset and both times, of one slot and one moment."""
        slot, now, real = self._reading()
        now = self._latest = max(self._latest, now)
        return ClockState(
            rate=slot.rate,
            frozen=bool(slot.frozen),
            offset_ms=round((now - real) * 1000, 6),
            now=now,
            wall_ms=int((self._wall_base_s + now) * 1000),
        )

    def advance(self, milliseconds: float) -> None:
        """Advance by at least `milliseconds`, frozen or not."""
        _check_advance(milliseconds)
        slot = self._reading()[0]
        then = slot.virtual_base + milliseconds / 1000
        self._publish(slot._replace(virtual_base=then + ROUNDED_OFF * math.ulp(then)))

    def freeze(self, frozen: bool) -> None:
        """Stop time (a millisecond ahead, see `SETTLE_S`) or let it run again."""
        self._change_speed(self._reading()[0].rate, frozen)

    def set_rate(self, rate: float) -> None:
        """Set the rate; a frozen clock stays frozen and uses it when it runs."""
        _check_rate(rate)
        self._change_speed(rate, bool(self._reading()[0].frozen))

    def _change_speed(self, rate: float, frozen: bool) -> None:
        before = self._reading()[0]
        speed = 0.0 if frozen else rate
        settle_s = SETTLE_S if speed < before.speed else 0.0
        while True:
            real = self._real() + settle_s
            self._publish(_Slot(before.at(real), real, speed, rate, float(frozen)))
            if not settle_s or self._real() < real:
                return
            settle_s *= 2

    def _reading(self) -> tuple[_Slot, float, float]:
        """Return a slot, the virtual time by it, and the real time, of a moment when it was in
        force.

        If several attempts fail, the writer changes the clock faster than this process runs: the
        last reading is slightly off at worst, which the next one corrects; waiting could hang.
        """
        tries = 0
        while True:
            count = self._count[0]
            at = _FIRST_SLOT + (count & (SLOTS - 1)) * _SLOT_DOUBLES
            slot = _Slot._make(self._doubles[at : at + len(_Slot._fields)])
            real = self._real()
            tries += 1
            if self._count[0] == count or tries == READ_TRIES:
                return slot, slot.at(real), real

    def _publish(self, slot: _Slot) -> None:
        count = self._count[0] + 1
        at = _FIRST_SLOT + (count & (SLOTS - 1)) * _SLOT_DOUBLES
        for index, value in enumerate(slot):
            self._doubles[at + index] = value
        # Processors that reorder stores must not show the count before the slot; the system call
        # between them keeps the order (it writes nothing: the page has no file).
        self._page.flush()
        self._count[0] = count


class SimulatedClock:
    """The same interface on a `MockClock`, for a complete broker in one nursery.

    The wall clock starts at `SIMULATED_WALL_MS`, so two runs with one seed have the same
    timestamps.
    """

    def __init__(self, mock: MockClock, wall_base_ms: int = SIMULATED_WALL_MS) -> None:
        self._mock = mock
        self._wall_base_ms = wall_base_ms
        self._running = (mock.rate, mock.autojump_threshold)
        self._frozen = False

    def now(self) -> float:
        """The mock clock's seconds, from 0."""
        return self._mock.current_time()

    @property
    def epoch_s(self) -> float:
        """The constant base."""
        return self._wall_base_ms / 1000

    def real_us(self) -> int:
        """Simulated time in microseconds."""
        return self.wall_ms() * 1000

    def wall_ms(self) -> int:
        """Milliseconds since 1970: the constant base plus `now()`."""
        # Rounded first: 0.001 * n seconds times 1000 may be slightly less than n.
        return self._wall_base_ms + int(round(self.now() * 1000, 6))

    def real_s(self) -> float:
        """Seconds of the mock clock, which also is real time here."""
        return self.now()

    async def sleep_real(self, seconds: float) -> None:
        """Wait for seconds of the mock clock."""
        await trio.sleep(seconds)

    def state(self) -> ClockState:
        """Return the state like `SharedClock.state`; the offset is the time since the start."""
        return ClockState(
            rate=self._running[0],
            frozen=self._frozen,
            offset_ms=self.now() * 1000,
            now=self.now(),
            wall_ms=self.wall_ms(),
        )

    def advance(self, milliseconds: float) -> None:
        """Jump. Trio reads the mock clock in the loop's next turn, as it does a shared one."""
        _check_advance(milliseconds)
        self._mock.jump(milliseconds / 1000)

    def freeze(self, frozen: bool) -> None:
        """Stop the mock clock and its automatic jumps, or restore both."""
        if frozen and not self._frozen:
            self._running = (self._mock.rate, self._mock.autojump_threshold)
        self._frozen = frozen
        self._set_mock(*((0.0, math.inf) if frozen else self._running))

    def set_rate(self, rate: float) -> None:
        """Let the mock clock run by itself."""
        _check_rate(rate)
        self._running = (rate, self._running[1])
        if not self._frozen:
            self._set_mock(*self._running)

    def _set_mock(self, rate: float, autojump_threshold: float) -> None:
        self._mock.rate = rate
        self._mock.autojump_threshold = autojump_threshold


def _check_advance(milliseconds: float) -> None:
    if not 0 <= milliseconds <= ADVANCE_MS_MAX:
        raise ClockError(
            f"can't advance the clock by {milliseconds} ms: time never goes back, and a call "
            f"takes 0 to {ADVANCE_MS_MAX} ms"
        )


def _check_rate(rate: float) -> None:
    if not RATE_MIN <= rate <= RATE_MAX:
        raise ClockError(
            f"can't run the clock at rate {rate}: give {RATE_MIN} to {RATE_MAX} virtual seconds "
            f"a second, or freeze it"
        )
