"""The counters of one sharing group: what is recorded in them, and how, word by word.

Owns the order of the stores; where a group lies and who may write there now is the ledger's, the
figures are those of ``quotas.rate``.  It must never know a bound, a clock or a request.
Invariants: while somebody has promised to record and not done so, only others who promised do, too;
whoever is killed between two stores leaves a counter that the next one repairs or finds whole:
every store is of one aligned word, and a sample is filled and dated before it is the current one.
Kafka's ``Sensor`` with a ``Rate``, a ``TokenBucket`` and an ``Avg``.

What every request does touches as little memory as can be, as with ten thousand groups none of it
is in the processor's caches; and it does as little as can be, as a broker comes to it with its code
in no cache either: some words are read and written by one call of `struct`, whole and one after the
other.
"""

from __future__ import annotations

import math
from fcntl import LOCK_EX, LOCK_SH, LOCK_UN, lockf
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

from minibroker.quotas.rate import AVERAGE_SAMPLES, AVERAGE_WINDOW_MS
from minibroker.quotas.types import CLIENT_QUOTA_TYPES, QuotaType

if TYPE_CHECKING:
    from collections.abc import Sequence
    from mmap import mmap

    from minibroker.quotas.entity import Tags
    from minibroker.quotas.rate import Cause

WORD: Final = 8
"""Bytes of what is stored at once."""

COUNTERS: Final = len(CLIENT_QUOTA_TYPES)
"""Of a group."""

# Words of a group before its counters.
DIGEST, ORDINAL = range(2)
"""Whose it is, and the order in which it is entered, as integers; see `Group.ordinal`."""

MOST, CURRENT = range(2)
"""Of each counter, words that follow these.

``CURRENT`` says where its current sample lies: so many bytes from where the group begins.
``MOST`` is what its samples hold together at most: what was added to them is in it, but not all of
what ended since they were last looked at is out of it. Only once it is too much are they looked at.
As it is one word, it holds also for who reads it while others write.
"""
GROUP_HEAD: Final = ORDINAL + 1
PLACE: Final = 2
_MOST: Final = tuple(GROUP_HEAD + PLACE * number + MOST for number in range(COUNTERS))
"""Where that word of each counter is; its place follows."""

# Bytes of a slot that stand for locks: who has both has it alone.
DEFERRED: Final = 1
"""The second, which those share who have promised to record; they do so with what is before it."""
LOCKED: Final = 2
"""How many there are."""

ORDINALS_PER_MS: Final = 1000
"""Of different groups, so that their ordinals are nearly in the order of time."""

# Words of a counter: its head, and a ring of samples.
CHECK, FIRST, OLDEST = range(3)
"""``FIRST`` says where the oldest sample that counts lies, as ``CURRENT`` does.

Its start stands in ``OLDEST``, which holds until the time in ``CHECK``. Samples begin one after the
other, so from the oldest to the current one all count, and no other does.
"""
HEAD: Final = 3

START, TOTAL, LAST = range(3)
"""Words of a sample: when it began, what was recorded in it, and when the last event was.

It counts for so long after that: so this one is stored last.
"""
SAMPLE: Final = 3
SAMPLE_BYTES: Final = SAMPLE * WORD

# Words of what is kept beside: throttles, the bucket of tokens, the ring of the throttle times.
THROTTLED, DELAY, AVERAGE_AT, TOKENS, TOKENS_MS = range(5)
"""When the last throttle began, and for how long it was; what was in the bucket, and when."""
ASIDE: Final = 5
AVERAGE_RING: Final = AVERAGE_SAMPLES + 1
ASIDE_WORDS: Final = ASIDE + 4 * AVERAGE_RING

_HEAD: Final = Struct("2Q" + "dQ" * COUNTERS).unpack_from
_COUNTER: Final = Struct("dQd").unpack_from
_SAMPLE: Final = Struct("3d").unpack_from

# What writes, words in the order in which they are stored.
put_place: Final = Struct("Q").pack_into
put_number: Final = Struct("d").pack_into
put_number_and_place: Final = Struct("dQ").pack_into
put_place_and_number: Final = Struct("Qd").pack_into
put_added: Final = Struct("2d").pack_into
put_sample: Final = Struct("3d").pack_into

RateAndSpan = tuple[float, int]
"""A rate a second, and the time that it is an average over."""

_REQUEST: Final = CLIENT_QUOTA_TYPES.index(QuotaType.REQUEST)

_HEAD_OF_TWO: Final = tuple(
    Struct(
        f"Q{(_MOST[number] - 1) * WORD}xd{(_MOST[_REQUEST] - _MOST[number] - 1) * WORD}xd"
    ).unpack_from
    for number in range(_REQUEST)
)
"""For each counter before that of request time: the digest, and what both hold at most."""

NOTHING: Final = -math.inf
"""Is free: the rate is always wanted."""


def fresh_places(offsets: Sequence[int], ring: int) -> bytes:
    """The words ``MOST`` and ``CURRENT`` of counters that nobody has used, and begin there.

    Each seems to be in its last sample since ever, so that the first record begins the first one.
    """
    return b"".join(Struct("dQ").pack(0.0, _last_sample(at, ring)) for at in offsets)


def fresh_counter(at: int, ring: int) -> bytes:
    """The words of such a counter."""
    samples = (-math.inf, 0.0, -math.inf) * ring
    return Struct(f"dQd{SAMPLE * ring}d").pack(0.0, _last_sample(at, ring), 0.0, *samples)


def _last_sample(at: int, ring: int) -> int:
    return at + (HEAD + SAMPLE * (ring - 1)) * WORD


def fresh_aside() -> list[float]:
    """The words kept beside it."""
    words = [0.0] * ASIDE_WORDS
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


class CounterMemory(Protocol):
    """As much of ``Ledger`` as a group needs; see there."""

    samples: int
    window_ms: int
    lasting_ms: int
    span_min_ms: int
    lock_fd: int
    memory: mmap
    doubles: memoryview[float]
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
    """Where the counters of one sharing group lie; any number of these may stand for the same.

    A counter is told by its number, which is that of a type of quotas.
    """

    __slots__ = ("base", "digest", "ledger", "name", "ordinal", "tags")

    def __init__(self, ledger: CounterMemory, name: str, tags: Tags, now_ms: int) -> None:
        self.ledger = ledger
        self.name = name
        self.tags = tags
        self.ordinal = 0
        """The place of what this process recorded last among all that was, by any process.

        It is found while the lock is held, for the time is not: who looks at the clock first may
        record last.
        """
        self.digest, self.base = ledger.place(name, tags, now_ms)

    def enter(self, now_ms: int) -> tuple[Any, ...]:
        """Locks the slot, which is another one if the group was given up meanwhile.

        The words before its counters.
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
                put_place(ledger.memory, base + ORDINAL * WORD, ordinal)
                return head
            ledger.unlock(base)
            _, self.base = ledger.place(self.name, self.tags, now_ms)

    def leave(self) -> None:
        """Unlocks it."""
        ledger = self.ledger
        if ledger.lock_fd >= 0:
            lockf(ledger.lock_fd, LOCK_UN, LOCKED, self.base)

    def defer(self, number: int, limits: Sequence[float]) -> bool:
        """Whether the samples of a counter and of that of request time hold so little that values
        may be recorded in both later, by `keep`.

        Then nobody else records or looks before that but who has promised, too. Do nothing with any
        group of this process until then: a process's locks don't hold for itself.
        """
        ledger, base = self.ledger, self.base
        if ledger.lock_fd >= 0:
            lockf(ledger.lock_fd, LOCK_SH, 1, base + DEFERRED)
        digest, most, most_time = _HEAD_OF_TWO[number](ledger.memory, base)
        if most <= limits[number] and most_time <= limits[_REQUEST] and digest == self.digest:
            return True
        self.leave()
        return False

    def record_deferred(self, number: int, value: float, percent: float, now_ms: int) -> None:
        """Adds what was promised to both counters, without an ordinal, as nobody is told of it."""
        ledger, base = self.ledger, self.base  # Which stays as long as somebody has promised.
        if ledger.lock_fd >= 0:
            lockf(ledger.lock_fd, LOCK_EX, DEFERRED, base)
        try:
            head = _HEAD(ledger.memory, base)
            self._add(head, number, value, now_ms)
            self._add(head, _REQUEST, percent, now_ms)
        finally:
            self.leave()

    def add(self, number: int, value: float, now_ms: int) -> None:
        """Adds a value."""
        head = self.enter(now_ms)
        try:
            self._add(head, number, value, now_ms)
        finally:
            self.leave()

    def record(
        self, number: int, value: float, now_ms: int, capacity: float = NOTHING
    ) -> RateAndSpan | None:
        """Adds a value, which may be negative to take one back; the rate with it, and its span.

        None if samples hold no more than is ``free``, which is sooner found out than the rate.
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
        """The same for a counter and that of request time, with one lock.

        What is free is given for each number; None if what either holds is free.
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
        """What all samples of a counter hold then at most."""
        ledger = self.ledger
        at = _MOST[number]
        most: float = head[at]
        place = self.base + head[at + 1]
        start, total, _ = _SAMPLE(ledger.memory, place)
        if now_ms - start >= ledger.window_ms:
            return self._begin(head[at + 1], most, number, value, now_ms)
        # Who is killed between the two stores leaves ``MOST`` too large.
        if value >= 0:
            most += value
            put_number(ledger.memory, self.base + at * WORD, most)
            put_added(ledger.memory, place + TOTAL * WORD, total + value, now_ms)
        else:
            most -= max(total, 0.0) - max(total + value, 0.0)
            put_added(ledger.memory, place + TOTAL * WORD, total + value, now_ms)
            put_number(ledger.memory, self.base + at * WORD, most)
        return most

    def _begin(self, current: int, most: float, number: int, value: float, now_ms: int) -> float:
        """Begins the sample after one with a value; what all hold then at most.

        It counts once it is the current one: if not, the next one to begin a sample will do so
        there.
        """
        ledger, base = self.ledger, self.base
        memory, at = ledger.memory, base + ledger.offsets[number]
        following = ledger.next_sample(number, current)
        _, first, _ = _COUNTER(memory, at)
        if following == first:  # which goes
            put_number_and_place(
                memory, at + CHECK * WORD, 0.0, ledger.next_sample(number, following)
            )
        put_sample(memory, base + following, now_ms, value, now_ms)
        if value > 0:
            most += value
        put_number_and_place(memory, base + _MOST[number] * WORD, most, following)
        return most

    def _rate(self, number: int, now_ms: int) -> RateAndSpan:
        ledger, base = self.ledger, self.base
        memory, at = ledger.memory, base + ledger.offsets[number]
        check, _, oldest = _COUNTER(memory, at)
        if now_ms >= check:
            oldest = self._pass_over(number, now_ms)
        totals = ledger.totals(at)
        put_number(memory, base + _MOST[number] * WORD, _most(totals))
        span_ms = now_ms - int(oldest)
        if span_ms < ledger.span_min_ms:
            span_ms = span(now_ms - span_ms, now_ms, ledger.samples, ledger.window_ms)
        return sum(totals) / (span_ms / 1000), span_ms

    def _pass_over(self, number: int, now_ms: int) -> float:
        """Empties samples that count no more, up to the first that does, as the current one must.

        When that began. Kafka would date them anew, too. It makes no difference: the current one is
        older than that.
        """
        ledger, base = self.ledger, self.base
        memory, at = ledger.memory, base + ledger.offsets[number]
        _, first, _ = _COUNTER(memory, at)
        while True:
            start, _, last = _SAMPLE(memory, base + first)
            if now_ms - last < ledger.lasting_ms:
                break
            put_number(memory, base + first + TOTAL * WORD, 0.0)
            first = ledger.next_sample(number, first)
        put_place_and_number(memory, at + FIRST * WORD, first, start)
        put_number(memory, at + CHECK * WORD, last + ledger.lasting_ms)
        oldest: float = start
        return oldest

    def throttled(
        self, number: int, throttle_ms: int, api_key: int, cause: Cause, now_ms: int
    ) -> None:
        """A throttle begins: it is the last one, and counts for their average."""
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
        """Fills a bucket of ``burst`` tokens at ``quota`` a second, and takes ``permits``.

        What is in it afterwards, which may be negative.
        """
        ledger = self.ledger
        doubles = ledger.doubles
        self.enter(now_ms)
        at = self.base // WORD + ledger.asides[number]
        try:
            before, since = doubles[at + TOKENS], doubles[at + TOKENS_MS]
            filled = burst if before == math.inf else before + quota * (now_ms - since) / 1000
            left = min(burst, filled) - permits
            # The time first: who is killed between gives tokens away late, never twice.
            doubles[at + TOKENS_MS] = now_ms
            doubles[at + TOKENS] = left
            return left
        finally:
            self.leave()


def _most(totals: Sequence[float]) -> float:
    """What samples may hold, for one from which more was taken back than is in it ends, too."""
    return sum(totals) if min(totals) >= 0 else sum(max(each, 0.0) for each in totals)
