"""Rates of all quota entities, in memory shared by all processes of a broker.

Owns the mapping, the position of each counter in it, and the locks. It must never know a bound, a
clock or a request. Invariant: the figures of a counter are those of ``quotas.rate`` whichever
processes recorded, and a process that is killed at any point leaves every counter consistent: its
last record is included or not. Kafka's ``Metrics`` with its ``Sensor``s, which belong to one
process.

A slot contains a group: the counters of all quota types of the clients that share them, side by
side, so a request that counts for two types takes one lock. It is found by a hash of the group: the
hash selects a set of ``WAYS`` slots, one of which contains the group. A full set evicts the least
recently used group, so memory is bounded and looking up a counter takes constant time.

Locks are POSIX record locks on bytes of a file without a name: bytes at the start of a slot, of the
list of a set, or of the page before them. The kernel releases them when a process dies. They would
also be released if a process closed any descriptor of that file, so there is one, opened before the
fork and never closed or duplicated. (Locks of open file descriptions would be shared by all forked
processes.)

For processes killed during a change, see ``quotas.rate``; a slot contains its hash only while
its content belongs to that hash. The list of hashes that is searched may be ahead of that, or
behind.
"""

from __future__ import annotations

import heapq
import math
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from fcntl import LOCK_EX, LOCK_UN, lockf
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple

from minibroker.broker.quotas.rate import (
    ASIDE,
    ASIDE_WORDS,
    AVERAGE_RING,
    AVERAGE_SAMPLES,
    AVERAGE_WINDOW_MS,
    CURRENT,
    DELAY,
    DIGEST,
    GROUP_HEAD,
    HEAD,
    LAST,
    LOCKED,
    PLACE,
    PROCESSES_MAX,
    SAMPLE,
    SAMPLE_BYTES,
    THROTTLED,
    TOKENS,
    TOKENS_MS,
    TOTAL,
    WORD,
    Cause,
    CounterGroup,
    fresh_aside,
    fresh_counter,
    fresh_places,
    shortest_span_ms,
    span,
)
from minibroker.broker.quotas.types import CLIENT_QUOTA_TYPES, QuotaType, Tags
from minibroker.runtime.system import memory_file

# The most recent throttles ------------------------------------------------------------------------
#
# A ring in shared memory; callers hold the lock, and counters are digests. Invariant: the newest
# ``RECENT_THROTTLES_MAX`` records are kept, with consecutive numbers from 1, even if a process is
# killed while it writes. Kafka has no counterpart; it logs throttles at debug level.


RECENT_THROTTLES_MAX: Final = 62
"""Number of records; they fit into the page before the counters."""


class RecentThrottle(NamedTuple):
    """The start of a throttle: the counter, API, duration and cause."""

    number: int
    at_ms: int
    digest: int
    api_key: int
    throttle_ms: int
    cause: Cause


_WIDTH: Final = len(RecentThrottle._fields) - 1 + len(Cause._fields)
_DOUBLE, _WORD = Struct("d"), Struct("Q")

THROTTLE_WORDS: Final = 1 + RECENT_THROTTLES_MAX * _WIDTH
"""The words that the ring needs; all must be 0 at first."""


class RecentThrottles:
    """The ring; its first word is the number of the newest record."""

    def __init__(self, words: memoryview[int]) -> None:
        """``words`` holds unsigned integers, at least ``WORDS`` of them."""
        self._words = words

    def record(
        self, digest: int, api_key: int, throttle_ms: int, cause: Cause, now_ms: int
    ) -> None:
        """Record the start of a throttle; integers must not be negative."""
        words = self._words
        number = words[0] + 1
        at = _place(number)
        # Number 0 marks an incomplete record; if the writer is killed, the next one reuses it.
        words[at] = 0
        words[at + 1], words[at + 2], words[at + 3] = now_ms, digest, api_key
        words[at + 4], words[at + 5] = throttle_ms, cause.span_ms
        words[at + 6], words[at + 7] = _as_word(cause.rate), _as_word(cause.bound)
        words[at] = number
        words[0] = number

    def newest_first(self) -> list[RecentThrottle]:
        """Return the complete records, newest first."""
        newest = self._words[0]
        found = []
        for number in range(newest, max(0, newest - RECENT_THROTTLES_MAX), -1):
            at = _place(number)
            kept, at_ms, digest, api_key, throttle_ms, span_ms, rate, bound = self._words[
                at : at + _WIDTH
            ].tolist()
            if kept == number:
                cause = Cause(_as_double(rate), span_ms, _as_double(bound))
                found.append(RecentThrottle(number, at_ms, digest, api_key, throttle_ms, cause))
        return found


def _as_word(value: float) -> int:
    word: int = _WORD.unpack(_DOUBLE.pack(value))[0]
    return word


def _as_double(word: int) -> float:
    value: float = _DOUBLE.unpack(_WORD.pack(word))[0]
    return value


def _place(number: int) -> int:
    return 1 + number % RECENT_THROTTLES_MAX * _WIDTH


# The counters -------------------------------------------------------------------------------------

GROUPS_MAX: Final = 32_768
"""Groups kept; with long windows fewer, see `BYTES_MAX`."""

BYTES_MAX: Final = 128 * 1024 * 1024
"""Maximal size of the mapping; unused pages take no memory."""

WAYS: Final = 64
"""Slots of a set."""

EXPIRES_MS: Final = 3_600_000
"""Time after its last record for which a counter is shown, as in Kafka."""

NOBODY: Final = Tags("", "")
"""Tags of counters that belong to no client."""

TEXT_BYTES: Final = 256
"""Bytes of the names of a group that are kept for display."""

_KINDS: Final[tuple[str, ...]] = CLIENT_QUOTA_TYPES
_NUMBER_BITS: Final = (1 << (len(_KINDS) - 1).bit_length()) - 1
"""The bits of a hash that can hold the number of one of the group's counters."""

_SIDE_BY_SIDE: Final = (QuotaType.PRODUCE, QuotaType.REQUEST, QuotaType.FETCH)
"""Types whose counters most requests need two of, which then share a page of memory."""
_ORDER: Final = (*_SIDE_BY_SIDE, *(kind for kind in _KINDS if kind not in _SIDE_BY_SIDE))

# Words of a slot: its head, the counters, the separate words of each, and then these.
_GIVEN, _TEXT_LENGTH, _TEXT = range(3)
_REST: Final = _TEXT + TEXT_BYTES // WORD

# Words of the page before the sets, for the ledger as a whole.
_BITS: Final = 0
_RECENT_THROTTLES: Final = 8
_PAGE_WORDS: Final = mmap.PAGESIZE // WORD
assert _RECENT_THROTTLES + THROTTLE_WORDS <= _PAGE_WORDS


Unpack = Callable[[mmap.mmap, int], tuple[Any, ...]]


class Usage(NamedTuple):
    """A rate per second, and the time over which it is averaged."""

    rate: float
    span_ms: int


class Sample(NamedTuple):
    """Sum recorded from ``start_ms`` on, for one window."""

    start_ms: int
    total: float


class LastThrottle(NamedTuple):
    """Start and duration of the last throttle."""

    at_ms: int
    throttle_ms: int


class NamedThrottle(NamedTuple):
    """One of the most recent throttles; the newest has the largest number."""

    number: int
    kind: str
    tags: Tags
    api_key: int
    last: LastThrottle
    cause: Cause


class QuotaUsage(NamedTuple):
    """A counter for display; ``throttle_ms`` is NaN without a throttle in the last minute."""

    kind: str
    tags: Tags
    usage: Usage
    samples: tuple[Sample, ...]
    throttle_ms: float
    last: LastThrottle | None
    tokens: float
    used: bool
    """Whether something was recorded in the last hour; throttles may be more recent."""


class QuotaLedger:
    """All counters. It must be created before the fork; without ``shared`` it has one process."""

    def __init__(
        self, samples: int, window_ms: int, *, shared: bool, recorders: int = PROCESSES_MAX
    ) -> None:
        """Create unused counters; ``samples`` and ``window_ms`` are those of `quotas.rate.Rate`.

        ``recorders`` is the number of processes that record requests.
        """
        self.samples = samples
        self.window_ms = window_ms
        self.has_one_recorder = recorders == 1
        self.ring = samples + 1
        self.span_min_ms = shortest_span_ms(samples, window_ms)
        self.lasting_ms = samples * window_ms
        """Time after its last record for which a sample counts."""
        counter = HEAD + SAMPLE * self.ring
        places = [_ORDER.index(kind) for kind in _KINDS]
        counters_at = GROUP_HEAD + PLACE * len(_KINDS)
        self.offsets = tuple((counters_at + at * counter) * WORD for at in places)
        """Positions of the counters, in bytes from the start of a slot."""
        self._rings = tuple(at + HEAD * WORD for at in self.offsets)
        self._ring_bytes = SAMPLE_BYTES * self.ring
        asides_at = counters_at + len(_KINDS) * counter
        self.asides = tuple(asides_at + at * ASIDE_WORDS for at in places)
        """Positions of the separate words of each counter, in words."""
        self._rest = asides_at + len(_KINDS) * ASIDE_WORDS
        self._fresh = self._fresh_slot()
        self.words = self._rest + _REST
        groups = min(GROUPS_MAX, BYTES_MAX // (self.words * WORD))
        self._sets = 1 << max(0, (groups // WAYS).bit_length() - 1)
        self.slots = self._sets * WAYS
        self._slots_at = (_PAGE_WORDS + self.slots) * WORD
        size = self._slots_at + self.slots * self.words * WORD
        self.lock_fd = -1
        if shared:
            self.lock_fd = memory_file("minibroker-quotas")
            os.ftruncate(self.lock_fd, size)
        self.memory = mmap.mmap(self.lock_fd, size) if shared else mmap.mmap(-1, size)
        total = f"{TOTAL * WORD}xd{(SAMPLE - TOTAL - 1) * WORD}x"
        self._totals: Unpack = Struct(f"{HEAD * WORD}x" + total * self.ring).unpack_from
        whole = memoryview(self.memory)
        self.doubles: memoryview[float] = whole.cast("d")
        self.integers: memoryview[int] = whole.cast("Q")
        self._page = whole[: mmap.PAGESIZE].cast("Q")
        self.hashes = whole[mmap.PAGESIZE : mmap.PAGESIZE + self.slots * WORD].cast("Q")
        """Hash of the group that a slot may contain; the slot itself is authoritative."""
        self._bytes = whole
        self._recent_throttles = RecentThrottles(self._page[_RECENT_THROTTLES:])

    def _fresh_slot(self) -> bytes:
        """Return the content of an unused slot after its hash and ordinal."""
        places = fresh_places(self.offsets, self.ring)
        counters = b"".join(fresh_counter(at, self.ring) for at in sorted(self.offsets))
        asides = fresh_aside() * len(_KINDS)
        return places + counters + Struct(f"{len(asides)}d").pack(*asides)

    # Data of the whole ledger ----------------------------------------------------------------

    def ever_set(self, number: int) -> int:
        """Return the kinds of entities (bits) for which quotas of a type were ever set."""
        return int(self._page[_BITS + number])

    def note_set(self, number: int, bits: int) -> int:
        """Add kinds of entities for which quotas were set; return all of them."""
        self.lock(0)
        try:
            self._page[_BITS + number] |= bits
        finally:
            self.unlock(0)
        return self.ever_set(number)

    def note_throttle(
        self, digest: int, api_key: int, throttle_ms: int, cause: Cause, now_ms: int
    ) -> None:
        """Record the start of a throttle."""
        self.lock(0)
        try:
            self._recent_throttles.record(digest, api_key, throttle_ms, cause, now_ms)
        finally:
            self.unlock(0)

    def recent_throttles(self) -> Iterator[NamedThrottle]:
        """Return the recent throttles, newest first, without those of evicted counters."""
        self.lock(0)
        try:
            found = self._recent_throttles.newest_first()
        finally:
            self.unlock(0)
        for number, at_ms, digest, api_key, throttle_ms, cause in found:
            slot = self._slot_of(digest & ~_NUMBER_BITS)
            if slot is not None:
                kind, tags = self._names(slot, digest & _NUMBER_BITS)
                last = LastThrottle(at_ms, throttle_ms)
                yield NamedThrottle(number, kind, tags, api_key, last, cause)

    # Locks -----------------------------------------------------------------------------------

    def lock(self, at: int) -> None:
        """Wait for the lock at a byte."""
        if self.lock_fd >= 0:
            lockf(self.lock_fd, LOCK_EX, LOCKED, at)

    def unlock(self, at: int) -> None:
        """Release the lock at a byte."""
        if self.lock_fd >= 0:
            lockf(self.lock_fd, LOCK_UN, LOCKED, at)

    # Counters --------------------------------------------------------------------------------

    def group(self, tags: Tags, now_ms: int) -> CounterGroup:
        """Return the counters of a sharing group, one for each quota type."""
        return CounterGroup(self, "", tags, now_ms)

    def named(self, name: str, now_ms: int) -> CounterGroup:
        """Return a group with a name, whose counter 0 measures something other than a quota."""
        return CounterGroup(self, name, NOBODY, now_ms)

    def place(self, name: str, tags: Tags, now_ms: int) -> tuple[int, int]:
        """Return a group's hash and the position of its slot, which is assigned if it has none."""
        digest = digest_of(name, tags)
        first = self._first(digest)
        self.lock(mmap.PAGESIZE + first * WORD)
        try:
            hashes = self.hashes[first : first + WAYS].tolist()
            if digest in hashes:
                slot = first + hashes.index(digest)
                if self._is_of(slot, digest):
                    return digest, self.base(slot)
            elif 0 in hashes:
                slot = first + hashes.index(0)
            else:
                slot = min(range(first, first + WAYS), key=self._last_used)
            self._give(slot, digest, name, tags, now_ms)
            return digest, self.base(slot)
        finally:
            self.unlock(mmap.PAGESIZE + first * WORD)

    def _first(self, digest: int) -> int:
        return (digest // (_NUMBER_BITS + 1)) % self._sets * WAYS

    def _last_used(self, slot: int) -> float:
        counters = (self._counter_last_used((slot, number)) for number in range(len(_KINDS)))
        return max(self.doubles[self._word(slot) + self._rest + _GIVEN], *counters)

    def _counter_last_used(self, where: tuple[int, int]) -> float:
        slot, number = where
        aside = self._word(slot) + self.asides[number]
        return max(self._last(slot, number), self.doubles[aside + THROTTLED])

    def _last(self, slot: int, number: int) -> float:
        """Return the time of the last record, or of the last taken token."""
        word, doubles = self._word(slot), self.doubles
        current = self.integers[word + GROUP_HEAD + PLACE * number + CURRENT] // WORD
        tokens_ms = doubles[word + self.asides[number] + TOKENS_MS]
        recorded_ms = doubles[word + current + LAST]
        return recorded_ms if tokens_ms == math.inf else max(recorded_ms, tokens_ms)

    def _is_of(self, slot: int, digest: int) -> bool:
        return self.integers[self._word(slot) + DIGEST] == digest

    def _give(self, slot: int, digest: int, name: str, tags: Tags, now_ms: int) -> None:
        base, word = self.base(slot), self._word(slot)
        self.lock(base)
        try:
            self.integers[word + DIGEST] = 0
            fresh_at = base + GROUP_HEAD * WORD
            self._bytes[fresh_at : fresh_at + len(self._fresh)] = self._fresh
            rest = word + self._rest
            self.doubles[rest + _GIVEN] = now_ms
            text = "\0".join((name, *tags)).encode()[:TEXT_BYTES]
            at = (rest + _TEXT) * WORD
            self._bytes[at : at + len(text)] = text
            self.doubles[rest + _TEXT_LENGTH] = len(text)
            self.hashes[slot] = digest
            self.integers[word + DIGEST] = digest
        finally:
            self.unlock(base)

    def base(self, slot: int) -> int:
        """Return the byte position of a slot."""
        return self._slots_at + slot * self.words * WORD

    def _word(self, slot: int) -> int:
        return self.base(slot) // WORD

    def next_sample(self, number: int, place: int) -> int:
        """Return the position of the next sample, in bytes from the start of the slot."""
        ring, place = self._rings[number], place + SAMPLE_BYTES
        return place if place < ring + self._ring_bytes else ring

    def totals(self, at: int) -> tuple[float, ...]:
        """Return the sums of all samples of the counter at a byte."""
        return self._totals(self.memory, at)

    # Reading ---------------------------------------------------------------------------------

    def entries(self, now_ms: int, at_most: int) -> Iterator[QuotaUsage]:
        """Yield the counters that were used in the last hour, latest first. Nothing is changed."""
        for slot, number in heapq.nlargest(at_most, self._used(), key=self._counter_last_used):
            entry = self._entry(slot, number, now_ms)
            if entry is not None:
                yield entry

    def used(self) -> int:
        """Return the number of counters that were ever used."""
        return sum(1 for _ in self._used())

    def _used(self) -> Iterator[tuple[int, int]]:
        for slot, digest in enumerate(self.hashes.tolist()):
            if digest and self._is_of(slot, digest):
                for where in ((slot, number) for number in range(len(_KINDS))):
                    if self._counter_last_used(where) > -math.inf:
                        yield where

    def entry(self, kind: str, tags: Tags, now_ms: int) -> QuotaUsage | None:
        """Return one counter, or None if it has not been used."""
        slot = self._slot_of(digest_of("", tags))
        return None if slot is None else self._entry(slot, _KINDS.index(kind), now_ms)

    def _slot_of(self, digest: int) -> int | None:
        first = self._first(digest)
        hashes = self.hashes[first : first + WAYS].tolist()
        if digest not in hashes:
            return None
        slot = first + hashes.index(digest)
        return slot if self._is_of(slot, digest) else None

    def _names(self, slot: int, number: int) -> tuple[str, Tags]:
        rest = self._word(slot) + self._rest
        at = (rest + _TEXT) * WORD
        raw = bytes(self._bytes[at : at + int(self.doubles[rest + _TEXT_LENGTH])])
        name, user, client = (raw.decode("utf-8", "replace") + "\0\0").split("\0")[:3]
        return name or _KINDS[number], Tags(user, client)

    def _entry(self, slot: int, number: int, now_ms: int) -> QuotaUsage | None:
        base, aside_at = self.base(slot), self._word(slot) + self.asides[number]
        ring_at = (base + self._rings[number]) // WORD
        self.lock(base)
        try:
            last_ms = self._last(slot, number)
            words = self.doubles[ring_at : ring_at + SAMPLE * self.ring].tolist()
            aside = self.doubles[aside_at : aside_at + ASIDE_WORDS].tolist()
            kind, tags = self._names(slot, number)
        finally:
            self.unlock(base)
        used = now_ms - last_ms <= EXPIRES_MS
        if not used and now_ms - aside[THROTTLED] > EXPIRES_MS:
            return None
        expired_ms = now_ms - self.lasting_ms
        samples = [
            Sample(int(start), total)
            for start, total, last in zip(*(words[at::SAMPLE] for at in range(SAMPLE)), strict=True)
            if last > expired_ms
        ]
        oldest = min((sample.start_ms for sample in samples), default=now_ms)
        span_ms = span(oldest, now_ms, self.samples, self.window_ms)
        usage = Usage(sum(sample.total for sample in samples) / (span_ms / 1000), span_ms)
        last = None
        if aside[THROTTLED] > -math.inf:
            last = LastThrottle(int(aside[THROTTLED]), int(aside[DELAY]))
        average = _average(aside, now_ms)
        return QuotaUsage(
            kind, tags, usage, tuple(sorted(samples)), average, last, aside[TOKENS], used
        )


def _average(aside: Sequence[float], now_ms: int) -> float:
    ring = AVERAGE_RING
    sums, _, lasts, counts = (aside[ASIDE + n * ring : ASIDE + (n + 1) * ring] for n in range(4))
    expires_ms = AVERAGE_SAMPLES * AVERAGE_WINDOW_MS
    live = [n for n, last in enumerate(lasts) if now_ms - last < expires_ms]
    count = sum(counts[n] for n in live)
    return sum(sums[n] for n in live) / count if count else math.nan


def digest_of(name: str, tags: Tags) -> int:
    """Return the hash of a group: never 0, and without the bits for one of its counters."""
    text = "\0".join((name, *tags)).encode()
    digest = int.from_bytes(blake2b(text, digest_size=8).digest(), "little")
    return digest & ~_NUMBER_BITS or _NUMBER_BITS + 1
