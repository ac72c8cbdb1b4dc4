"""What one request costs, compiled: what bytes or changes ask for, and how throttles are told of.

Owns what of the quotas a request counts for, which is as the broker has it; it must never know
when requests come or which comes next. Invariant: whatever is counted is counted once, before it
is checked. The compiled half of ``network.metering``, and so of ``ClientQuotaManager`` and
``ControllerMutationQuotaManager``.
"""

from __future__ import annotations

from typing import Final

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
    NOBODY,
    PRODUCE,
    PRODUCES,
    STRICT,
    THROTTLED,
    TOTAL_MS,
    Minutes,
    Tally,
)
from minibroker.quotas.manager import INT_MAX

MS_PER_MINUTE: Final = 60_000


@compiled
def kind_of(flags: int) -> int:
    """What of a request is counted beside time: of any at most one thing."""
    if flags & PRODUCES:
        return PRODUCE
    if flags & FETCHES:
        return NOBODY if flags & EXEMPT else FETCH
    return MUTATION if flags & MUTATES else NOBODY


@compiled
def check(
    words: Floats,
    counter: int,
    bound: float,
    amount: float,
    now_ms: int,
    window_ms: int,
    cap_ms: int,
    told: bool,
) -> tuple[int, float]:
    """Counts an amount; how long that holds its sender and, if that is to be told, the rate."""
    add(words, counter, amount, now_ms, window_ms)
    if not told and surely_below(words, counter, bound, window_ms):
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
    told: bool,
) -> tuple[int, float]:
    """The same of whatever is counted beside time; of changes the rate is what is left of them."""
    if flags & (PRODUCES | FETCHES):
        return check(words, counter, bound, amount, now_ms, window_ms, INT_MAX, told)
    asked_ms = mutation_ms(words, counter, bound, burst_s, now_ms, amount, flags & STRICT != 0)
    return asked_ms, words[counter, TOKENS]


@compiled
def tell(tally: Tally, minutes: Minutes, group: int, kind: int, wall_ms: int, held_ms: int) -> None:
    """Puts down that somebody is held."""
    if tally[group, kind, THROTTLED] == 0:
        tally[group, kind, FIRST_MS] = wall_ms
    tally[group, kind, LAST_MS] = wall_ms
    tally[group, kind, THROTTLED] += 1
    tally[group, kind, TOTAL_MS] += held_ms
    tally[group, kind, LONGEST_MS] = max(tally[group, kind, LONGEST_MS], held_ms)
    minute = wall_ms // MS_PER_MINUTE
    if minute != tally[group, kind, MINUTE]:
        end_minute(tally, minutes, group, kind)
        tally[group, kind, MINUTE] = minute
    tally[group, kind, MINUTE_COUNT] += 1
    tally[group, kind, MINUTE_MS] += held_ms


@compiled
def end_minute(tally: Tally, minutes: Minutes, group: int, kind: int) -> None:
    """Puts down the minute that was added up, if there was anything in it."""
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
    """Puts down the last minute of everybody."""
    for group in range(tally.shape[0]):
        for kind in range(tally.shape[1]):
            end_minute(tally, minutes, group, kind)
