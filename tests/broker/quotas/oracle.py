"""A ledger that is nothing but the arithmetic of ``quotas.rate``, to hold the shared one against.

Owns rates by quota type and tags in a plain dictionary; knows no memory and no locks.  Invariant:
every figure is computed by `Rate` and `Average` themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

from minibroker.broker.quotas.rate import ALWAYS_MEASURED, Average, Cause, Rate, RateAndSpan
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, QuotaType, Tags

KINDS = tuple(CLIENT_QUOTA_TYPES)
REQUEST = KINDS.index(QuotaType.REQUEST)
NOBODY = Tags("", "")


class OracleCounter:
    """One counter."""

    def __init__(self, samples: int, window_ms: int) -> None:
        self.rate = Rate(samples, window_ms)
        self.average = Average()
        self._bucket: tuple[float, int] | None = None

    def add(self, value: float, now_ms: int) -> None:
        self.rate.record(value, now_ms)

    def record(self, value: float, now_ms: int) -> tuple[float, int]:
        self.rate.record(value, now_ms)
        return self.rate.measure(now_ms), self.rate.span_ms(now_ms)

    def throttled(self, throttle_ms: int, api_key: int, now_ms: int) -> None:
        del api_key
        self.average.record(throttle_ms, now_ms)

    def tokens(self, quota: float, burst: float, now_ms: int, permits: float) -> float:
        before, since_ms = self._bucket or (burst, now_ms)
        left = min(burst, before + quota * (now_ms - since_ms) / 1000) - permits
        self._bucket = (left, now_ms)
        return left


class OracleGroup:
    """The counters of one sharing group."""

    def __init__(self, ledger: OracleLedger, name: str, tags: Tags) -> None:
        self.tags = tags
        self.ordinal = 0
        self._ledger = ledger
        self._name = name

    def counter(self, number: int) -> OracleCounter:
        kind = self._name or KINDS[number]
        made = self._ledger.made
        if (kind, self.tags) not in made:
            made[kind, self.tags] = OracleCounter(self._ledger.samples, self._ledger.window_ms)
        return made[kind, self.tags]

    def add(self, number: int, value: float, now_ms: int) -> None:
        self.counter(number).add(value, now_ms)

    def record(
        self, number: int, value: float, now_ms: int, capacity: float = ALWAYS_MEASURED
    ) -> RateAndSpan | None:
        found = self.counter(number).record(value, now_ms)
        return None if self.counter(number).rate.total() <= capacity else found

    def record_both(
        self, number: int, value: float, percent: float, capacity: Sequence[float], now_ms: int
    ) -> tuple[RateAndSpan, RateAndSpan] | None:
        first, second = self.counter(number), self.counter(REQUEST)
        found = first.record(value, now_ms), second.record(percent, now_ms)
        held = first.rate.total() > capacity[number] or second.rate.total() > capacity[REQUEST]
        return found if held else None

    def defer(self, number: int, limits: Sequence[float]) -> bool:
        held = ((each, self.counter(each).rate.total()) for each in (number, REQUEST))
        return all(total <= limits[each] for each, total in held)

    def record_deferred(self, number: int, value: float, percent: float, now_ms: int) -> None:
        self.add(number, value, now_ms)
        self.add(REQUEST, percent, now_ms)

    def throttled(
        self, number: int, throttle_ms: int, api_key: int, cause: Cause, now_ms: int
    ) -> None:
        del cause
        self.counter(number).throttled(throttle_ms, api_key, now_ms)

    def tokens(self, number: int, quota: float, burst: float, now_ms: int, permits: float) -> float:
        return self.counter(number).tokens(quota, burst, now_ms, permits)


class OracleLedger:
    """All counters, never evicted."""

    def __init__(self, samples: int, window_ms: int) -> None:
        self.samples = samples
        self.window_ms = window_ms
        self.made: dict[tuple[str, Tags], OracleCounter] = {}
        self._bits: dict[int, int] = {}

    def note_set(self, number: int, bits: int) -> int:
        self._bits[number] = self._bits.get(number, 0) | bits
        return self._bits[number]

    def group(self, tags: Tags, now_ms: int) -> OracleGroup:
        del now_ms
        return OracleGroup(self, "", tags)

    def named(self, name: str, now_ms: int) -> OracleGroup:
        del now_ms
        return OracleGroup(self, name, NOBODY)
