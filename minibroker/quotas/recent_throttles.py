"""The last throttles of a whole broker, in a few words of shared memory.

Owns where each record lies and how a torn one is told from a whole one; it must never know a lock,
a name or a clock: who calls has locked, and counters are digests here.  Invariant: the newest
``LATELY_MAX`` are kept, numbered from 1 by one each, whichever process was killed while writing.
Kafka has no counterpart: it logs throttles, if at all, at debug level.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

from minibroker.quotas.rate import Cause

RECENT_THROTTLES_MAX: Final = 62
"""Throttles kept; all of them fit into the page before the counters."""


class RecentThrottle(NamedTuple):
    """A throttle that began: of which counter, for which API, for how long, and why."""

    number: int
    at_ms: int
    digest: int
    api_key: int
    throttle_ms: int
    cause: Cause


_WIDTH: Final = len(RecentThrottle._fields) - 1 + len(Cause._fields)
_DOUBLE, _WORD = Struct("d"), Struct("Q")

WORDS: Final = 1 + RECENT_THROTTLES_MAX * _WIDTH
"""What it needs of the memory, which must be zeros at first."""


class RecentThrottles:
    """The ring; its first word is the newest one's number."""

    def __init__(self, words: memoryview[int]) -> None:
        """``words`` are unsigned and at least ``WORDS``."""
        self._words = words

    def record(
        self, digest: int, api_key: int, throttle_ms: int, cause: Cause, now_ms: int
    ) -> None:
        """A throttle begins; no whole number may be negative."""
        words = self._words
        number = words[0] + 1
        at = _place(number)
        # Without a number while it is torn; who is killed before the end leaves it to the next.
        words[at] = 0
        words[at + 1], words[at + 2], words[at + 3] = now_ms, digest, api_key
        words[at + 4], words[at + 5] = throttle_ms, cause.span_ms
        words[at + 6], words[at + 7] = _as_word(cause.rate), _as_word(cause.bound)
        words[at] = number
        words[0] = number

    def newest_first(self) -> list[RecentThrottle]:
        """Those that are kept."""
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
