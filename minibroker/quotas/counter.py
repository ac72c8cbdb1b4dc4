"""The counters of one sharing group: what is recorded in them, and how, word by word.

Owns the order of the stores; where a group lies and who may write there now is the ledger's, the
figures are those of ``quotas.rate``.  It must never know a bound, a clock or a request.  Invariant:
whoever is killed between two stores leaves a counter that the next one repairs or finds whole:
every store is of one aligned word, and a sample is emptied and dated before it is the current one.
Kafka's ``Sensor`` with a ``Rate``, a ``TokenBucket`` and an ``Avg``.

What every request does touches as little memory as can be, as with ten thousand groups none of it
is in the processor's caches; and each call or slice costs as much as the lock.
"""

from __future__ import annotations

import math
from fcntl import LOCK_EX, LOCK_UN, lockf
from typing import TYPE_CHECKING, Final

from minibroker.quotas.rate import AVERAGE_SAMPLES, AVERAGE_WINDOW_MS

if TYPE_CHECKING:
    from minibroker.quotas.entity import Tags
    from minibroker.quotas.ledger import Ledger
    from minibroker.quotas.rate import Cause

WORD: Final = 8
"""Bytes of what is stored at once."""

DIGEST, ORDINAL = range(2)
"""The words of a group before its counters: whose it is, as an integer, and the order in which it
is entered; see `Group.ordinal`.
"""

ORDINALS_PER_MS: Final = 1000
"""Of different groups, so that their ordinals are nearly in the order of time."""

# Words of a counter: its head, the rate's ring (totals, then when each sample began and had its
# last event, side by side). All that a request needs lies together, as does what it doesn't.
LAST, AT, MOST, FIRST, OLDEST, CHECK = range(6)
"""When the last record was; the places of the current sample and of the oldest one that counts.

``MOST`` is what any of the samples hold together at most: what was added since they were last
looked at is in it, but not what was taken back or ended. Only once that is too much are they looked
at.

The oldest one's start stands in ``OLDEST``, which holds until the time in ``CHECK``. Samples begin
one after the other, so from the oldest to the current one all count, and no other does.
"""
HEAD: Final = 6

# Words of what is kept beside: throttles, the bucket of tokens, the ring of the throttle times.
THROTTLED, DELAY, AVERAGE_AT, TOKENS, TOKENS_MS = range(5)
"""When the last throttle began, and for how long it was."""
ASIDE: Final = 5
AVERAGE_RING: Final = AVERAGE_SAMPLES + 1

RateAndSpan = tuple[float, int]
"""A rate a second, and the time that it is an average over."""

Recorded = tuple[int, float, float]
"""A counter's number, a value, and what is free."""

NOTHING: Final = -math.inf
"""Is free: the rate is always wanted."""


def fresh(ring: int) -> list[float]:
    """The words of a counter that nobody has used.

    It seems to be in its last sample since ever, so that the first record begins the first one.
    """
    words = [0.0] * (HEAD + 3 * ring)
    words[LAST] = -math.inf
    words[AT] = words[FIRST] = ring - 1
    words[HEAD + ring :] = [-math.inf] * (2 * ring)
    return words


def fresh_aside() -> list[float]:
    """The words beside those."""
    words = [0.0] * (ASIDE + 4 * AVERAGE_RING)
    words[THROTTLED] = -math.inf
    words[TOKENS] = words[TOKENS_MS] = math.inf
    words[ASIDE + AVERAGE_RING : ASIDE + 3 * AVERAGE_RING] = [math.inf] * (2 * AVERAGE_RING)
    return words


def span(oldest_ms: int, now_ms: int, samples: int, window_ms: int) -> int:
    """What `Rate.span_ms` gives for an oldest sample."""
    elapsed = now_ms - oldest_ms
    missing = samples - 1 - elapsed // window_ms
    if missing > 0:
        elapsed += missing * window_ms
    return elapsed if elapsed > 0 else 1


class Group:
    """Where the counters of one sharing group lie; any number of these may stand for the same.

    A counter is told by its number, which is that of a type of quotas.
    """

    __slots__ = ("digest", "ledger", "name", "ordinal", "slot", "tags")

    def __init__(self, ledger: Ledger, name: str, tags: Tags, now_ms: int) -> None:
        self.ledger = ledger
        self.name = name
        self.tags = tags
        self.ordinal = 0.0
        """The place of what this process recorded last among all that was, by any process.

        It is found while the lock is held, for the time is not: who looks at the clock first may
        record last.
        """
        self.digest, self.slot = ledger.place(name, tags, now_ms)

    def enter(self, now_ms: int) -> int:
        """Locks the slot, which is another one if the group was given up meanwhile; its base."""
        ledger = self.ledger
        while True:
            slot = self.slot
            if ledger.lock_fd >= 0:
                lockf(ledger.lock_fd, LOCK_EX, 1, slot)
            base = ledger.slots_at + slot * ledger.words
            if ledger.integers[base + DIGEST] == self.digest:
                ordinal: float = now_ms * ORDINALS_PER_MS
                earlier = ledger.doubles[base + ORDINAL]
                if earlier >= ordinal:
                    ordinal = earlier + 1
                ledger.doubles[base + ORDINAL] = self.ordinal = ordinal
                return base
            ledger.unlock(slot)
            _, self.slot = ledger.place(self.name, self.tags, now_ms)

    def leave(self) -> None:
        """Unlocks it."""
        ledger = self.ledger
        if ledger.lock_fd >= 0:
            lockf(ledger.lock_fd, LOCK_UN, 1, self.slot)

    def add(self, number: int, value: float, now_ms: int) -> None:
        """Adds a value."""
        base = self.enter(now_ms)
        try:
            _add(self.ledger, base + self.ledger.offsets[number], value, now_ms)
        finally:
            self.leave()

    def record(
        self, number: int, value: float, now_ms: int, free: float = NOTHING
    ) -> RateAndSpan | None:
        """Adds a value, which may be negative to take one back; the rate with it, and its span.

        None if samples hold no more than is ``free``, which is sooner found out than the rate.
        """
        base = self.enter(now_ms)
        try:
            ledger = self.ledger
            at = base + ledger.offsets[number]
            if _add(ledger, at, value, now_ms) <= free:
                return None
            return _rate(ledger, at, now_ms)
        finally:
            self.leave()

    def record_both(
        self, ones: Recorded, others: Recorded, now_ms: int
    ) -> tuple[RateAndSpan, RateAndSpan] | None:
        """The same for two counters, with one lock; None if what either holds is free."""
        number, value, free = ones
        other, others_value, others_free = others
        base = self.enter(now_ms)
        try:
            ledger = self.ledger
            at, others_at = base + ledger.offsets[number], base + ledger.offsets[other]
            most = _add(ledger, at, value, now_ms)
            if _add(ledger, others_at, others_value, now_ms) <= others_free and most <= free:
                return None
            return _rate(ledger, at, now_ms), _rate(ledger, others_at, now_ms)
        finally:
            self.leave()

    def throttled(
        self, number: int, throttle_ms: int, api_key: int, cause: Cause, now_ms: int
    ) -> None:
        """A throttle begins: it is the last one, and counts for their average."""
        ledger, ring = self.ledger, AVERAGE_RING
        doubles = ledger.doubles
        at = self.enter(now_ms) + ledger.asides[number]
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
        """Fills a bucket of ``burst`` tokens at ``quota`` a second, and takes ``permits``.

        What is in it afterwards, which may be negative.
        """
        ledger = self.ledger
        doubles = ledger.doubles
        base = self.enter(now_ms)
        at = base + ledger.asides[number]
        try:
            before, since = doubles[at + TOKENS], doubles[at + TOKENS_MS]
            filled = burst if before == math.inf else before + quota * (now_ms - since) / 1000
            left = min(burst, filled) - permits
            # The time first: who is killed between gives tokens away late, never twice.
            doubles[at + TOKENS_MS] = now_ms
            doubles[at + TOKENS] = left
            doubles[base + ledger.offsets[number] + LAST] = now_ms
            return left
        finally:
            self.leave()


def _add(ledger: Ledger, at: int, value: float, now_ms: int) -> float:
    """What all samples hold then at most."""
    doubles = ledger.doubles
    n = int(doubles[at + AT])
    start = at + HEAD + ledger.ring + 2 * n
    if now_ms - doubles[start] >= ledger.window_ms:
        n = _begin(ledger, at, n, now_ms)
        start = at + HEAD + ledger.ring + 2 * n
    most = doubles[at + MOST]
    if value > 0:
        most += value
        doubles[at + MOST] = most  # First: who is killed here makes it more than there is.
    doubles[start + 1] = now_ms
    doubles[at + LAST] = now_ms
    doubles[at + HEAD + n] += value
    return most


def _begin(ledger: Ledger, at: int, n: int, now_ms: int) -> int:
    """Begins the sample after one; its place."""
    doubles, ring = ledger.doubles, ledger.ring
    n = n + 1 if n + 1 < ring else 0
    if n == doubles[at + FIRST]:  # which goes
        doubles[at + CHECK] = 0
        doubles[at + FIRST] = n + 1 if n + 1 < ring else 0
    gone = doubles[at + HEAD + n]
    doubles[at + HEAD + n] = 0.0
    if gone:
        _look(ledger, at)
    doubles[at + HEAD + ring + 2 * n] = now_ms
    doubles[at + AT] = n
    return n


def _look(ledger: Ledger, at: int) -> float:
    """The total of all samples."""
    samples = ledger.read_ring(ledger.memory, (at + HEAD) * WORD)
    total: float = sum(samples)
    # One from which more was taken back than is in it ends, too.
    ledger.doubles[at + MOST] = (
        total if min(samples) >= 0 else sum(max(each, 0) for each in samples)
    )
    return total


def _rate(ledger: Ledger, at: int, now_ms: int) -> RateAndSpan:
    doubles = ledger.doubles
    if now_ms >= doubles[at + CHECK]:
        _pass_over(ledger, at, now_ms)
    total = _look(ledger, at)
    span_ms = now_ms - int(doubles[at + OLDEST])
    if span_ms < ledger.span_min_ms:
        span_ms = span(now_ms - span_ms, now_ms, ledger.samples, ledger.window_ms)
    return total / (span_ms / 1000), span_ms


def _pass_over(ledger: Ledger, at: int, now_ms: int) -> None:
    """Empties samples that count no more, up to the first one that does, as the current one must.

    Kafka would date them anew, too. It makes no difference: the current one is older than that.
    """
    doubles, ring = ledger.doubles, ledger.ring
    times = at + HEAD + ring
    lasting_ms = ledger.lasting_ms
    n = int(doubles[at + FIRST])
    while now_ms - doubles[times + 2 * n + 1] >= lasting_ms:
        doubles[at + HEAD + n] = 0.0
        n = n + 1 if n + 1 < ring else 0
    doubles[at + FIRST] = n
    doubles[at + OLDEST] = doubles[times + 2 * n]
    doubles[at + CHECK] = doubles[times + 2 * n + 1] + lasting_ms
