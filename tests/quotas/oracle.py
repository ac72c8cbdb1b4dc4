"""A ledger that is nothing but the arithmetic of ``quotas.rate``, to hold the shared one against.

Owns rates by quota type and tags in a plain dictionary; knows no memory and no locks.  Invariant:
every figure is computed by `Rate` and `Average` themselves.
"""

from __future__ import annotations

from minibroker.quotas.entity import QuotaType, Tags
from minibroker.quotas.rate import Average, Rate

NOBODY = Tags("", "")


class OracleCounter:
    """One counter."""

    def __init__(self, samples: int, window_ms: int, tags: Tags = NOBODY) -> None:
        self.tags = tags
        self.rate = Rate(samples, window_ms)
        self.average = Average()
        self._bucket: tuple[float, int] | None = None

    def add(self, value: float, now_ms: int) -> None:
        self.rate.record(value, now_ms)

    def record(self, value: float, now_ms: int) -> tuple[float, int]:
        self.rate.record(value, now_ms)
        return self.rate.measure(now_ms), self.rate.span_ms(now_ms)

    def record_with(
        self, value: float, other: OracleCounter, others_value: float, now_ms: int
    ) -> tuple[tuple[float, int], tuple[float, int]]:
        return self.record(value, now_ms), other.record(others_value, now_ms)

    def throttled(self, throttle_ms: int, api_key: int, now_ms: int) -> None:
        del api_key
        self.average.record(throttle_ms, now_ms)

    def tokens(self, quota: float, burst: float, now_ms: int, permits: float) -> float:
        before, since_ms = self._bucket or (burst, now_ms)
        left = min(burst, before + quota * (now_ms - since_ms) / 1000) - permits
        self._bucket = (left, now_ms)
        return left


class OracleLedger:
    """All counters, for ever."""

    def __init__(self, samples: int, window_ms: int) -> None:
        self.samples = samples
        self.window_ms = window_ms
        self.made: dict[tuple[str, Tags], OracleCounter] = {}
        self._bits: dict[int, int] = {}

    def note_set(self, number: int, bits: int) -> int:
        self._bits[number] = self._bits.get(number, 0) | bits
        return self._bits[number]

    def counter(self, kind: str, tags: Tags, now_ms: int) -> OracleCounter:
        del now_ms
        return self.made.setdefault((kind, tags), OracleCounter(self.samples, self.window_ms, tags))

    def counters(self, tags: Tags, now_ms: int) -> tuple[OracleCounter, ...]:
        return tuple(self.counter(kind, tags, now_ms) for kind in QuotaType)
