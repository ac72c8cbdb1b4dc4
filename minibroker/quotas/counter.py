"""One counter of the shared ledger: what is recorded in it, and how that comes about word by word.

Owns the order of the stores; where a counter lies and who may write there now is the ledger's, the
figures are those of ``quotas.rate``.  It must never know a bound, a clock or a request.  Invariant:
whoever is killed between two stores leaves a counter that the next one repairs or finds whole:
every store is of one aligned word, a sample is emptied before it is dated, and dated last by what
makes it count as old.  Kafka's ``Sensor`` with a ``Rate``, a ``TokenBucket`` and an ``Avg``.

What every request does is written out here: a call or a slice costs as much as the lock.
"""

from __future__ import annotations

import math
from fcntl import LOCK_EX, LOCK_UN, lockf
from typing import TYPE_CHECKING, Final

from minibroker.quotas.rate import AVERAGE_SAMPLES, AVERAGE_WINDOW_MS

if TYPE_CHECKING:
    from minibroker.quotas.entity import Tags
    from minibroker.quotas.ledger import Ledger

WORD: Final = 8
"""Bytes of what is stored at once."""

# Words of a counter: its head, the rate's ring (totals, starts, last events), the ring of the
# throttle times.
LAST, THROTTLED, AT, AVERAGE_AT, TOKENS, TOKENS_MS = range(6)
OLDEST, CHECK = 6, 7
"""The oldest sample's start, which holds until the time beside it; 0 if it has to be looked up.

Another sample that begins anew changes neither: it is none of the oldest, and lasts longer.
"""
DELAY: Final = 8
"""The throttle that began at the time in ``THROTTLED``."""
HEAD: Final = 9
AVERAGE_RING: Final = AVERAGE_SAMPLES + 1

RateAndSpan = tuple[float, int]
"""A rate a second, and the time that it is an average over."""


def fresh(ring: int) -> list[float]:
    """The words of a counter that nobody has used."""
    words = [0.0] * (HEAD + 3 * ring + 4 * AVERAGE_RING)
    words[LAST] = words[THROTTLED] = -math.inf
    words[TOKENS] = words[TOKENS_MS] = math.inf
    for at, size in ((HEAD, ring), (HEAD + 3 * ring, AVERAGE_RING)):
        words[at + size : at + 3 * size] = [math.inf] * (2 * size)
    return words


def span(oldest_ms: float, now_ms: int, samples: int, window_ms: int) -> int:
    """What `Rate.span_ms` gives for an oldest sample; infinity stands for none."""
    elapsed = now_ms - int(oldest_ms) if oldest_ms < math.inf else 0
    missing = samples - 1 - elapsed // window_ms
    if missing > 0:
        elapsed += missing * window_ms
    return elapsed if elapsed > 0 else 1


class Group:
    """Where the counters of one sharing group lie; any number of these may stand for the same."""

    __slots__ = ("digest", "ledger", "name", "slot", "tags")

    def __init__(self, ledger: Ledger, name: str, tags: Tags, now_ms: int) -> None:
        self.ledger = ledger
        self.name = name
        self.tags = tags
        self.digest, self.slot = ledger.place(name, tags, now_ms)

    def enter(self, now_ms: int) -> int:
        """Locks the slot, which is another one if the group was given up meanwhile; its base."""
        ledger = self.ledger
        while True:
            slot = self.slot
            if ledger.lock_fd >= 0:
                lockf(ledger.lock_fd, LOCK_EX, 1, slot)
            if ledger.hashes[slot] == self.digest:
                return ledger.slots_at + slot * ledger.words
            ledger.unlock(slot)
            _, self.slot = ledger.place(self.name, self.tags, now_ms)

    def leave(self) -> None:
        """Unlocks it."""
        ledger = self.ledger
        if ledger.lock_fd >= 0:
            lockf(ledger.lock_fd, LOCK_UN, 1, self.slot)


class Counter:
    """One counter of a group, in any processes."""

    __slots__ = ("_group", "_offset")

    def __init__(self, group: Group, offset: int) -> None:
        """``offset`` is where it begins among the words of the group."""
        self._group = group
        self._offset = offset

    @property
    def tags(self) -> Tags:
        """Whose it is."""
        return self._group.tags

    @property
    def place(self) -> int:
        """Where its words are now."""
        return self._group.ledger.base(self._group.slot) + self._offset

    def add(self, value: float, now_ms: int) -> None:
        """Adds a value."""
        group = self._group
        base = group.enter(now_ms)
        try:
            self._add(base + self._offset, value, now_ms)
        finally:
            group.leave()

    def record(self, value: float, now_ms: int) -> RateAndSpan:
        """Adds a value, which may be negative to take one back; the rate with it, and its span."""
        group = self._group
        base = group.enter(now_ms)
        try:
            return self._record(base + self._offset, value, now_ms)
        finally:
            group.leave()

    def record_with(
        self, value: float, other: Counter, others_value: float, now_ms: int
    ) -> tuple[RateAndSpan, RateAndSpan]:
        """The same for two counters, which takes one lock if they are of the same group."""
        group = self._group
        if other._group is not group:
            return self.record(value, now_ms), other.record(others_value, now_ms)
        base = group.enter(now_ms)
        try:
            return (
                self._record(base + self._offset, value, now_ms),
                self._record(base + other._offset, others_value, now_ms),
            )
        finally:
            group.leave()

    def _record(self, at: int, value: float, now_ms: int) -> RateAndSpan:
        ledger = self._group.ledger
        doubles = ledger.doubles
        self._add(at, value, now_ms)
        if now_ms >= doubles[at + CHECK]:
            self._look_through(at, now_ms)
        total = sum(ledger.read_ring(ledger.memory, (at + HEAD) * WORD))
        span_ms = span(doubles[at + OLDEST], now_ms, ledger.samples, ledger.window_ms)
        return total / (span_ms / 1000), span_ms

    def _add(self, at: int, value: float, now_ms: int) -> None:
        ledger = self._group.ledger
        doubles, ring = ledger.doubles, ledger.ring
        n = int(doubles[at + AT])
        here = at + HEAD + n
        start = doubles[here + ring]
        if now_ms - start < ledger.window_ms and start < math.inf:
            doubles[here + 2 * ring] = now_ms
        else:
            if start < math.inf:
                n = (n + 1) % ring
                here = at + HEAD + n
            if doubles[here + ring] <= doubles[at + OLDEST]:
                doubles[at + CHECK] = 0
            _empty(doubles, here, ring, now_ms)
            doubles[at + AT] = n
        doubles[at + LAST] = now_ms
        doubles[here] += value

    def _look_through(self, at: int, now_ms: int) -> None:
        """Purges, and notes the oldest sample and when there may be something to purge again."""
        ledger = self._group.ledger
        doubles, ring = ledger.doubles, ledger.ring
        first = at + HEAD
        lasts_at = (first + 2 * ring) * WORD
        doubles[at + CHECK] = 0
        expires_ms = ledger.samples * ledger.window_ms
        lasts = ledger.read_ring(ledger.memory, lasts_at)
        earliest = min(lasts)
        if now_ms - earliest >= expires_ms:
            for n, last in enumerate(lasts):
                if now_ms - last >= expires_ms:
                    _empty(doubles, first + n, ring, now_ms)
            earliest = min(ledger.read_ring(ledger.memory, lasts_at))
        doubles[at + OLDEST] = min(ledger.read_ring(ledger.memory, (first + ring) * WORD))
        doubles[at + CHECK] = earliest + expires_ms

    def throttled(self, throttle_ms: int, api_key: int, now_ms: int) -> None:
        """A throttle begins: it is the last one, and counts for their average."""
        ledger, ring = self._group.ledger, AVERAGE_RING
        doubles = ledger.doubles
        at = self._group.enter(now_ms) + self._offset
        try:
            first = at + ledger.average_at
            n = int(doubles[at + AVERAGE_AT])
            start = doubles[first + ring + n]
            if start == math.inf or now_ms - start >= AVERAGE_WINDOW_MS:
                if start < math.inf:
                    n = (n + 1) % ring
                doubles[first + 3 * ring + n] = 0.0
                _empty(doubles, first + n, ring, now_ms)
                doubles[at + AVERAGE_AT] = n
            doubles[first + 2 * ring + n] = now_ms
            doubles[at + DELAY] = throttle_ms
            doubles[at + THROTTLED] = now_ms
            doubles[first + 3 * ring + n] += 1
            doubles[first + n] += throttle_ms
        finally:
            self._group.leave()
        ledger.note_throttle(
            self._group.digest | ledger.offsets.index(self._offset), api_key, throttle_ms, now_ms
        )

    def tokens(self, quota: float, burst: float, now_ms: int, permits: float) -> float:
        """Fills a bucket of ``burst`` tokens at ``quota`` a second, and takes ``permits``.

        What is in it afterwards, which may be negative.
        """
        doubles = self._group.ledger.doubles
        at = self._group.enter(now_ms) + self._offset
        try:
            before, since = doubles[at + TOKENS], doubles[at + TOKENS_MS]
            filled = burst if before == math.inf else before + quota * (now_ms - since) / 1000
            left = min(burst, filled) - permits
            # The time first: who is killed between gives tokens away late, never twice.
            doubles[at + TOKENS_MS] = now_ms
            doubles[at + TOKENS] = left
            doubles[at + LAST] = now_ms
            return left
        finally:
            self._group.leave()


def _empty(doubles: memoryview[float], at: int, ring: int, now_ms: int) -> None:
    """Begins a sample anew; the last word makes it count as new, so a torn one is done again."""
    doubles[at] = 0.0
    doubles[at + ring] = now_ms
    doubles[at + 2 * ring] = now_ms
