"""How a rate is measured over samples, and how long exceeding a bound must delay.

Owns the arithmetic: N samples of W milliseconds that begin at events, not on a grid, and the
throttle time that follows from a rate. It must never read a clock: ``now_ms`` is an argument, in
whole milliseconds. Invariant: every figure equals that of Kafka's ``SampledStat``, ``Rate`` and
``QuotaUtils`` (3.8: a ring of N+1 samples, purged by their last event), because clients' tests
were written against those figures; a token bucket or a fixed grid gives others.
"""

from __future__ import annotations

import math
from typing import Final

AVERAGE_SAMPLES: Final = 2
AVERAGE_WINDOW_MS: Final = 30_000
"""Kafka's default window of averages."""


class _Sample:
    __slots__ = ("count", "last_event_ms", "start_ms", "value")

    def __init__(self, now_ms: int) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: int) -> None:
        self.start_ms = now_ms
        self.last_event_ms = now_ms
        self.value = 0.0
        self.count = 0


class Samples:
    """The last values recorded, in up to ``samples`` + 1 samples of ``window_ms`` each."""

    __slots__ = ("_current", "_ring", "samples", "window_ms")

    def __init__(self, samples: int, window_ms: int) -> None:
        """Both are at least 1."""
        self.samples = samples
        self.window_ms = window_ms
        self._ring: list[_Sample] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Adds a value, which may be negative to take one back."""
        if not self._ring:
            self._ring.append(_Sample(now_ms))
        sample = self._ring[self._current]
        if now_ms - sample.start_ms >= self.window_ms:
            sample = self._advance(now_ms)
        sample.value += value
        sample.count += 1
        sample.last_event_ms = now_ms

    def _advance(self, now_ms: int) -> _Sample:
        self._current = (self._current + 1) % (self.samples + 1)
        if self._current == len(self._ring):
            self._ring.append(_Sample(now_ms))
        sample = self._ring[self._current]
        sample.reset(now_ms)
        return sample

    def purge(self, now_ms: int) -> None:
        """Empties the samples whose last event is too long ago to count."""
        expires_ms = self.samples * self.window_ms
        for sample in self._ring:
            if now_ms - sample.last_event_ms >= expires_ms:
                sample.reset(now_ms)

    def total(self) -> float:
        """The sum of what is in the samples."""
        return sum(sample.value for sample in self._ring)

    def count(self) -> int:
        """How many values are in the samples."""
        return sum(sample.count for sample in self._ring)

    def oldest_ms(self, now_ms: int) -> int:
        """When the oldest sample began."""
        return min((sample.start_ms for sample in self._ring), default=now_ms)


class Rate:
    """Events or bytes a second."""

    __slots__ = ("_samples",)

    def __init__(self, samples: int, window_ms: int) -> None:
        """Kafka's ``quota.window.num`` and ``quota.window.size.seconds``, the latter in ms."""
        self._samples = Samples(samples, window_ms)

    def record(self, value: float, now_ms: int) -> None:
        """Adds a value; a negative one takes back what was recorded before."""
        self._samples.record(value, now_ms)

    def window_ms(self, now_ms: int) -> int:
        """The time that the rate is an average over: nearly N windows at least, never 0."""
        kept = self._samples
        kept.purge(now_ms)
        elapsed = now_ms - kept.oldest_ms(now_ms)
        missing = kept.samples - 1 - elapsed // kept.window_ms
        if missing > 0:
            elapsed += missing * kept.window_ms
        return max(elapsed, 1)

    def measure(self, now_ms: int) -> float:
        """The rate now."""
        self._samples.purge(now_ms)
        return self._samples.total() / (self.window_ms(now_ms) / 1000)

    def throttle_ms(self, bound: float, now_ms: int, cap_ms: int) -> int:
        """How long to wait until the rate is no longer above ``bound``; 0 if it isn't.

        At most ``cap_ms``, which is what a bound of 0 gives.
        """
        observed = self.measure(now_ms)
        if observed <= bound:
            return 0
        return min(throttle_ms(observed, bound, self.window_ms(now_ms)), cap_ms)


class Average:
    """The average of values recorded in the last minute or so."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples = Samples(AVERAGE_SAMPLES, AVERAGE_WINDOW_MS)

    def record(self, value: float, now_ms: int) -> None:
        """Adds a value."""
        self._samples.record(value, now_ms)

    def measure(self, now_ms: int) -> float:
        """The average now; NaN without values."""
        self._samples.purge(now_ms)
        count = self._samples.count()
        return self._samples.total() / count if count else math.nan


def throttle_ms(observed: float, bound: float, window_ms: int) -> int:
    """The delay after which ``observed``, a rate over ``window_ms``, would have been ``bound``.

    Negative where the rate is below the bound, and ``LONG_MAX`` for a bound of 0.
    """
    if bound == 0:
        return LONG_MAX
    return java_round((observed - bound) / bound * window_ms)


def java_round(value: float) -> int:
    """Halves go up, as in Java; Python's own rounding takes them to the even neighbour."""
    return math.floor(value + 0.5)


LONG_MAX: Final = 2**63 - 1
"""Java's rounding of infinity."""
