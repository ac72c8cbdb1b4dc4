"""Compiled replays in which decisions delay later requests: the closed loop, and delayed responses.

Owns an event queue of requests that share counters or connections; all such requests have to be
given at once. Invariant: each connection has one request in flight, and the next one follows the
response to the previous one after the longer of the recorded pause and the throttle; amounts
are recorded in the order of time. Resembles muting in ``KafkaChannel`` and, for delayed responses,
KIP-124.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

import numpy as np

from minibroker.pipeline.whatif.columns import (
    ABANDONED,
    EXEMPT,
    FETCH,
    FETCHES,
    MUTATION,
    NEVER,
    NONE,
    RECORDED_END_MS,
    REPEATED,
    REPLAYED_END_MS,
    REQUEST,
    REQUESTS,
    STRICT,
    UNTHROTTLED,
    Answers,
    Ends,
    Flags,
    Floats,
    Longs,
    Minutes,
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
    inlined,
    kind_of,
)

RECORD_LATE_TIME, CHECK_REQUEST, CHECK_TIME = range(3)
"""Event types: record a request's late time, check a request, check only its worked time."""

TRIES_MAX: Final = 1_000
"""Attempts of a request that is rejected, or answered in part, before it is abandoned."""

WAKE_MS: Final = 20
"""A request that follows the end of a throttle within this time waited for the throttle alone: how
long the client would have paused without it is unknown, and taken as 0.
"""

ABANDONED_MAX: Final = 100
"""Abandoned requests of a sender after which its others get only one attempt: under a small
request_percentage each attempt takes more time than there is.
"""


class RequestChain(NamedTuple):
    """The sequence of requests, by row."""

    following: Longs
    """The next request of the connection, or ``NONE``."""
    begins: Flags
    """Whether it waits for no other request: a connection's first, or any in the open loop."""
    pause_ms: Longs
    """The pause between the previous response and this request, which the client spends while it is
    throttled; for a first one, the offset from its recorded time.
    """
    rest: Floats
    """The rest of its amount."""
    tries: Longs
    first_ms: Longs
    """The throttle time due to amounts other than time."""


class SimulationState(NamedTuple):
    """The complete state of a replay; passed to inlined functions only."""

    requests: Requests
    chain: RequestChain
    sharing: Sharing
    words: Floats
    tally: Tally
    minutes: Minutes
    ends: Ends
    answers: Answers
    terms: Terms


Queue = list[tuple[int, int, int, int]]
"""A heap of events: time, the request's sequence, event type, row."""


def request_chain_of(requests: Requests, terms: Terms) -> RequestChain:
    """The sequence of requests in the closed loop; in the open loop each stands alone."""
    rows = len(requests.ms)
    chain = RequestChain(
        np.full(rows, NONE, np.int64),
        np.ones(rows, np.bool_),
        np.zeros(rows, np.int64),
        requests.amount.copy(),
        np.zeros(rows, np.int64),
        np.zeros(rows, np.int64),
    )
    if terms.closed and rows:
        order = np.lexsort((requests.sequence, requests.ms, requests.connection))
        _chain_requests(requests, chain, order, terms.delays)
    return chain


@compiled
def _chain_requests(requests: Requests, chain: RequestChain, order: Longs, delays: bool) -> None:
    """Chain each connection's requests; of repeated ones only the last is kept."""
    all_ms, connections, all_flags = requests.ms, requests.connection, requests.flags
    late_ms, all_throttled_ms = requests.late_ms, requests.throttled_ms
    following, begins, pause_ms = chain[:3]
    before = NONE
    answered_ms = before_throttled_ms = 0
    requested_ms = NEVER
    for at in range(len(order)):
        row = order[at]
        last = at + 1 == len(order) or connections[order[at + 1]] != connections[row]
        now_ms, throttled_ms = all_ms[row], all_throttled_ms[row]
        if requested_ms == NEVER:
            requested_ms = now_ms
        begins[row] = False
        if last or not all_flags[row] & REPEATED:
            if before == NONE:
                begins[row] = True
                pause_ms[row] = requested_ms - now_ms
            else:
                following[before] = row
                pause_ms[row] = _pause_ms(requested_ms - answered_ms, before_throttled_ms)
            before = row
            requested_ms = NEVER
            answered_ms = now_ms + _service_ms(now_ms, late_ms[row], throttled_ms, delays)
            answered_ms += throttled_ms if delays else 0
            before_throttled_ms = 0 if delays else throttled_ms
        if last:
            before = NONE
            requested_ms = NEVER


@compiled
def _pause_ms(apart_ms: int, throttled_ms: int) -> int:
    """The client's pause between a response and the next request, ``apart_ms`` later."""
    if throttled_ms > 0 and apart_ms <= throttled_ms + WAKE_MS:
        return max(0, apart_ms - throttled_ms)
    return max(0, apart_ms)


@compiled
def _service_ms(ms: int, late_ms: int, throttled_ms: int, delays: bool) -> int:
    """The recorded time from the last check to the response."""
    if late_ms == NEVER:
        return 0
    return max(0, late_ms - ms - (throttled_ms if delays else 0))


@compiled
def _part(rest: float, flags: int, bound: float, terms: Terms) -> float:
    """The amount of one attempt: a fetch returns no more than its quota allows at once."""
    if not terms.closed or flags & (FETCHES | EXEMPT) != FETCHES:
        return rest
    return min(rest, max(1.0, bound * terms.fetch_cap_s))


@compiled
def simulate(stage: SimulationState) -> None:
    """Replay all requests of senders that share anything."""
    requests, chain, sharing, words = stage[:4]
    window_ms = stage.terms.window_ms
    all_ms, sequences, groups, late = requests.ms, requests.sequence, requests.group, requests.late
    queue = [
        (all_ms[row] + chain.pause_ms[row], sequences[row], CHECK_REQUEST, row)
        for row in range(len(all_ms))
        if chain.begins[row]
    ]
    heapify(queue)
    while queue:
        now_ms, _, what, row = heappop(queue)
        if what == RECORD_LATE_TIME:
            timer = sharing.counter[groups[row], REQUEST]
            add(words, timer, late[row], now_ms, window_ms)
            continue
        if what == CHECK_REQUEST:
            waits_ms = _check_amount(stage, row, now_ms)
            if waits_ms > 0:
                heappush(queue, (now_ms + waits_ms, sequences[row], CHECK_TIME, row))
                continue
        _check_time(stage, queue, row, now_ms)


@inlined
def _check_amount(stage: SimulationState, row: int, now_ms: int) -> int:
    """Record a request's amount other than time; return the delay of its response."""
    requests, chain, sharing = stage.requests, stage.chain, stage.sharing
    tally, answers, terms = stage.tally, stage.answers, stage.terms
    group, flags = requests.group[row], requests.flags[row]
    kind = kind_of(flags)
    chain.first_ms[row] = 0
    if kind == NONE or sharing.counter[group, kind] == NONE:
        return 0
    counter, bound = sharing.counter[group, kind], sharing.bound[group, kind]
    amount = _part(chain.rest[row], flags, bound, terms)
    lag_ms = requests.lag_ms[row] if kind == MUTATION else 0
    with_rate = len(answers.type_throttles) > 0
    requested_ms, rate = check_first(
        stage.words, counter, bound, amount, now_ms - lag_ms, terms.window_ms, terms.burst_s,
        flags, with_rate,
    )  # fmt: skip
    if with_rate:
        answers.type_throttles[row, kind], answers.rate[row, kind] = requested_ms, rate
    throttled_ms = 0 if flags & UNTHROTTLED else max(0, requested_ms - lag_ms)
    chain.first_ms[row] = throttled_ms
    counted = requests.ms[row] >= sharing.counted_from_ms[group]
    tally[group, kind, REQUESTS] += counted
    if not terms.delays:
        return 0
    if throttled_ms > 0 and counted:
        wall_ms = requests.wall_ms[row] + now_ms - requests.ms[row]
        count_throttle(tally, stage.minutes, group, kind, wall_ms, throttled_ms)
    return throttled_ms


@inlined
def _check_time(stage: SimulationState, queue: Queue, row: int, now_ms: int) -> None:
    """Check a request's worked time; decide its throttle, its response time and what follows."""
    requests, chain, sharing, words, tally = stage[:5]
    answers, terms = stage.answers, stage.terms
    group, flags = requests.group[row], requests.flags[row]
    counted = requests.ms[row] >= sharing.counted_from_ms[group]
    first_ms, first_kind = chain.first_ms[row], kind_of(flags)
    kind, throttled_ms = REQUEST, 0
    with_rate = len(answers.type_throttles) > 0
    timer = NONE if flags & EXEMPT else sharing.counter[group, REQUEST]
    if timer != NONE:
        bound, window_ms = sharing.bound[group, REQUEST], terms.window_ms
        throttled_ms, rate = check(
            words, timer, bound, requests.checked[row], now_ms, window_ms, window_ms, with_rate
        )
        if with_rate:
            answers.type_throttles[row, REQUEST], answers.rate[row, REQUEST] = throttled_ms, rate
        tally[group, REQUEST, REQUESTS] += counted
    if first_ms > throttled_ms and not terms.delays:
        kind, throttled_ms = first_kind, first_ms
    if throttled_ms > 0 and counted:
        wall_ms = requests.wall_ms[row] + now_ms - requests.ms[row]
        count_throttle(tally, stage.minutes, group, kind, wall_ms, throttled_ms)
    late_ms = requests.late_ms[row]
    answered_ms = now_ms + (throttled_ms if terms.delays else 0)
    answered_ms += _service_ms(requests.ms[row], late_ms, requests.throttled_ms[row], terms.delays)
    if timer != NONE and late_ms != NEVER:
        heappush(queue, (answered_ms, requests.sequence[row], RECORD_LATE_TIME, row))
    amount = _part(chain.rest[row], flags, sharing.bound[group, FETCH], terms)
    again = flags & STRICT != 0 and first_kind == MUTATION and first_ms > 0
    if throttled_ms > 0 and not terms.delays and flags & (FETCHES | EXEMPT) == FETCHES:
        again = True
        counter = sharing.counter[group, FETCH]
        if counter != NONE:
            add(words, counter, -amount, now_ms, terms.window_ms)
    if not again:
        chain.rest[row] -= amount
    if with_rate:
        _answer(
            answers.throttles, row, kind, throttled_ms, first_kind, first_ms if terms.delays else 0
        )
    if terms.closed:
        wait_ms = 0 if terms.delays else throttled_ms
        _schedule_next(stage, queue, row, answered_ms, wait_ms, again)


@compiled
def _answer(
    throttles: Longs, row: int, kind: int, throttled_ms: int, first_kind: int, first_ms: int
) -> None:
    throttles[row, 0] += throttled_ms + first_ms
    if throttled_ms > 0:
        throttles[row, 1] = kind
    elif first_ms > 0:
        throttles[row, 1] = first_kind


@inlined
def _schedule_next(
    stage: SimulationState,
    queue: Queue,
    row: int,
    answered_ms: int,
    throttled_ms: int,
    again: bool,
) -> None:
    """Schedule another attempt of the request, its rest, or the connection's next request."""
    requests, chain, ends = stage.requests, stage.chain, stage.ends
    group = requests.group[row]
    if again or (chain.rest[row] > 0 and requests.flags[row] & (FETCHES | EXEMPT) == FETCHES):
        chain.tries[row] += 1
        starving = ends[group, ABANDONED] >= ABANDONED_MAX
        if chain.tries[row] < (1 if starving else TRIES_MAX):
            again_ms = answered_ms + throttled_ms
            heappush(queue, (again_ms, requests.sequence[row], CHECK_REQUEST, row))
            return
        ends[group, ABANDONED] += 1
    wall_ms = requests.wall_ms[row] - requests.ms[row]
    late_ms = requests.late_ms[row]
    ended_ms = requests.ms[row] if late_ms == NEVER else late_ms
    ends[group, RECORDED_END_MS] = max(ends[group, RECORDED_END_MS], ended_ms + wall_ms)
    ends[group, REPLAYED_END_MS] = max(ends[group, REPLAYED_END_MS], answered_ms + wall_ms)
    following = chain.following[row]
    if following != NONE:
        at_ms = answered_ms + max(throttled_ms, chain.pause_ms[following])
        heappush(queue, (at_ms, requests.sequence[following], CHECK_REQUEST, following))
