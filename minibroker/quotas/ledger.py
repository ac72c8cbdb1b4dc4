"""The rates of all quota entities in memory that every process of a broker shares.

Owns the mapping, where each counter lies in it, and the locks; it must never know a bound, a clock
or a request.  Invariant: a counter's figures are those of ``quotas.rate`` whichever processes
recorded, and a process that is killed at any point leaves every counter whole: what it was about
to record is in it, or isn't.  Kafka's ``Metrics`` with its ``Sensor``s, which live in one process.

A counter is found by a hash of what it counts: the hash picks a set of ``WAYS`` slots, and one
slot of the set carries it.  A full set gives up the counter that was used least recently, so the
memory is bounded and looking for a counter takes the same time however many there are.

Locks are POSIX record locks on the bytes of a file that has no name: one byte for each slot, one
for each set.  The kernel frees them when a process dies.  They would also vanish if a process
closed any descriptor of that file, so there is one, made before the fork and never closed or
duplicated.  (Locks of open file descriptions would be shared by all that were forked.)

Killed half-way: every store is of one aligned word, in an order that makes the next one who comes
repair it.  A sample is emptied first, and dated last by what makes it count as old; a slot carries
its hash only while what lies in it belongs to that hash.
"""

from __future__ import annotations

import heapq
import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from fcntl import LOCK_EX, LOCK_UN, lockf
from hashlib import blake2b
from typing import Final, NamedTuple

from minibroker.quotas.entity import Tags
from minibroker.quotas.lately import WORDS, Lately
from minibroker.quotas.rate import AVERAGE_SAMPLES, AVERAGE_WINDOW_MS

COUNTERS_MAX: Final = 131_072
"""Counters kept, four for each of 32,768 entities; with long windows fewer, see `BYTES_MAX`."""

BYTES_MAX: Final = 128 * 1024 * 1024
"""The most that the mapping may take; pages nobody has used take nothing."""

WAYS: Final = 64
"""Slots of a set."""

EXPIRES_MS: Final = 3_600_000
"""How long after its last record a counter is shown, as in Kafka."""

TEXT_BYTES: Final = 256
"""How much of the names in a counter's tags is kept for people to read."""

_WORD: Final = 8
_AVERAGE_RING: Final = AVERAGE_SAMPLES + 1

# Words of a slot: its head, the rate's ring, the ring of the throttle times, the names.
_LAST, _THROTTLED, _AT, _AVERAGE_AT, _TOKENS, _TOKENS_MS, _TEXT_LENGTH = range(7)
_OLDEST, _CHECK = 7, 8
"""The oldest sample's start, which holds until the time beside it; 0 if it has to be looked up."""
_DELAY: Final = 9
"""The throttle that began at the time in ``_THROTTLED``."""
_HEAD: Final = 10

# Words of the page before the sets: what is kept for the ledger as a whole.
_BITS: Final = 0
_LATELY: Final = 8
_PAGE_WORDS: Final = mmap.PAGESIZE // _WORD
assert _LATELY + WORDS <= _PAGE_WORDS


class Usage(NamedTuple):
    """A rate a second, and the time that it is an average over."""

    rate: float
    span_ms: int


class Sample(NamedTuple):
    """What was recorded from ``start_ms`` on for one window."""

    start_ms: int
    total: float


class LastThrottle(NamedTuple):
    """When it began, and for how long it is, or was."""

    at_ms: int
    throttle_ms: int


class NamedThrottle(NamedTuple):
    """One of the last throttles of all; the newest has the largest number."""

    number: int
    kind: str
    tags: Tags
    api_key: int
    last: LastThrottle


class Entry(NamedTuple):
    """A counter as it is shown; NaN stands for no throttle in the last minute."""

    kind: str
    tags: Tags
    usage: Usage
    samples: tuple[Sample, ...]
    throttle_ms: float
    last: LastThrottle | None
    tokens: float
    used: bool
    """Whether something was recorded in the last hour; the throttle times may be younger."""


class Ledger:
    """All counters.  Make it before the fork; without ``shared`` it is one process's own."""

    def __init__(self, samples: int, window_ms: int, *, shared: bool) -> None:
        """``samples`` and ``window_ms`` as in `quotas.rate.Rate`."""
        self.samples = samples
        self.window_ms = window_ms
        self.ring = samples + 1
        self.average_at = _HEAD + 3 * self.ring
        self.text_at = self.average_at + 4 * _AVERAGE_RING
        self.words = self.text_at + TEXT_BYTES // _WORD
        counters = min(COUNTERS_MAX, BYTES_MAX // (self.words * _WORD))
        self._sets = 1 << max(0, (counters // WAYS).bit_length() - 1)
        self.slots = self._sets * WAYS
        self.slots_at = _PAGE_WORDS + self.slots
        size = (self.slots_at + self.slots * self.words) * _WORD
        self.lock_fd = -1
        if shared:
            self.lock_fd = _nameless_file("minibroker-quotas")
            os.ftruncate(self.lock_fd, size)
        self._memory = mmap.mmap(self.lock_fd, size) if shared else mmap.mmap(-1, size)
        whole = memoryview(self._memory)
        self.doubles: memoryview[float] = whole.cast("d")
        self._page = whole[: mmap.PAGESIZE].cast("Q")
        self.hashes = whole[mmap.PAGESIZE : mmap.PAGESIZE + self.slots * _WORD].cast("Q")
        self._bytes = whole
        self._lately = Lately(self._page[_LATELY:])

    # What is kept for all --------------------------------------------------------------------

    def ever_set(self, number: int) -> int:
        """The kinds of entities (bits) for which quotas of a type were ever set."""
        return int(self._page[_BITS + number])

    def note_set(self, number: int, bits: int) -> int:
        """Adds to them; what they are now."""
        self.lock(self.slots + self._sets)
        try:
            self._page[_BITS + number] |= bits
        finally:
            self.unlock(self.slots + self._sets)
        return self.ever_set(number)

    def note_throttle(self, digest: int, api_key: int, throttle_ms: int, now_ms: int) -> None:
        """A throttle of a counter begins."""
        self.lock(self.slots + self._sets)
        try:
            self._lately.note(digest, api_key, throttle_ms, now_ms)
        finally:
            self.unlock(self.slots + self._sets)

    def lately(self) -> Iterator[NamedThrottle]:
        """The last throttles, newest first, but those of counters that were given up since."""
        self.lock(self.slots + self._sets)
        try:
            found = self._lately.newest_first()
        finally:
            self.unlock(self.slots + self._sets)
        for number, at_ms, digest, api_key, throttle_ms in found:
            slot = self._slot_of(digest)
            if slot is not None:
                kind, tags = self._names(slot)
                yield NamedThrottle(number, kind, tags, api_key, LastThrottle(at_ms, throttle_ms))

    # Locks -----------------------------------------------------------------------------------

    def lock(self, at: int) -> None:
        """Waits until nobody else has the slot or, from ``slots`` on, the set."""
        if self.lock_fd >= 0:
            lockf(self.lock_fd, LOCK_EX, 1, at)

    def unlock(self, at: int) -> None:
        """Lets others have it."""
        if self.lock_fd >= 0:
            lockf(self.lock_fd, LOCK_UN, 1, at)

    # Counters --------------------------------------------------------------------------------

    def counter(self, kind: str, tags: Tags, now_ms: int) -> Counter:
        """The counter of a quota type and a sharing group; a new one if there is none."""
        return Counter(self, kind, tags, now_ms)

    def place(self, digest: int, kind: str, tags: Tags, now_ms: int) -> int:
        """The slot of a counter, which it is given if it has none."""
        first = digest % self._sets * WAYS
        self.lock(self.slots + first // WAYS)
        try:
            hashes = self.hashes[first : first + WAYS].tolist()
            if digest in hashes:
                return first + hashes.index(digest)
            if 0 in hashes:
                slot = first + hashes.index(0)
            else:
                slot = min(range(first, first + WAYS), key=self._last_used)
            self._give(slot, digest, kind, tags, now_ms)
            return slot
        finally:
            self.unlock(self.slots + first // WAYS)

    def _last_used(self, slot: int) -> float:
        base = self.base(slot)
        return max(self.doubles[base + _LAST], self.doubles[base + _THROTTLED])

    def _give(self, slot: int, digest: int, kind: str, tags: Tags, now_ms: int) -> None:
        self.lock(slot)
        try:
            self.hashes[slot] = 0
            base = self.base(slot)
            fresh = [0.0] * self.text_at
            fresh[_LAST] = now_ms
            fresh[_THROTTLED] = -math.inf
            fresh[_TOKENS] = fresh[_TOKENS_MS] = math.inf
            for at, ring in ((_HEAD, self.ring), (self.average_at, _AVERAGE_RING)):
                fresh[at + ring : at + 3 * ring] = [math.inf] * (2 * ring)
            for offset, word in enumerate(fresh):
                self.doubles[base + offset] = word
            text = "\0".join((kind, *tags)).encode()[:TEXT_BYTES]
            at = (base + self.text_at) * _WORD
            self._bytes[at : at + len(text)] = text
            self.doubles[base + _TEXT_LENGTH] = len(text)
            self.hashes[slot] = digest
        finally:
            self.unlock(slot)

    def base(self, slot: int) -> int:
        """Where a slot begins among the doubles."""
        return self.slots_at + slot * self.words

    # Looking ---------------------------------------------------------------------------------

    def entries(self, now_ms: int, at_most: int) -> Iterator[Entry]:
        """The counters that were used in the last hour, latest first.  Looking changes nothing."""
        found = [slot for slot, digest in enumerate(self.hashes.tolist()) if digest]
        for slot in heapq.nlargest(at_most, found, key=self._last_used):
            entry = self._entry(slot, now_ms)
            if entry is not None:
                yield entry

    def used(self) -> int:
        """How many counters there are."""
        return self.slots - self.hashes.tolist().count(0)

    def entry(self, kind: str, tags: Tags, now_ms: int) -> Entry | None:
        """The same of one counter; None if it has not been used."""
        slot = self._slot_of(digest_of(kind, tags))
        return None if slot is None else self._entry(slot, now_ms)

    def _slot_of(self, digest: int) -> int | None:
        first = digest % self._sets * WAYS
        hashes = self.hashes[first : first + WAYS].tolist()
        return first + hashes.index(digest) if digest in hashes else None

    def _names(self, slot: int) -> tuple[str, Tags]:
        base = self.base(slot)
        at = (base + self.text_at) * _WORD
        raw = bytes(self._bytes[at : at + int(self.doubles[base + _TEXT_LENGTH])])
        kind, user, client = (raw.decode("utf-8", "replace") + "\0\0").split("\0")[:3]
        return kind, Tags(user, client)

    def _entry(self, slot: int, now_ms: int) -> Entry | None:
        base = self.base(slot)
        self.lock(slot)
        try:
            words = self.doubles[base : base + self.text_at].tolist()
            kind, tags = self._names(slot)
        finally:
            self.unlock(slot)
        used = now_ms - words[_LAST] <= EXPIRES_MS
        if not used and now_ms - words[_THROTTLED] > EXPIRES_MS:
            return None
        ring, at = self.ring, _HEAD
        sums, starts, lasts = (words[at + n * ring : at + (n + 1) * ring] for n in range(3))
        usage = measured((sums, starts, lasts), now_ms, self.samples, self.window_ms)
        samples = sorted(
            Sample(int(start), total)
            for start, total in zip(starts, sums, strict=True)
            if start < math.inf
        )
        average = self._average(words, now_ms)
        last = None
        if words[_THROTTLED] > -math.inf:
            last = LastThrottle(int(words[_THROTTLED]), int(words[_DELAY]))
        return Entry(kind, tags, usage, tuple(samples), average, last, words[_TOKENS], used)

    def _average(self, words: Sequence[float], now_ms: int) -> float:
        at, ring = self.average_at, _AVERAGE_RING
        sums, _, lasts, counts = (words[at + n * ring : at + (n + 1) * ring] for n in range(4))
        expires_ms = AVERAGE_SAMPLES * AVERAGE_WINDOW_MS
        live = [n for n, last in enumerate(lasts) if now_ms - last < expires_ms]
        count = sum(counts[n] for n in live)
        return sum(sums[n] for n in live) / count if count else math.nan


def _nameless_file(called: str) -> int:
    """A descriptor of a file in memory, or where the system has none, of one that is deleted."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(called)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def digest_of(kind: str, tags: Tags) -> int:
    """What a counter is found by; never 0."""
    text = "\0".join((kind, *tags)).encode()
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") or 1


def measured(
    ring: tuple[Sequence[float], Sequence[float], Sequence[float]],
    now_ms: int,
    samples: int,
    window_ms: int,
) -> Usage:
    """The rate of samples (totals, starts, last events) as if they were purged now."""
    sums, starts, lasts = ring
    live = [now_ms - last < samples * window_ms for last in lasts]
    oldest = min(start if alive else now_ms for start, alive in zip(starts, live, strict=True))
    total = sum(value for value, alive in zip(sums, live, strict=True) if alive)
    span_ms = span(oldest, now_ms, samples, window_ms)
    return Usage(total / (span_ms / 1000), span_ms)


def span(oldest_ms: float, now_ms: int, samples: int, window_ms: int) -> int:
    """What `Rate.span_ms` gives for an oldest sample; infinity stands for none."""
    elapsed = now_ms - int(oldest_ms) if oldest_ms < math.inf else 0
    missing = samples - 1 - elapsed // window_ms
    if missing > 0:
        elapsed += missing * window_ms
    return max(elapsed, 1)


class Counter:
    """One counter; any number of these may stand for the same, in any processes."""

    __slots__ = ("_digest", "_ledger", "_slot", "kind", "tags")

    def __init__(self, ledger: Ledger, kind: str, tags: Tags, now_ms: int) -> None:
        self._ledger = ledger
        self.kind = kind
        self.tags = tags
        self._digest = digest_of(kind, tags)
        self._slot = ledger.place(self._digest, kind, tags, now_ms)

    def _enter(self, now_ms: int) -> int:
        """Locks the slot, which is another one if the counter was given up meanwhile."""
        ledger = self._ledger
        while True:
            slot = self._slot
            if ledger.lock_fd >= 0:  # `lock` without its call, for this is asked for every request
                lockf(ledger.lock_fd, LOCK_EX, 1, slot)
            if ledger.hashes[slot] == self._digest:
                return slot
            ledger.unlock(slot)
            self._slot = ledger.place(self._digest, self.kind, self.tags, now_ms)

    def add(self, value: float, now_ms: int) -> None:
        """Adds a value."""
        slot = self._enter(now_ms)
        try:
            self._add(self._ledger.slots_at + slot * self._ledger.words, value, now_ms)
        finally:
            self._ledger.unlock(slot)

    def record(self, value: float, now_ms: int) -> tuple[float, int]:
        """Adds a value, which may be negative to take one back; the rate with it, and its span."""
        ledger = self._ledger
        slot = self._enter(now_ms)
        try:
            doubles = ledger.doubles
            base = ledger.slots_at + slot * ledger.words
            self._add(base, value, now_ms)
            if now_ms >= doubles[base + _CHECK]:
                self._look_through(base, now_ms)
            total = sum(doubles[base + _HEAD : base + _HEAD + ledger.ring].tolist())
            oldest = doubles[base + _OLDEST]
        finally:
            ledger.unlock(slot)
        span_ms = span(oldest, now_ms, ledger.samples, ledger.window_ms)
        return total / (span_ms / 1000), span_ms

    def _add(self, base: int, value: float, now_ms: int) -> None:
        ledger = self._ledger
        doubles, ring = ledger.doubles, ledger.ring
        at = int(doubles[base + _AT])
        here = base + _HEAD + at
        start = doubles[here + ring]
        if not now_ms - start < ledger.window_ms or start == math.inf:
            if start < math.inf:
                at = (at + 1) % ring
                here = base + _HEAD + at
            doubles[base + _CHECK] = 0
            _empty(doubles, here, ring, now_ms)
            doubles[base + _AT] = at
        else:
            doubles[here + 2 * ring] = now_ms
        doubles[base + _LAST] = now_ms
        doubles[here] += value

    def _look_through(self, base: int, now_ms: int) -> None:
        """Purges, and notes the oldest sample and when there may be something to purge again."""
        ledger = self._ledger
        doubles, ring = ledger.doubles, ledger.ring
        doubles[base + _CHECK] = 0
        expires_ms = ledger.samples * ledger.window_ms
        first = base + _HEAD
        dates = doubles[first + ring : first + 3 * ring].tolist()
        if now_ms - min(dates[ring:]) >= expires_ms:
            for n, last in enumerate(dates[ring:]):
                if now_ms - last >= expires_ms:
                    _empty(doubles, first + n, ring, now_ms)
            dates = doubles[first + ring : first + 3 * ring].tolist()
        doubles[base + _OLDEST] = min(dates[:ring])
        doubles[base + _CHECK] = min(dates[ring:]) + expires_ms

    def throttled(self, throttle_ms: int, api_key: int, now_ms: int) -> None:
        """A throttle begins: it is the last one, and counts for their average."""
        ledger, ring = self._ledger, _AVERAGE_RING
        slot = self._enter(now_ms)
        try:
            doubles, base = ledger.doubles, ledger.base(slot)
            first = base + ledger.average_at
            at = int(doubles[base + _AVERAGE_AT])
            start = doubles[first + ring + at]
            if start == math.inf or now_ms - start >= AVERAGE_WINDOW_MS:
                if start < math.inf:
                    at = (at + 1) % ring
                doubles[first + 3 * ring + at] = 0.0
                _empty(doubles, first + at, ring, now_ms)
                doubles[base + _AVERAGE_AT] = at
            doubles[first + 2 * ring + at] = now_ms
            doubles[base + _DELAY] = throttle_ms
            doubles[base + _THROTTLED] = now_ms
            doubles[first + 3 * ring + at] += 1
            doubles[first + at] += throttle_ms
        finally:
            ledger.unlock(slot)
        ledger.note_throttle(self._digest, api_key, throttle_ms, now_ms)

    def tokens(self, quota: float, burst: float, now_ms: int, permits: float) -> float:
        """Fills a bucket of ``burst`` tokens at ``quota`` a second, and takes ``permits``.

        What is in it afterwards, which may be negative.
        """
        ledger = self._ledger
        slot = self._enter(now_ms)
        try:
            doubles, base = ledger.doubles, ledger.base(slot)
            before, since = doubles[base + _TOKENS], doubles[base + _TOKENS_MS]
            filled = burst if before == math.inf else before + quota * (now_ms - since) / 1000
            left = min(burst, filled) - permits
            # The time first: who is killed between gives tokens away late, never twice.
            doubles[base + _TOKENS_MS] = now_ms
            doubles[base + _TOKENS] = left
            doubles[base + _LAST] = now_ms
            return left
        finally:
            ledger.unlock(slot)


def _empty(doubles: memoryview[float], at: int, ring: int, now_ms: int) -> None:
    """Begins a sample anew; the last word makes it count as new, so a torn one is done again."""
    doubles[at] = 0.0
    doubles[at + ring] = now_ms
    doubles[at + 2 * ring] = now_ms
