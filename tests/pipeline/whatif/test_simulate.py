"""Delayed responses and the closed loop, compared with plain simulations of the broker."""

from __future__ import annotations

import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.broker.quotas.manager import larger
from minibroker.broker.quotas.types import Entity, QuotaTable, QuotaType
from minibroker.pipeline.whatif.proposal import Counting, Proposal
from minibroker.pipeline.whatif.replay import Replay
from tests.pipeline.whatif import oracle, random_workload
from tests.pipeline.whatif.activity import requests_table
from tests.pipeline.whatif.oracle import Event

PRODUCER = QuotaType.PRODUCE


def of_client(kind: QuotaType, bound: float) -> Proposal:
    return Proposal("p", QuotaTable({kind: {Entity(client="c"): bound}}, 1))


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 120))
def test_delayed_responses_are_replayed_with_the_broker_s_delay(seed: int, number: int) -> None:
    chance = random.Random(seed)
    proposal, events = random_workload.proposal(chance), random_workload.events(chance, number)
    counting = Counting(delays=True)
    found = random_workload.replay(events, proposal, counting, batches=chance.randrange(1, 4))
    assert found == oracle.open_loop(events, proposal, counting)


def closed_loop(events: list[Event], proposal: Proposal) -> dict[int, tuple[int, int]]:
    """Time and throttle of each request by sequence, if requests on a connection are serial."""
    broker = oracle.Broker(proposal, Counting())
    following: dict[int, list[Event]] = {}
    for event in events:
        following.setdefault(event.connection, []).append(event)
    happen = [(queue[0].clock_ms, queue[0].sequence, 1, queue[0]) for queue in following.values()]
    heapq.heapify(happen)
    found = {}
    while happen:
        now_ms, _, comes, event = heapq.heappop(happen)
        if not comes:
            broker.late(event, now_ms)
            continue
        throttle = larger(broker.first(event, event.size, now_ms), broker.worked(event, now_ms))
        throttled_ms = 0 if throttle is None else throttle.ms
        found[event.sequence] = now_ms, throttled_ms
        assert event.late_clock_ms is not None
        service_ms = event.late_clock_ms - event.clock_ms
        heapq.heappush(happen, (now_ms + service_ms, event.sequence, 0, event))
        queue = following[event.connection]
        del queue[0]
        if queue:
            pause_ms = queue[0].clock_ms - event.late_clock_ms
            at_ms = now_ms + service_ms + max(throttled_ms, pause_ms, 0)
            heapq.heappush(happen, (at_ms, queue[0].sequence, 1, queue[0]))
    return found


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(1, 150))
def test_closed_loop_matches_plain_simulation(seed: int, number: int) -> None:
    chance = random.Random(seed)
    events = [
        Event(n, 1000 + 9 * n + chance.randrange(3), what="produce", size=chance.randrange(3000),
              connection=chance.randrange(4), checked_ns=chance.randrange(10**7),
              late_ns=chance.randrange(10**6))
        for n in range(number)
    ]  # fmt: skip
    events = [
        Event(**{**vars(e), "late_clock_ms": e.clock_ms + chance.randrange(9)}) for e in events
    ]
    bounds = {PRODUCER: {Entity(client="c"): 4000.0}, QuotaType.REQUEST: {Entity(client="c"): 3.0}}
    proposal = Proposal("p", QuotaTable(bounds, 1))
    found = random_workload.replay(events, proposal, Counting(), closed=True)
    wanted = closed_loop(events, proposal)
    assert {n: one.ms for n, one in found.items()} == {n: ms for n, (_, ms) in wanted.items()}


def outcome(events: list[Event], proposal: Proposal) -> dict[str, int]:
    run = Replay([proposal], Counting(), closed=True)
    run.feed(requests_table(events))
    rows = [row for batch in run.end() for row in batch.to_pylist() if row["start_us"] is None]
    (row,) = [row for row in rows if row["requests"]]
    return row  # type: ignore[no-any-return]


def produced(sequence: int, clock_ms: int, size: int, connection: int = 0) -> Event:
    return Event(sequence, clock_ms, what="produce", size=size, connection=connection,
                 late_clock_ms=clock_ms + 2)  # fmt: skip


def test_throttled_sender_delays_next_request() -> None:
    events = [produced(0, 0, 20480), produced(1, 2000, 10), produced(2, 4000, 10)]
    row = outcome(events, of_client(PRODUCER, 1024))
    # The pauses of 1998 ms pass during the throttles, and the first bytes still count when the
    # first throttle ends.
    assert (row["throttled"], row["throttle_ms"]) == (2, 10_000 + 10_008)
    assert row["late_ms"] == 2 + 10_000 + 2 + 10_008 - 4000


def test_pause_longer_than_throttle_is_not_extended() -> None:
    events = [produced(0, 0, 10_340), produced(1, 2000, 10_240), produced(2, 4000, 0)]
    row = outcome(events, of_client(PRODUCER, 1024))
    assert row["throttled"] == 2
    # 98 ms pass during the first pause; the second throttle outlasts the pause by far.
    found = random_workload.replay(events, of_client(PRODUCER, 1024), Counting(), closed=True)
    assert found[0].ms == 98
    assert row["late_ms"] == 2000 + 2 + found[1].ms - 4000


def test_recorded_throttle_is_no_pause_of_the_client() -> None:
    throttle = Event(**{**vars(produced(0, 0, 1)), "throttle_ms": 5000})
    no_quota = of_client(PRODUCER, 10**9)
    # It went on as soon as it was allowed to, so it would not have paused without a throttle.
    (blocked, paused) = (outcome([throttle, produced(1, ms, 1)], no_quota) for ms in (5010, 7000))
    assert blocked["late_ms"] == 10 - 5010
    # It paused for longer than the throttle.
    assert paused["late_ms"] == 0


def test_throttle_does_not_delay_other_connection() -> None:
    events = [produced(0, 0, 20480), produced(1, 100, 0, connection=1), produced(2, 20_000, 0)]
    found = random_workload.replay(events, of_client(PRODUCER, 1024), Counting(), closed=True)
    assert [found[n].ms for n in range(3)] == [10_000, 9_900, 0]


def fetched(sequence: int, clock_ms: int, size: int, **more: bool | int) -> Event:
    return Event(sequence, clock_ms, what="fetch", size=size, late_clock_ms=clock_ms, **more)  # type: ignore[arg-type]


def test_throttled_fetch_is_repeated_after_throttle() -> None:
    events = [fetched(0, 0, 10_000), fetched(1, 100, 10_000)]
    row = outcome(events, of_client(QuotaType.FETCH, 1000))
    # The second is throttled until the first has almost expired, and then gets its bytes.
    assert row["requests"] > 2
    assert row["throttled"] == row["requests"] - 2
    assert row["given_up"] == 0


def test_fetch_above_quota_is_split() -> None:
    row = outcome([fetched(0, 0, 25_000)], of_client(QuotaType.FETCH, 1000))
    assert row["requests"] - row["throttled"] == 3
    assert row["late_ms"] > 10_000


def test_recorded_fetch_retry_without_throttle_is_made_once() -> None:
    throttle = fetched(0, 1000, 20_000, throttle_ms=5000)
    events = [throttle, fetched(1, 6000, 20_000), fetched(2, 6100, 4)]
    row = outcome(events, of_client(QuotaType.FETCH, 100_000))
    assert (row["requests"], row["throttled"]) == (2, 0)
    assert row["late_ms"] == -5000


def test_sender_that_can_never_be_served_is_given_up() -> None:
    events = [
        Event(n, 10 * n, what="fetch", size=10, checked_ns=10**9, late_clock_ms=10 * n)
        for n in range(300)
    ]
    row = outcome(events, of_client(QuotaType.REQUEST, 0.01))
    assert row["given_up"] == 300


@pytest.mark.parametrize("closed", [False, True])
def test_quota_of_other_entity_does_not_throttle(closed: bool) -> None:
    events = random_workload.events(random.Random(1), 100)
    proposal = Proposal("p", QuotaTable({PRODUCER: {Entity("nobody"): 1.0}}, 2))
    assert random_workload.replay(events, proposal, Counting(), closed=closed).keys() == {
        *range(100)
    }
    decided = random_workload.replay(events, proposal, Counting(), closed=closed).values()
    assert {one.ms for one in decided} == {0}
