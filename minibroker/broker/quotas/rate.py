"""Rates over a sliding window of samples, and throttle times.

Owns the arithmetic: N samples of W milliseconds that start at events, not on a grid, and the
throttle time that follows from a rate. It must never read a clock: ``now_ms`` is an argument, in
integer milliseconds. Invariant: every figure equals that of Kafka's ``SampledStat``, ``Rate`` and
``QuotaUtils`` (3.8: a ring of N+1 samples, purged by their last event); a token bucket or a fixed
grid gives different figures.
"""

from __future__ import annotations

import math
from array import array
from typing import Final, NamedTuple

from minibroker.broker.quotas.types import LONG_MAX

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
