"""Compiled accounting of one request: quota checks of its amounts, and throttle statistics.

Owns which quota a request counts for, like the broker; it must never know the order of requests.
Invariant: every amount is counted once, before the check. The compiled counterpart of
``network.quota_stage``, and so of ``ClientQuotaManager`` and ``ControllerMutationQuotaManager``.
"""

from __future__ import annotations

from typing import Final

from minibroker.broker.quotas.types import INT_MAX
from minibroker.pipeline.whatif.counters import (
    TOKENS,
    Floats,
    add,
    compiled,
    measure,
    mutation_ms,
    surely_below,
    throttle_ms,
)
from minibroker.pipeline.whatif.events import (
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
    Minutes,
    Tally,
)

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
