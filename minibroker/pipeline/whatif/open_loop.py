"""The open loop, compiled: requests arrive as recorded, whatever throttles are replayed.

Owns the loop over requests and the amounts recorded after them; it must never keep a request: only
counters and lists of pending amounts live from one batch to the next. Invariant: a counter sees all
amounts ordered by ordinal, then by sequence, however requests are split into batches. ``KafkaApis``
does this request by request.

Senders that share a byte counter may have different time counters, and each counter has an order of
its own. So all times are replayed first, since they depend on nothing else, then the other amounts.
"""

from __future__ import annotations

from minibroker.pipeline.whatif.columns import (
    EXEMPT,
    FETCHES,
    MUTATION,
    NEVER,
    NONE,
    REQUEST,
    REQUESTS,
    UNTHROTTLED,
    Answers,
    Floats,
    Ints,
    Longs,
    Minutes,
    Pending,
    Requests,
    Sharing,
    Tally,
    Terms,
)
from minibroker.pipeline.whatif.counters import (
    add,
    check,
    check_first,
    compiled,
    count_throttle,
    kind_of,
)


@compiled
def _later(
    items: Longs,
    values: Floats,
    head: Longs,
    counter: int,
    order: int,
    sequence: int,
    value: float,
    ms: int,
) -> None:
    """Schedule an amount to be recorded later."""
    item = head[0]
    head[0] = items[item, 2]
    items[item, 0] = order
    items[item, 1] = sequence
    items[item, 3] = ms
    values[item] = value
    before = NONE
    at = head[counter + 1]
    while at != NONE and (
        items[at, 0] < order or (items[at, 0] == order and items[at, 1] < sequence)
    ):
        before, at = at, items[at, 2]
    items[item, 2] = at
    if before == NONE:
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
    order: int,
    sequence: int,
    window_ms: int,
) -> None:
    """Record the amounts that are due before a request."""
    item = head[counter + 1]
    while item != NONE and (
        items[item, 0] < order or (items[item, 0] == order and items[item, 1] < sequence)
    ):
        add(words, counter, values[item], items[item, 3], window_ms)
        after = items[item, 2]
        items[item, 2] = head[0]
        head[0] = item
        item = after
    head[counter + 1] = item


@compiled
def _comes_next(
    orders: Longs, groups: Ints, counters: Ints, row: int, timer: int, then: int
) -> bool:
    """Whether a counter certainly records nothing else before an ordinal, as it nearly always does.

    The caller has checked already whether the ordinal is later than the request itself.
    """
    after = row + 1
    if after == len(orders) or counters[groups[after], REQUEST] != timer:
        return False
    return bool(orders[after] > then)


@compiled
def _answer(throttles: Longs, row: int, kind: int, throttled_ms: int) -> None:
    throttles[row, 0] = throttled_ms
    throttles[row, 1] = kind if throttled_ms > 0 else NONE


@compiled
def room(pending: Pending) -> int:
    """The number of free items."""
    found = 0
    item = pending.head[0]
    while item != NONE:
        found += 1
        item = pending.items[item, 2]
    return found


@compiled
def walk_times(
    requests: Requests,
    sharing: Sharing,
    words: Floats,
    pending: Pending,
    tally: Tally,
    answers: Answers,
    terms: Terms,
    worked: Longs,
) -> None:
    """Replay worked time; ``worked`` receives the throttle time of each row."""
    all_ms, groups, all_flags, sequences = (
        requests.ms, requests.group, requests.flags, requests.sequence,
    )  # fmt: skip
    orders, late_orders = requests.time_order, requests.late_order
    checked, late, late_ms = requests.checked, requests.late, requests.late_ms
    counters, bounds, counted_from_ms = sharing
    items, values, head = pending
    by_type, rates, with_rate = (
        answers.type_throttles,
        answers.rate,
        len(answers.type_throttles) > 0,
    )
    window_ms = terms.window_ms
    for row in range(len(all_ms)):
        now_ms, group, sequence = all_ms[row], groups[row], sequences[row]
        counter = counters[group, REQUEST]
        if counter == NONE or all_flags[row] & EXEMPT:
            worked[row] = 0
            continue
        _catch_up(items, values, head, words, counter, orders[row], sequence, window_ms)
        throttled_ms, rate = check(
            words, counter, bounds[group, REQUEST], checked[row], now_ms, window_ms, window_ms,
            with_rate,
        )  # fmt: skip
        worked[row] = throttled_ms
        if with_rate:
            by_type[row, REQUEST], rates[row, REQUEST] = throttled_ms, rate
        then = late_orders[row]
        if then <= orders[row] or (
            head[counter + 1] == NONE and _comes_next(orders, groups, counters, row, counter, then)
        ):
            add(words, counter, late[row], late_ms[row], window_ms)
        elif then != NEVER:
            _later(items, values, head, counter, then, sequence, late[row], late_ms[row])
        tally[group, REQUEST, REQUESTS] += now_ms >= counted_from_ms[group]


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
    worked: Longs,
) -> None:
    """Replay a batch with muted senders; ``pending`` and ``minutes`` must have enough capacity."""
    all_ms, orders, sequences, groups, all_flags, amounts = requests[:6]
    back_orders, wall_ms, lags_ms = requests.back_order, requests.wall_ms, requests.lag_ms
    counters, bounds, counted_from_ms = sharing
    items, values, head = pending
    throttles, by_type, rates = answers
    with_rate = len(by_type) > 0
    window_ms, burst_s = terms.window_ms, terms.burst_s
    for row in range(len(all_ms)):
        now_ms, group, flags = all_ms[row], groups[row], all_flags[row]
        counted = now_ms >= counted_from_ms[group]
        kind, throttled_ms = kind_of(flags), 0
        counter = counters[group, kind] if kind != NONE else NONE
        if counter != NONE:
            if head[counter + 1] != NONE:
                order, sequence = orders[row], sequences[row]
                _catch_up(items, values, head, words, counter, order, sequence, window_ms)
            lag_ms = lags_ms[row] if kind == MUTATION else 0
            throttled_ms, rate = check_first(
                words, counter, bounds[group, kind], amounts[row], now_ms - lag_ms, window_ms,
                burst_s, flags, with_rate,
            )  # fmt: skip
            if with_rate:
                by_type[row, kind], rates[row, kind] = throttled_ms, rate
            throttled_ms = 0 if flags & UNTHROTTLED else max(0, throttled_ms - lag_ms)
            tally[group, kind, REQUESTS] += counted
        if worked[row] >= throttled_ms:
            kind, throttled_ms = REQUEST, worked[row]
        if throttled_ms > 0:
            if (
                flags & FETCHES and counter != NONE
            ):  # The bytes that were not fetched are given back.
                then, value = back_orders[row], -amounts[row]
                _later(items, values, head, counter, then, sequences[row], value, now_ms)
            if counted:
                count_throttle(tally, minutes, group, kind, wall_ms[row], throttled_ms)
        if with_rate:
            _answer(throttles, row, kind, throttled_ms)
