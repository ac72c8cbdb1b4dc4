"""Rates over a sliding window of samples, throttle times, and counters of rates in shared memory.

Owns the arithmetic (N samples of W milliseconds that start at events, not on a grid, and the
throttle time that follows from a rate), and the order of stores in the counters of one sharing
group. The ledger decides where a group is stored and which process may write. It must never know a
bound or a request, or read a clock: ``now_ms`` is an argument, in integer milliseconds. Invariants:
every figure equals that of Kafka's ``SampledStat``, ``Rate`` and ``QuotaUtils`` (3.8: a ring of N+1
samples, purged by their last event); a token bucket or a fixed grid gives different figures. While
a process has deferred a record, only other deferred records are written; a process that is killed
between two stores leaves a counter consistent, or in a state that the next process repairs: every
store is one aligned word (``Struct.pack_into`` clears the words first, so nothing is written with
it), and a sample is filled and dated before it becomes the current one.
Kafka's ``Sensor`` with a ``Rate``, a ``TokenBucket`` and an ``Avg``.

Each request touches as little memory as possible, because with ten thousand groups none of it is in
the processor's caches; and it executes as little code as possible, because the code is in no cache
either: consecutive words are read by one call of `struct`.
"""

from __future__ import annotations

import math
from array import array
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, lockf
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, LONG_MAX, QuotaType

if TYPE_CHECKING:
    from collections.abc import Sequence
    from mmap import mmap

    from minibroker.broker.quotas.types import Tags

AVERAGE_SAMPLES: Final = 2
AVERAGE_WINDOW_MS: Final = 30_000
"""Kafka's default window of averages."""


class Cause(NamedTuple):
    """The cause of a throttle: a rate over a span, and the bound that it exceeds.

    For a token bucket, the remaining tokens and a span of 0.
    """

    rate: float
    span_ms: int
    bound: float


NO_CAUSE: Final = Cause(0.0, 0, 0.0)
"""The cause if there is no throttle."""

IN_FLIGHT: Final = 0.25
"""The share of the capacity that is reserved for deferred records."""

PROCESSES_MAX: Final = 64
"""Processes that execute requests; each has at most one deferred record."""

ROUNDED_OFF: Final = 1e-9
"""Relative rounding error of a sum; millions of additions have less."""


# A sample is three numbers of an array: a broker may keep a hundred thousand addresses' rates, and
# objects would take five times the memory. Doubles hold milliseconds exactly.
_START: Final = 0
_LAST: Final = 1
_SUM: Final = 2
_WIDTH: Final = 3


class Samples:
    """The last recorded values, in up to ``samples`` + 1 samples of ``window_ms`` each."""

    __slots__ = ("_at", "_ring", "samples", "window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        """Both are at least 1."""
        self.samples = samples
        self.window_ms = window_ms
        self._ring = array("d")
        self._at = 0  # offset of the current sample

    def record(self, value: float, now_ms: int) -> None:
        """Add a value; a negative one takes a recorded value back."""
        if not self._ring:
            self._begin(0, now_ms)
        elif now_ms - self._ring[self._at + _START] >= self.window_ms:
            self._at = (self._at + _WIDTH) % ((self.samples + 1) * _WIDTH)
            self._begin(self._at, now_ms)
        ring, at = self._ring, self._at
        ring[at + _SUM] += value
        ring[at + _LAST] = now_ms

    def _begin(self, at: int, now_ms: int) -> None:
        fresh = array("d", (now_ms, now_ms, 0))
        if at == len(self._ring):
            # A new array: one that grows in place over-allocates by a quarter.
            self._ring = self._ring + fresh
        else:
            self._ring[at : at + _WIDTH] = fresh

    def purge(self, now_ms: int) -> None:
        """Reset the samples whose last event has expired."""
        expired_ms = now_ms - self.samples * self.window_ms
        if min(self._ring[_LAST::_WIDTH], default=now_ms) > expired_ms:
            return  # the usual case, decided without a loop
        for at in range(0, len(self._ring), _WIDTH):
            if self._ring[at + _LAST] <= expired_ms:
                self._begin(at, now_ms)

    def total(self) -> float:
        """Return the sum of all samples."""
        return sum(self._ring[_SUM::_WIDTH])

    def oldest_ms(self, now_ms: int) -> int:
        """Return the start of the oldest sample."""
        return int(min(self._ring[_START::_WIDTH], default=now_ms))


class Rate(Samples):
    """Rate per second; N is Kafka's ``quota.window.num``, and W its
    ``quota.window.size.seconds`` in milliseconds.
    """

    __slots__ = ()

    def span_ms(self, now_ms: int) -> int:
        """Return the window of the rate: at least nearly N samples, never 0."""
        self.purge(now_ms)
        elapsed = now_ms - self.oldest_ms(now_ms)
        missing = self.samples - 1 - elapsed // self.window_ms
        if missing > 0:
            elapsed += missing * self.window_ms
        return max(elapsed, 1)

    def measure(self, now_ms: int) -> float:
        """Return the current rate."""
        span_ms = self.span_ms(now_ms)
        return self.total() / (span_ms / 1000)

    def throttle_ms(self, bound: float, now_ms: int, cap_ms: int) -> int:
        """Return the time until the rate is at most ``bound``; 0 if it is.

        At most ``cap_ms``, which is also the result for a bound of 0.
        """
        observed = self.measure(now_ms)
        if observed <= bound:
            return 0
        return min(throttle_ms(observed, bound, self.span_ms(now_ms)), cap_ms)


class Average:
    """The average of the values of about the last minute."""

    __slots__ = ("_counts", "_values")

    def __init__(self) -> None:
        self._values = Samples(AVERAGE_SAMPLES, AVERAGE_WINDOW_MS)
        self._counts = Samples(AVERAGE_SAMPLES, AVERAGE_WINDOW_MS)

    def record(self, value: float, now_ms: int) -> None:
        """Add a value."""
        self._values.record(value, now_ms)
        self._counts.record(1, now_ms)

    def measure(self, now_ms: int) -> float:
        """Return the current average; NaN without values."""
        self._values.purge(now_ms)
        self._counts.purge(now_ms)
        count = self._counts.total()
        return self._values.total() / count if count else math.nan


def capacity(bound: float, samples: int, window_ms: int) -> float:
    """Return the largest sum of samples whose rate is certainly at most ``bound``.

    The window is nearly N samples at least. The result is reduced by the rounding error, because
    sums of doubles depend on their order.
    """
    return bound * (shortest_span_ms(samples, window_ms) / 1000) * (1 - ROUNDED_OFF)


def deferred_limit(capacity: float) -> float:
    """Return the largest sum at which a record may be deferred."""
    return capacity * (1 - IN_FLIGHT)


def deferred_request_max(capacity: float) -> float:
    """Return the most that one deferred record may add, so that those of all processes fit."""
    return capacity * IN_FLIGHT / PROCESSES_MAX


def shortest_span_ms(samples: int, window_ms: int) -> int:
    """Return the shortest window of a rate."""
    return max((samples - 1) * window_ms, 1)


def throttle_ms(observed: float, bound: float, span_ms: int) -> int:
    """Return the delay after which ``observed``, a rate over ``span_ms``, would equal ``bound``.

    Negative if the rate is below the bound, and ``LONG_MAX`` for a bound of 0, as in Java.
    """
    if bound == 0:
        return LONG_MAX
    return java_round((observed - bound) / bound * span_ms)


def java_round(value: float) -> int:
    """Round half up, as in Java; Python rounds half to even."""
    return math.floor(value + 0.5)


WORD: Final = 8
"""Bytes of one store."""

COUNTERS: Final = len(CLIENT_QUOTA_TYPES)
"""Number of counters of a group."""

# Words of a group before its counters.
DIGEST, ORDINAL = range(2)
"""Hash of the group, and the order of its last record, as integers; see `CounterGroup.ordinal`."""

MOST, CURRENT = range(2)
"""Words of each counter.

``CURRENT`` is the position of its current sample, in bytes from the start of the group. ``MOST`` is
an upper bound of the sum of its samples: it contains everything that was added, and some of what
has expired since samples were last read. Only if it is too large are samples read. It is a single
word, so reads without the lock are consistent.
"""
GROUP_HEAD: Final = ORDINAL + 1
PLACE: Final = 2
_MOST: Final = tuple(GROUP_HEAD + PLACE * number + MOST for number in range(COUNTERS))
"""Position of ``MOST`` of each counter; ``CURRENT`` follows."""

# Bytes of a slot that serve as locks: holding both is exclusive.
DEFERRED: Final = 1
"""The lock that all deferred records share."""
LOCKED: Final = 2
"""Number of these bytes."""

ORDINALS_PER_MS: Final = 1000
"""Ordinals of different groups are nearly in the order of time."""

# Words of a counter: its head, and a ring of samples.
CHECK, FIRST, OLDEST = range(3)
"""``FIRST`` is the position of the oldest sample that counts, in bytes like ``CURRENT``.

``OLDEST`` is its start, valid until the time in ``CHECK``. Samples follow each other, so all from
the oldest to the current one count, and no others.
"""
HEAD: Final = 3

START, TOTAL, LAST = range(3)
"""Words of a sample: its start, its sum, and the time of its last event.

A sample expires a window after its last event, so ``LAST`` is stored last.
"""
SAMPLE: Final = 3
SAMPLE_BYTES: Final = SAMPLE * WORD

# Words stored separately: throttles, the token bucket, and the ring of throttle times.
THROTTLED, DELAY, AVERAGE_AT, TOKENS, TOKENS_MS = range(5)
"""Start and duration of the last throttle; tokens in the bucket, and the time of that."""
ASIDE: Final = 5
AVERAGE_RING: Final = AVERAGE_SAMPLES + 1
ASIDE_WORDS: Final = ASIDE + 4 * AVERAGE_RING

_HEAD: Final = Struct("2Q" + "dQ" * COUNTERS).unpack_from
_COUNTER: Final = Struct("dQd").unpack_from
_SAMPLE: Final = Struct("3d").unpack_from

RateAndSpan = tuple[float, int]
"""A rate per second, and the time over which it is averaged, in ms."""

_REQUEST: Final = CLIENT_QUOTA_TYPES.index(QuotaType.REQUEST)

_HEAD_OF_TWO: Final = tuple(
    Struct(
        f"Q{(_MOST[number] - 1) * WORD}xd{(_MOST[_REQUEST] - _MOST[number] - 1) * WORD}xd"
    ).unpack_from
    for number in range(_REQUEST)
)
"""For each counter before that of request time: the hash, and the bounds of both sums."""

ALWAYS_MEASURED: Final = -math.inf
"""A capacity that every sum exceeds, so the rate is always computed."""


def fresh_places(offsets: Sequence[int], ring: int) -> bytes:
    """Return the words ``MOST`` and ``CURRENT`` of unused counters.

    Each seems to have been in its last sample forever, so that the first record starts the first
    sample.
    """
    return b"".join(Struct("dQ").pack(0.0, _last_sample(at, ring)) for at in offsets)


def fresh_counter(at: int, ring: int) -> bytes:
    """Return the words of an unused counter."""
    samples = (-math.inf, 0.0, -math.inf) * ring
    return Struct(f"dQd{SAMPLE * ring}d").pack(0.0, _last_sample(at, ring), 0.0, *samples)


def _last_sample(at: int, ring: int) -> int:
    return at + (HEAD + SAMPLE * (ring - 1)) * WORD


def fresh_aside() -> list[float]:
    """Return the separate words of an unused counter."""
    words = [0.0] * ASIDE_WORDS
    words[THROTTLED] = -math.inf
    words[TOKENS] = words[TOKENS_MS] = math.inf
    words[ASIDE + AVERAGE_RING : ASIDE + 3 * AVERAGE_RING] = [math.inf] * (2 * AVERAGE_RING)
    return words


def span(oldest_ms: int, now_ms: int, samples: int, window_ms: int) -> int:
    """Return the result of `Rate.span_ms` for an oldest sample."""
    elapsed = now_ms - oldest_ms
    missing = samples - 1 - elapsed // window_ms
    if missing > 0:
        elapsed += missing * window_ms
    return elapsed if elapsed > 0 else 1


class CounterMemory(Protocol):
    """The part of `ledger.QuotaLedger` that a group uses."""

    samples: int
    window_ms: int
    lasting_ms: int
    span_min_ms: int
    lock_fd: int
    has_one_recorder: bool
    memory: mmap
    doubles: memoryview[float]
    integers: memoryview[int]
    offsets: tuple[int, ...]
    asides: tuple[int, ...]

    def place(self, name: str, tags: Tags, now_ms: int) -> tuple[int, int]: ...

    def next_sample(self, number: int, place: int) -> int: ...

    def totals(self, at: int) -> tuple[float, ...]: ...

    def unlock(self, at: int) -> None: ...

    def note_throttle(
        self, digest: int, api_key: int, throttle_ms: int, cause: Cause, now_ms: int
    ) -> None: ...


class CounterGroup:
    """The counters of one sharing group; several objects may refer to the same group.

    A counter is identified by the number of its quota type.
    """

    __slots__ = ("base", "digest", "ledger", "name", "ordinal", "tags")

    def __init__(self, ledger: CounterMemory, name: str, tags: Tags, now_ms: int) -> None:
        self.ledger = ledger
        self.name = name
        self.tags = tags
        self.ordinal = 0
        """Position of this process's last record among the records of all processes.

        It is assigned with the lock held; times are not: the process that reads the clock first may
        record last.
        """
        self.digest, self.base = ledger.place(name, tags, now_ms)

    def enter(self, now_ms: int) -> tuple[Any, ...]:
        """Lock the slot, which is another one if the group was evicted and added again.

        Return the words before its counters.
        """
        ledger = self.ledger
        while True:
            base = self.base
            if ledger.lock_fd >= 0:
                lockf(ledger.lock_fd, LOCK_EX, LOCKED, base)
            head = _HEAD(ledger.memory, base)
            if head[DIGEST] == self.digest:
                ordinal = now_ms * ORDINALS_PER_MS
                if head[ORDINAL] >= ordinal:
                    ordinal = head[ORDINAL] + 1
                self.ordinal = ordinal
                ledger.integers[base // WORD + ORDINAL] = ordinal
                return head
            ledger.unlock(base)
            _, self.base = ledger.place(self.name, self.tags, now_ms)

    def leave(self) -> None:
        """Unlock the slot."""
        ledger = self.ledger
        if ledger.lock_fd >= 0:
            lockf(ledger.lock_fd, LOCK_UN, LOCKED, self.base)

    def defer(self, number: int, limits: Sequence[float]) -> bool:
        """Try to let `record_deferred` add values to this counter and request time later.

        If this returns True, both sums are small enough, and until then only other deferred records
        are written; a process that alone records requests locks the group at once.
        Access no group of this process before that: a process's own locks do not exclude it.
        """
        ledger, base = self.ledger, self.base
        if ledger.lock_fd < 0:
            pass
        elif ledger.has_one_recorder:
            lockf(ledger.lock_fd, LOCK_EX, LOCKED, base)
        else:
            lockf(ledger.lock_fd, LOCK_SH, 1, base + DEFERRED)
        digest, most, most_time = _HEAD_OF_TWO[number](ledger.memory, base)
        if most <= limits[number] and most_time <= limits[_REQUEST] and digest == self.digest:
            return True
        self.leave()
        return False

    def record_deferred(self, number: int, value: float, percent: float, now_ms: int) -> None:
        """Add deferred values to both counters.

        They get no ordinal, because they are in no activity event.
        """
        ledger, base = self.ledger, self.base  # Unchanged while any record is deferred.
        lock_fd, memory, doubles = ledger.lock_fd, ledger.memory, ledger.doubles
        if lock_fd >= 0 and not ledger.has_one_recorder:
            lockf(lock_fd, LOCK_EX, DEFERRED, base)
        try:
            head = _HEAD(memory, base)
            for each, added in ((number, value), (_REQUEST, percent)):
                # As ``_add``, which would take longer.
                at = _MOST[each]
                place = base + head[at + 1]
                start, total, _ = _SAMPLE(memory, place)
                if now_ms - start < ledger.window_ms:
                    doubles[base // WORD + at] = head[at] + added
                    sample = place // WORD
                    doubles[sample + TOTAL] = total + added
                    doubles[sample + LAST] = now_ms
                else:
                    self._begin(head[at + 1], head[at], each, added, now_ms)
        finally:
            if lock_fd >= 0:
                lockf(lock_fd, LOCK_UN, LOCKED, base)

    def add(self, number: int, value: float, now_ms: int) -> None:
        head = self.enter(now_ms)
        try:
            self._add(head, number, value, now_ms)
        finally:
            self.leave()

    def record(
        self, number: int, value: float, now_ms: int, capacity: float = ALWAYS_MEASURED
    ) -> RateAndSpan | None:
        """Add a value, negative to take one back; return the rate with it, and its span.

        Return None if the samples are within ``capacity``, which is faster than computing the rate.
        """
        head = self.enter(now_ms)
        try:
            if self._add(head, number, value, now_ms) <= capacity:
                return None
            return self._rate(number, now_ms)
        finally:
            self.leave()

    def record_both(
        self, number: int, value: float, percent: float, capacity: Sequence[float], now_ms: int
    ) -> tuple[RateAndSpan, RateAndSpan] | None:
        """Record in a counter and in request time, with one lock.

        ``capacity`` is given for each number; None if the sum of both is within it.
        """
        head = self.enter(now_ms)
        try:
            most = self._add(head, number, value, now_ms)
            most_time = self._add(head, _REQUEST, percent, now_ms)
            if most <= capacity[number] and most_time <= capacity[_REQUEST]:
                return None
            return self._rate(number, now_ms), self._rate(_REQUEST, now_ms)
        finally:
            self.leave()

    def _add(self, head: tuple[Any, ...], number: int, value: float, now_ms: int) -> float:
        """Add a value; return an upper bound of the sum of all samples."""
        ledger = self.ledger
        at = _MOST[number]
        most: float = head[at]
        place = self.base + head[at + 1]
        start, total, _ = _SAMPLE(ledger.memory, place)
        if now_ms - start >= ledger.window_ms:
            return self._begin(head[at + 1], most, number, value, now_ms)
        # A process killed between the stores leaves ``MOST`` too large.
        doubles, sample, bound = ledger.doubles, place // WORD, self.base // WORD + at
        if value >= 0:
            most += value
            doubles[bound] = most
        else:
            most -= max(total, 0.0) - max(total + value, 0.0)
        doubles[sample + TOTAL] = total + value
        doubles[sample + LAST] = now_ms
        if value < 0:
            doubles[bound] = most
        return most

    def _begin(self, current: int, most: float, number: int, value: float, now_ms: int) -> float:
        """Start the next sample with a value; return the new bound of the sum.

        It counts once it is the current one; otherwise the next process that starts a sample starts
        it there.
        """
        ledger, base = self.ledger, self.base
        memory, at = ledger.memory, base + ledger.offsets[number]
        following = ledger.next_sample(number, current)
        _, first, _ = _COUNTER(memory, at)
        doubles, integers = ledger.doubles, ledger.integers
        if following == first:  # The oldest sample is overwritten.
            doubles[at // WORD + CHECK] = 0.0
            integers[at // WORD + FIRST] = ledger.next_sample(number, following)
        sample = (base + following) // WORD
        doubles[sample + START] = now_ms
        doubles[sample + TOTAL] = value
        doubles[sample + LAST] = now_ms
        if value > 0:
            most += value
        bound = base // WORD + _MOST[number]
        doubles[bound] = most
        integers[bound + CURRENT - MOST] = following
        return most

    def _rate(self, number: int, now_ms: int) -> RateAndSpan:
        ledger, base = self.ledger, self.base
        memory, at = ledger.memory, base + ledger.offsets[number]
        check, _, oldest = _COUNTER(memory, at)
        if now_ms >= check:
            oldest = self._pass_over(number, now_ms)
        totals = ledger.totals(at)
        ledger.doubles[base // WORD + _MOST[number]] = _most(totals)
        span_ms = now_ms - int(oldest)
        if span_ms < ledger.span_min_ms:
            span_ms = span(now_ms - span_ms, now_ms, ledger.samples, ledger.window_ms)
        return sum(totals) / (span_ms / 1000), span_ms

    def _pass_over(self, number: int, now_ms: int) -> float:
        """Reset expired samples, up to the first valid one, and return its start.

        Kafka would also date them again, which makes no difference: the current one is older.
        """
        ledger, base = self.ledger, self.base
        memory, at = ledger.memory, base + ledger.offsets[number]
        doubles = ledger.doubles
        _, first, _ = _COUNTER(memory, at)
        while True:
            start, _, last = _SAMPLE(memory, base + first)
            if now_ms - last < ledger.lasting_ms:
                break
            doubles[(base + first) // WORD + TOTAL] = 0.0
            first = ledger.next_sample(number, first)
        counter = at // WORD
        ledger.integers[counter + FIRST] = first
        doubles[counter + OLDEST] = start
        doubles[counter + CHECK] = last + ledger.lasting_ms
        oldest: float = start
        return oldest

    def throttled(
        self, number: int, throttle_ms: int, api_key: int, cause: Cause, now_ms: int
    ) -> None:
        """Record the start of a throttle, as the last one and in the average."""
        ledger, ring = self.ledger, AVERAGE_RING
        doubles = ledger.doubles
        self.enter(now_ms)
        at = self.base // WORD + ledger.asides[number]
        try:
            first = at + ASIDE
            n = int(doubles[at + AVERAGE_AT])
            start = doubles[first + ring + n]
            if start == math.inf or now_ms - start >= AVERAGE_WINDOW_MS:
                if start < math.inf:
                    n = (n + 1) % ring
                doubles[first + 3 * ring + n] = 0.0
                doubles[first + n] = 0.0
                doubles[first + ring + n] = now_ms
                doubles[first + 2 * ring + n] = now_ms
                doubles[at + AVERAGE_AT] = n
            doubles[first + 2 * ring + n] = now_ms
            doubles[at + DELAY] = throttle_ms
            doubles[at + THROTTLED] = now_ms
            doubles[first + 3 * ring + n] += 1
            doubles[first + n] += throttle_ms
        finally:
            self.leave()
        ledger.note_throttle(self.digest | number, api_key, throttle_ms, cause, now_ms)

    def tokens(self, number: int, quota: float, burst: float, now_ms: int, permits: float) -> float:
        """Fill a bucket of ``burst`` tokens at ``quota`` per second, and take ``permits``.

        Return the remaining tokens, which may be negative.
        """
        ledger = self.ledger
        doubles = ledger.doubles
        self.enter(now_ms)
        at = self.base // WORD + ledger.asides[number]
        try:
            before, since = doubles[at + TOKENS], doubles[at + TOKENS_MS]
            filled = burst if before == math.inf else before + quota * (now_ms - since) / 1000
            left = min(burst, filled) - permits
            # The time first: a process killed in between adds tokens late, never twice.
            doubles[at + TOKENS_MS] = now_ms
            doubles[at + TOKENS] = left
            return left
        finally:
            self.leave()


def _most(totals: Sequence[float]) -> float:
    """What samples may hold, for one from which more was taken back than is in it ends, too."""
    return sum(totals) if min(totals) >= 0 else sum(max(each, 0.0) for each in totals)
