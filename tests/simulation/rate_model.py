"""A second implementation of rates: which connections are admitted when, by the documentation.

Owns a plain version of how Kafka 3.8 measures a rate (samples that start at events, the oldest
overwritten, expired ones emptied) and of the resulting delays; it shares no code with the broker.
Every sample is an object. Invariant: integers of milliseconds throughout, so that broker and model
agree exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

SAMPLES, WINDOW_MS = 11, 1000


@dataclass
class Sample:
    """Events from ``began`` on, and the time of the last one."""

    began: int
    last: int
    events: int = 0


class Model:
    """One rate per second."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.samples: list[Sample] = []
        self.current = 0

    def come(self, now: int) -> int:
        """One comes; how long it must wait."""
        if not self.samples:
            self.samples.append(Sample(now, now))
        elif now - self.samples[self.current].began >= WINDOW_MS:
            self.current = (self.current + 1) % (SAMPLES + 1)
            if self.current == len(self.samples):
                self.samples.append(Sample(now, now))
            else:
                self.samples[self.current] = Sample(now, now)
        sample = self.samples[self.current]
        sample.events += 1
        sample.last = now
        return self._wait(now)

    def _wait(self, now: int) -> int:
        for number, sample in enumerate(self.samples):
            if now - sample.last >= SAMPLES * WINDOW_MS:
                self.samples[number] = Sample(now, now)
        span = now - min(sample.began for sample in self.samples)
        span += max(0, SAMPLES - 1 - span // WINDOW_MS) * WINDOW_MS
        rate = Fraction(sum(sample.events for sample in self.samples) * 1000, max(span, 1))
        if rate <= self.limit:
            return 0
        wait = (rate - self.limit) / self.limit * span
        return min(int(wait + Fraction(1, 2)), WINDOW_MS)


def one_after_the_other(limits: list[int], until_ms: int) -> list[int]:
    """Return the time of each admission if a new connection arrives after each admitted one."""
    models = [Model(limit) for limit in limits]
    now = 0
    admitted: list[int] = []
    while True:
        now += max(model.come(now) for model in models)
        if now > until_ms:
            return admitted
        admitted.append(now)
