"""How a rate is measured over samples, and how long exceeding a bound must delay.

Owns the arithmetic: N samples of W milliseconds that begin at events, not on a grid, and the
throttle time that follows from a rate. It must never read a clock: ``now_ms`` is an argument, in
whole milliseconds. Invariant: every figure equals that of Kafka's ``SampledStat``, ``Rate`` and
``QuotaUtils`` (3.8: a ring of N+1 samples, purged by their last event), because clients' tests
were written against those figures; a token bucket or a fixed grid gives others.
"""

from __future__ import annotations

import math
from array import array
from typing import Final, NamedTuple

from minibroker.quotas.types import LONG_MAX

AVERAGE_SAMPLES: Final = 2
AVERAGE_WINDOW_MS: Final = 30_000
"""Kafka's default window of averages."""


class Cause(NamedTuple):
    """What a throttle follows from: a rate over some time, and the bound that it is above.

    Of a bucket of tokens: what is in it, over no time.
    """

    rate: float
    span_ms: int
    bound: float


NO_CAUSE: Final = Cause(0.0, 0, 0.0)
"""Of no throttle."""

IN_FLIGHT: Final = 0.25
"""The share of what is free that is kept for what was answered and not recorded yet."""

PROCESSES_MAX: Final = 64
"""Processes that answer requests; each has one at most that it has not recorded yet."""

ROUNDED_OFF: Final = 1e-9
"""A share of a sum: more than millions of additions round off."""


# A sample is three numbers of an array: a broker may keep a hundred thousand addresses' rates, and
# objects would take five times the memory. Doubles hold milliseconds exactly.
_START: Final = 0
_LAST: Final = 1
_SUM: Final = 2
_WIDTH: Final = 3


class Samples:
    """The last values recorded, in up to ``samples`` + 1 samples of ``window_ms`` each."""

    __slots__ = ("_at", "_ring", "samples", "window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        """Both are at least 1."""
        self.samples = samples
        self.window_ms = window_ms
        self._ring = array("d")
        self._at = 0  # where the current sample begins

    def record(self, value: float, now_ms: int) -> None:
        """Adds a value, which may be negative to take one back."""
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
            # Anew each time: an array that grows in place keeps a quarter more than it needs.
            self._ring = self._ring + fresh
        else:
            self._ring[at : at + _WIDTH] = fresh

    def purge(self, now_ms: int) -> None:
        """Empties the samples whose last event is too long ago to count."""
        expired_ms = now_ms - self.samples * self.window_ms
        if min(self._ring[_LAST::_WIDTH], default=now_ms) > expired_ms:
            return  # as nearly always, and found out without a loop
        for at in range(0, len(self._ring), _WIDTH):
            if self._ring[at + _LAST] <= expired_ms:
                self._begin(at, now_ms)

    def total(self) -> float:
        """The sum of what is in the samples."""
        return sum(self._ring[_SUM::_WIDTH])

    def oldest_ms(self, now_ms: int) -> int:
        """When the oldest sample began."""
        return int(min(self._ring[_START::_WIDTH], default=now_ms))


class Rate(Samples):
    """Events or bytes a second; N and W are Kafka's ``quota.window.num`` and, in milliseconds,
    ``quota.window.size.seconds``.
    """

    __slots__ = ()

    def span_ms(self, now_ms: int) -> int:
        """The time that the rate is an average over: nearly N windows at least, never 0."""
        self.purge(now_ms)
        elapsed = now_ms - self.oldest_ms(now_ms)
        missing = self.samples - 1 - elapsed // self.window_ms
        if missing > 0:
            elapsed += missing * self.window_ms
        return max(elapsed, 1)

    def measure(self, now_ms: int) -> float:
        """The rate now."""
        span_ms = self.span_ms(now_ms)
        return self.total() / (span_ms / 1000)

    def throttle_ms(self, bound: float, now_ms: int, cap_ms: int) -> int:
        """How long to wait until the rate is no longer above ``bound``; 0 if it isn't.

        At most ``cap_ms``, which is what a bound of 0 gives.
        """
        observed = self.measure(now_ms)
        if observed <= bound:
            return 0
        return min(throttle_ms(observed, bound, self.span_ms(now_ms)), cap_ms)


class Average:
    """The average of values recorded in the last minute or so."""

    __slots__ = ("_counts", "_values")

    def __init__(self) -> None:
        self._values = Samples(AVERAGE_SAMPLES, AVERAGE_WINDOW_MS)
        self._counts = Samples(AVERAGE_SAMPLES, AVERAGE_WINDOW_MS)

    def record(self, value: float, now_ms: int) -> None:
        """Adds a value."""
        self._values.record(value, now_ms)
        self._counts.record(1, now_ms)

    def measure(self, now_ms: int) -> float:
        """The average now; NaN without values."""
        self._values.purge(now_ms)
        self._counts.purge(now_ms)
        count = self._counts.total()
        return self._values.total() / count if count else math.nan


def capacity(bound: float, samples: int, window_ms: int) -> float:
    """What samples may hold together while their rate is surely not above ``bound``.

    It is an average over nearly N windows at least; and a little less, as sums of doubles in one
    order differ from those in another by their last bits.
    """
    return bound * (shortest_span_ms(samples, window_ms) / 1000) * (1 - ROUNDED_OFF)


def deferred_limit(capacity: float) -> float:
    """How much of what is `free` may be used up where requests are answered before they count."""
    return capacity * (1 - IN_FLIGHT)


def deferred_request_max(capacity: float) -> float:
    """The most that such a request may count for, so that those of all processes are within it."""
    return capacity * IN_FLIGHT / PROCESSES_MAX


def shortest_span_ms(samples: int, window_ms: int) -> int:
    """No rate is an average over less."""
    return max((samples - 1) * window_ms, 1)


def throttle_ms(observed: float, bound: float, span_ms: int) -> int:
    """The delay after which ``observed``, a rate over ``span_ms``, would have been ``bound``.

    Negative where the rate is below the bound, and ``LONG_MAX`` for a bound of 0, as in Java.
    """
    if bound == 0:
        return LONG_MAX
    return java_round((observed - bound) / bound * span_ms)


def java_round(value: float) -> int:
    """Halves go up, as in Java; Python's own rounding takes them to the even neighbour."""
    return math.floor(value + 0.5)
