"""The arithmetic of quotas, compiled: rates, throttle times, token buckets, and a request's checks.

Owns the state of the counters, a row of words for each, and which quota a request counts for; it
must never know where events come from, or the order of requests. Invariant: every operation gives
the same result as ``quotas.rate`` and ``quotas.ledger``, to the last bit, which a property test
verifies; so no sum of floats may be reordered for speed. Every amount is counted once, before the
check. Kafka's ``SampledStat``, ``Rate``, ``QuotaUtils``, ``TokenBucket``, ``ClientQuotaManager``
and ``ControllerMutationQuotaManager``.

Compiled functions take few arrays and no tuples: each array argument costs a reference count, which
for forty arrays exceeds all the arithmetic.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np

from minibroker.broker.quotas.types import INT_MAX
from minibroker.pipeline.whatif.columns import (
    EXEMPT,
    FETCH,
    FETCHES,
    FIRST_MS,
    LAST_MS,
    LONGEST_MS,
    MINUTE,
    MINUTE_COUNT,
    MINUTE_MS,
    MUTATES,
    MUTATION,
    NONE,
    PRODUCE,
    PRODUCES,
    STRICT,
    THROTTLED,
    TOTAL_MS,
    Floats,
    Minutes,
    Tally,
)

# Counters ----------------------------------------------------------------------------------------

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile a function at its first call, and cache it on disk."""
    # Without fastmath, which would reorder sums; possible divisions by 0 are checked explicitly,
    # because automatic checks cost a tenth.
    made = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return cast("Function", made)


def inlined(function: Function) -> Function:
    """Compile for inlining into every caller, which avoids passing arguments."""
    return cast("Function", numba.njit(inline="always", error_model="numpy")(function))


COMPENSATED: Final = sys.version_info >= (3, 12)
"""Whether Python's own sum of floats uses compensated summation, which is replicated here."""

# Words of a counter; behind them for each sample of the ring its start, its last event, its sum.
# Doubles hold milliseconds exactly.
_AT: Final = 0
_OLDEST, _CHECK = 1, 2
"""The oldest sample's start, valid until the time in ``_CHECK``; 0 if it is unknown."""
TOKENS, _TOKENS_MS = 3, 4
_MOST: Final = 5
"""Upper bound of the sum of all samples; infinite if it is unknown."""
_RING: Final = 6

_ROUNDED_UP: Final = 1 + 2**-51
"""Rounds a result up to at least its exact value, once for two operations."""
_SURELY: Final = 1 - 1e-9
"""A margin much larger than the rounding errors of a sum of samples and a division."""


def new_counters(count: int, samples: int) -> Floats:
    """New counters: nothing was recorded, and token buckets are full."""
    words = np.zeros((count, _RING + 3 * (samples + 1)))
    words[:, _RING : _RING + 2 * (samples + 1)] = math.inf
    words[:, TOKENS] = math.inf
    return words


def more_counters(words: Floats, count: int) -> Floats:
    """Extend the counters to ``count``."""
    samples = (words.shape[1] - _RING) // 3 - 1
    return np.concatenate((words, new_counters(count - len(words), samples)))


@compiled
def add(words: Floats, counter: int, value: float, now_ms: int, window_ms: int) -> None:
    """Record a value, which may be negative."""
    ring = (words.shape[1] - _RING) // 3
    at = int(words[counter, _AT])
    start = words[counter, _RING + at]
    if not now_ms - start < window_ms or start == math.inf:
        if start != math.inf:
            at += 1
            if at == ring:
                at = 0
            words[counter, _AT] = at
        if words[counter, _RING + at] <= words[counter, _OLDEST]:
            words[counter, _CHECK] = 0
        words[counter, _MOST] -= words[counter, _RING + 2 * ring + at]
        words[counter, _RING + 2 * ring + at] = 0.0
        words[counter, _RING + at] = now_ms
    words[counter, _RING + ring + at] = now_ms
    words[counter, _RING + 2 * ring + at] += value
    most = math.inf if value < 0 else (words[counter, _MOST] + value) * _ROUNDED_UP
    words[counter, _MOST] = most


@compiled
def _look_through(words: Floats, counter: int, now_ms: int, window_ms: int) -> None:
    """Purge obsolete samples, and note until when the oldest one remains valid."""
    ring = (words.shape[1] - _RING) // 3
    expires_ms = (ring - 1) * window_ms
    oldest = first_last = math.inf
    most = 0.0
    for n in range(ring):
        last = words[counter, _RING + ring + n]
        if now_ms - last >= expires_ms:
            words[counter, _RING + 2 * ring + n] = 0.0
            words[counter, _RING + ring + n] = words[counter, _RING + n] = last = now_ms
        oldest = min(oldest, words[counter, _RING + n])
        first_last = min(first_last, last)
        value = words[counter, _RING + 2 * ring + n]
        most = math.inf if value < 0 else (most + value) * _ROUNDED_UP
    words[counter, _MOST] = most
    words[counter, _OLDEST] = oldest
    words[counter, _CHECK] = first_last + expires_ms


@compiled
def _total(words: Floats, counter: int) -> float:
    width = words.shape[1]
    total = lost = 0.0
    for n in range(width - (width - _RING) // 3, width):
        value = words[counter, n]
        if COMPENSATED:
            after = total + value
            if abs(total) >= abs(value):
                lost += (total - after) + value
            else:
                lost += (value - after) + total
            total = after
        else:
            total += value
    return total + lost


@compiled
def surely_below(words: Floats, counter: int, bound: float, window_ms: int) -> bool:
    """Whether the rate is certainly within the bound, as it nearly always is.

    If so, samples need neither be summed nor purged, because obsolete ones only increase the upper
    bound. The rate is an average over at least all complete samples.
    """
    samples = (words.shape[1] - _RING) // 3 - 1
    least_ms = (samples - 1) * window_ms
    return bool(words[counter, _MOST] * 1000 <= bound * least_ms * _SURELY)


@compiled
def measure(words: Floats, counter: int, now_ms: int, window_ms: int) -> tuple[float, int]:
    """The rate, measured at the time of the last recorded value, and the length of its window."""
    if now_ms >= words[counter, _CHECK]:
        _look_through(words, counter, now_ms, window_ms)
    samples = (words.shape[1] - _RING) // 3 - 1
    elapsed = now_ms - int(words[counter, _OLDEST])
    if elapsed < (samples - 1) * window_ms:
        elapsed += (samples - 1 - elapsed // window_ms) * window_ms
    span_ms = max(elapsed, 1)
    return _total(words, counter) / (span_ms / 1000), span_ms


@compiled
def throttle_ms(rate: float, bound: float, span_ms: int, cap_ms: int) -> int:
    """The throttle time of a rate above the bound, at most ``cap_ms``; else 0."""
    if rate <= bound:
        return 0
    if bound == 0:
        return cap_ms
    wanted = np.floor((rate - bound) / bound * span_ms + 0.5)
    # Compared as floats, because a tiny bound gives a time beyond 64 bits.
    return cap_ms if wanted >= cap_ms else int(wanted)


@compiled
def take_tokens(
    words: Floats, counter: int, quota: float, burst: float, now_ms: int, permits: float
) -> float:
    """Refill a bucket of ``burst`` tokens at ``quota`` a second, take some, return the rest."""
    before = words[counter, TOKENS]
    filled = burst
    if before != math.inf:
        filled = before + quota * (now_ms - words[counter, _TOKENS_MS]) / 1000
    left = min(burst, filled) - permits
    words[counter, _TOKENS_MS] = now_ms
    words[counter, TOKENS] = left
    return left


@compiled
def mutation_ms(
    words: Floats,
    counter: int,
    quota: float,
    burst_s: float,
    now_ms: int,
    permits: float,
    strict: bool,
) -> int:
    """The throttle time of mutations; strict ones are rejected if it is above 0.

    A strict bucket is checked before tokens are taken, a permissive one afterwards.
    """
    burst = quota * burst_s
    left = take_tokens(words, counter, quota, burst, now_ms, 0.0 if strict else permits)
    if left >= 0:
        if strict:
            take_tokens(words, counter, quota, burst, now_ms, permits)
        return 0
    wanted = np.floor(-left / quota * 1000 + 0.5)
    return INT_MAX if wanted >= INT_MAX else int(wanted)


# Requests ----------------------------------------------------------------------------------------

MS_PER_MINUTE: Final = 60_000


@compiled
def kind_of(flags: int) -> int:
    """The quota type for which a request counts in addition to time; at most one."""
    if flags & PRODUCES:
        return PRODUCE
    if flags & FETCHES:
        return NONE if flags & EXEMPT else FETCH
    return MUTATION if flags & MUTATES else NONE


@compiled
def check(
    words: Floats,
    counter: int,
    bound: float,
    amount: float,
    now_ms: int,
    window_ms: int,
    cap_ms: int,
    with_rate: bool,
) -> tuple[int, float]:
    """Record an amount; return the throttle time and, if ``with_rate``, the rate."""
    add(words, counter, amount, now_ms, window_ms)
    if not with_rate and surely_below(words, counter, bound, window_ms):
        return 0, 0.0
    rate, span_ms = measure(words, counter, now_ms, window_ms)
    return throttle_ms(rate, bound, span_ms, cap_ms), rate


@compiled
def check_first(
    words: Floats,
    counter: int,
    bound: float,
    amount: float,
    now_ms: int,
    window_ms: int,
    burst_s: float,
    flags: int,
    with_rate: bool,
) -> tuple[int, float]:
    """Record the amount other than time; mutations return their remaining tokens as rate."""
    if flags & (PRODUCES | FETCHES):
        return check(words, counter, bound, amount, now_ms, window_ms, INT_MAX, with_rate)
    requested_ms = mutation_ms(words, counter, bound, burst_s, now_ms, amount, flags & STRICT != 0)
    return requested_ms, words[counter, TOKENS]


@compiled
def count_throttle(
    tally: Tally, minutes: Minutes, group: int, kind: int, wall_ms: int, throttled_ms: int
) -> None:
    """Record a throttle in the statistics."""
    if tally[group, kind, THROTTLED] == 0:
        tally[group, kind, FIRST_MS] = wall_ms
    tally[group, kind, LAST_MS] = wall_ms
    tally[group, kind, THROTTLED] += 1
    tally[group, kind, TOTAL_MS] += throttled_ms
    tally[group, kind, LONGEST_MS] = max(tally[group, kind, LONGEST_MS], throttled_ms)
    minute = wall_ms // MS_PER_MINUTE
    if minute != tally[group, kind, MINUTE]:
        end_minute(tally, minutes, group, kind)
        tally[group, kind, MINUTE] = minute
    tally[group, kind, MINUTE_COUNT] += 1
    tally[group, kind, MINUTE_MS] += throttled_ms


@compiled
def end_minute(tally: Tally, minutes: Minutes, group: int, kind: int) -> None:
    """Write the current minute's row, if anything was throttled in it."""
    if tally[group, kind, MINUTE_COUNT] == 0:
        return
    at = minutes[0, 0] + 1
    if at < len(minutes):
        minutes[0, 0] = at
        minutes[at, 0] = group
        minutes[at, 1] = kind
        minutes[at, 2] = tally[group, kind, MINUTE]
        minutes[at, 3] = tally[group, kind, MINUTE_COUNT]
        minutes[at, 4] = tally[group, kind, MINUTE_MS]
    tally[group, kind, MINUTE_COUNT] = 0
    tally[group, kind, MINUTE_MS] = 0


@compiled
def end_minutes(tally: Tally, minutes: Minutes) -> None:
    """Write the last minute of all groups."""
    for group in range(tally.shape[0]):
        for kind in range(tally.shape[1]):
            end_minute(tally, minutes, group, kind)
