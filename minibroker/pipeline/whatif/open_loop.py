"""The open loop, compiled: requests come when they came, whatever would have held their senders.

Owns the walk over requests and the worked time that is counted after them; it must never keep a
request: what goes from one batch to the next are counters and lists of what is yet to be counted.
Invariant: a counter sees everything by time, and at one time by sequence, however requests are cut
into batches. What ``KafkaApis`` does request by request.
"""

from __future__ import annotations

from minibroker.pipeline.whatif.counters import Floats, add, compiled
from minibroker.pipeline.whatif.decide import check, check_first, kind_of, tell
from minibroker.pipeline.whatif.events import (
    EXEMPT,
    FETCHES,
    MUTATION,
    NEVER,
    NOBODY,
    REQUEST,
    REQUESTS,
    Answers,
    Ints,
    Longs,
    Minutes,
    Pending,
    Requests,
    Sharing,
    Tally,
    Terms,
)


@compiled
def _later(
    items: Longs,
    values: Floats,
    head: Longs,
    counter: int,
    now_ms: int,
    sequence: int,
    value: float,
) -> None:
    """Notes worked time that is to be counted later."""
    item = head[0]
    head[0] = items[item, 2]
    items[item, 0] = now_ms
    items[item, 1] = sequence
    values[item] = value
    before = NOBODY
    at = head[counter + 1]
    while at != NOBODY and (
        items[at, 0] < now_ms or (items[at, 0] == now_ms and items[at, 1] < sequence)
    ):
        before, at = at, items[at, 2]
    items[item, 2] = at
    if before == NOBODY:
        head[counter + 1] = item
    else:
        items[before, 2] = item


@compiled
def _catch_up(
    items: Longs,
    values: Floats,
    head: Longs,
    words: Floats,
    counter: int,
    now_ms: int,
    sequence: int,
    window_ms: int,
) -> None:
    """Counts what was to be counted before a request."""
    item = head[counter + 1]
    while item != NOBODY and (
        items[item, 0] < now_ms or (items[item, 0] == now_ms and items[item, 1] < sequence)
    ):
        add(words, counter, values[item], items[item, 0], window_ms)
        after = items[item, 2]
        items[item, 2] = head[0]
        head[0] = item
        item = after
    head[counter + 1] = item


@compiled
def _comes_next(
    all_ms: Longs, groups: Ints, counters: Ints, row: int, timer: int, then_ms: int
) -> bool:
    """Whether it is sure that a counter counts nothing else before a time, as nearly always."""
    after = row + 1
    if after == len(all_ms) or counters[groups[after], REQUEST] != timer:
        return False
    return bool(all_ms[after] > then_ms)


@compiled
def _answer(held: Longs, row: int, kind: int, held_ms: int) -> None:
    held[row, 0] = held_ms
    held[row, 1] = kind if held_ms > 0 else NOBODY


@compiled
def _take_back(
    words: Floats, counter: int, amount: float, flags: int, now_ms: int, window_ms: int
) -> None:
    """Uncounts what was not fetched after all, as its sender is held."""
    if flags & (FETCHES | EXEMPT) == FETCHES and counter != NOBODY:
        add(words, counter, -amount, now_ms, window_ms)


@compiled
def room(pending: Pending) -> int:
    """How many there is room for."""
    found = 0
    item = pending.head[0]
    while item != NOBODY:
        found += 1
        item = pending.items[item, 2]
    return found


@compiled
def open_loop(
    requests: Requests,
    sharing: Sharing,
    words: Floats,
    pending: Pending,
    tally: Tally,
    minutes: Minutes,
    answers: Answers,
    terms: Terms,
) -> None:
    """Replays a batch, with senders muted. There must be room in ``pending`` and ``minutes``."""
    all_ms, sequences, groups, all_flags, amounts, checked, late, late_ms = requests[:8]
    wall_ms, lags_ms = requests[8:10]
    counters, bounds, counted_from_ms = sharing
    items, values, head = pending
    held, asked, rates = answers
    window_ms, burst_s = terms.window_ms, terms.burst_s
    for row in range(len(all_ms)):
        now_ms, group, flags = all_ms[row], groups[row], all_flags[row]
        counted = now_ms >= counted_from_ms[group]
        kind, held_ms = kind_of(flags), 0
        counter = counters[group, kind] if kind != NOBODY else NOBODY
        if counter != NOBODY:
            lag_ms = lags_ms[row] if kind == MUTATION else 0
            held_ms, rate = check_first(
                words, counter, bounds[group, kind], amounts[row], now_ms - lag_ms, window_ms,
                burst_s, flags,
            )  # fmt: skip
            if len(asked):
                asked[row, kind], rates[row, kind] = held_ms, rate
            held_ms = max(0, held_ms - lag_ms)
            tally[group, kind, REQUESTS] += counted
        timer = counters[group, REQUEST]
        if timer != NOBODY and not flags & EXEMPT:
            sequence = sequences[row]
            _catch_up(items, values, head, words, timer, now_ms, sequence, window_ms)
            worked_ms, rate = check(
                words, timer, bounds[group, REQUEST], checked[row], now_ms, window_ms, window_ms
            )
            if len(asked):
                asked[row, REQUEST], rates[row, REQUEST] = worked_ms, rate
            if late_ms[row] != NEVER:
                then_ms = late_ms[row]
                if head[timer + 1] == NOBODY and _comes_next(
                    all_ms, groups, counters, row, timer, then_ms
                ):
                    add(words, timer, late[row], then_ms, window_ms)
                else:
                    _later(items, values, head, timer, then_ms, sequence, late[row])
            tally[group, REQUEST, REQUESTS] += counted
            if worked_ms >= held_ms:
                kind, held_ms = REQUEST, worked_ms
        if held_ms > 0:
            _take_back(words, counter, amounts[row], flags, now_ms, window_ms)
            if counted:
                tell(tally, minutes, group, kind, wall_ms[row], held_ms)
        if len(held):
            _answer(held, row, kind, held_ms)
