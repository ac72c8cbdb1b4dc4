"""The most recent throttles of all processes, in a ring in shared memory.

Owns the layout of the records and the detection of incomplete ones. It must never know a lock, a
name or a clock: callers hold the lock, and counters are digests. Invariant: the newest
``RECENT_THROTTLES_MAX`` records are kept, with consecutive numbers from 1, even if a process is
killed while it writes. Kafka has no counterpart; it logs throttles at debug level.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from minibroker.broker.quotas.rate import Cause

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

WORDS: Final = 1 + RECENT_THROTTLES_MAX * _WIDTH
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
