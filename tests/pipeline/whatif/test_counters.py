from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.broker.quotas import rate
from minibroker.broker.quotas.rate import Rate
from minibroker.broker.quotas.types import INT_MAX
from minibroker.pipeline.whatif.columns import (
    EXEMPT,
    FETCH,
    FETCHES,
    FIRST_MS,
    LAST_MS,
    LONGEST_MS,
    MUTATES,
    MUTATION,
    NONE,
    PRODUCE,
    PRODUCES,
    STRICT,
    THROTTLED,
    TOTAL_MS,
    Floats,
    new_minutes,
    new_tally,
)
from minibroker.pipeline.whatif.counters import (
    add,
    count_throttle,
    end_minutes,
    kind_of,
    measure,
    more_counters,
    mutation_ms,
    new_counters,
    surely_below,
    throttle_ms,
)
from tests.broker.quotas.oracle import OracleCounter

# Counters ----------------------------------------------------------------------------------------


def record(
    words: Floats, counter: int, value: float, now_ms: int, window_ms: int
) -> tuple[float, int]:
    """Adds a value and looks at once."""
    add(words, counter, value, now_ms, window_ms)
    return measure(words, counter, now_ms, window_ms)


@settings(deadline=None)
@given(
    st.sampled_from([1, 2, 3, 11]),
    st.sampled_from([1, 10, 1000]),
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 3), st.integers(0, 2000), st.integers(0, 30_000)),
            st.integers(-(10**6), 10**9),
            st.booleans(),
        ),
        max_size=60,
    ),
    st.sampled_from([1, 10_000_000]),
)
def test_rate_is_that_of_the_broker_to_the_last_bit(
    samples: int, window_ms: int, steps: list[tuple[int, int, bool]], unit: int
) -> None:
    oracle, words, now_ms = Rate(samples, window_ms), new_counters(2, samples), 7
    for step_ms, amount, looked_at in steps:
        now_ms += step_ms
        value = amount / unit
        oracle.record(value, now_ms)
        if looked_at:
            wanted = oracle.measure(now_ms), oracle.span_ms(now_ms)
            assert record(words, 1, value, now_ms, window_ms) == wanted
        else:
            add(words, 1, value, now_ms, window_ms)
    assert np.isinf(words[0]).any()  # the other one was left alone


@settings(deadline=None)
@given(
    st.sampled_from([1, 2, 11]),
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 3), st.integers(0, 2000), st.integers(0, 30_000)),
            st.one_of(st.integers(0, 3000), st.floats(0, 1e9), st.integers(-(10**6), 0)),
            st.sampled_from([0.0, 10.0, 1e6]),
        ),
        max_size=60,
    ),
)
def test_surely_below_implies_measured_rate_within_bound(
    samples: int, steps: list[tuple[int, float, float]]
) -> None:
    oracle, words, now_ms = Rate(samples, 1000), new_counters(1, samples), 7
    for step_ms, value, bound in steps:
        now_ms += step_ms
        oracle.record(value, now_ms)
        add(words, 0, value, now_ms, 1000)
        if surely_below(words, 0, bound, 1000):
            assert oracle.measure(now_ms) <= bound
        else:
            assert measure(words, 0, now_ms, 1000)[0] == oracle.measure(now_ms)


def test_low_rate_stays_surely_below_over_an_hour() -> None:
    words = new_counters(1, 11)
    for now_ms in range(0, 3_600_000, 700):
        add(words, 0, 99.0, now_ms, 1000)
        assert surely_below(words, 0, 300.0, 1000)
        assert not surely_below(words, 0, 50.0, 1000) or now_ms < 7000


@pytest.mark.parametrize(
    ("observed", "bound", "span_ms"),
    [(100.0, 50.0, 3000), (55.0, 50.0, 2000), (50.0, 50.0, 1), (1.0, 2.0, 5), (1.0003, 1.0, 5000)],
)
def test_throttle_is_that_of_the_broker(observed: float, bound: float, span_ms: int) -> None:
    wanted = max(0, rate.throttle_ms(observed, bound, span_ms)) if observed > bound else 0
    assert throttle_ms(observed, bound, span_ms, INT_MAX) == wanted


def test_throttle_time_is_capped_for_tiny_bound() -> None:
    assert throttle_ms(5.0, 0.0, 10_000, 1000) == 1000
    assert throttle_ms(1e300, 1e-9, 10_000, INT_MAX) == INT_MAX
    assert mutation_ms(new_counters(1, 11), 0, 1e-12, 11.0, 0, 1e9, False) == INT_MAX


@pytest.mark.parametrize("strict", [False, True])
def test_bucket_is_that_of_the_broker(strict: bool) -> None:
    from minibroker.broker.quotas.manager import ClientQuotaManager, MutationQuota
    from minibroker.broker.quotas.types import Entity, QuotaTable, QuotaType
    from tests.broker.quotas.oracle import OracleLedger

    chance, words, now_ms = random.Random(1), new_counters(1, 11), 0
    quotas = ClientQuotaManager(OracleLedger(11, 1000))
    kind = QuotaType.CONTROLLER_MUTATION
    quotas.set_table(QuotaTable({kind: {Entity(client="c"): 2.5}}, 1))
    throttle = 0
    for _ in range(300):
        now_ms += chance.choice([0, 1, 400, 5000])
        permits = chance.randrange(7)
        quota = MutationQuota(quotas, ("u", "c"), windows=11, window_ms=1000, strict=strict)
        quota.take(permits, now_ms)
        wanted_ms = quota.throttle_ms(now_ms)
        assert mutation_ms(words, 0, 2.5, 11.0, now_ms, permits, strict) == wanted_ms
        throttle += wanted_ms > 0
    assert 20 < throttle < 280


def test_more_counters_keep_old_and_add_fresh_ones() -> None:
    words = new_counters(1, 11)
    record(words, 0, 500.0, 1000, 1000)
    more = more_counters(words, 2)
    oracle = OracleCounter(11, 1000)
    oracle.record(500, 1000)
    assert record(more, 0, 1.0, 1500, 1000) == oracle.record(1, 1500)
    assert record(more, 1, 5.0, 1500, 1000) == (0.5, 10_000)


# Requests ----------------------------------------------------------------------------------------


def test_request_counts_for_one_quota_besides_time() -> None:
    assert kind_of(PRODUCES | EXEMPT) == PRODUCE  # without an answer, but its bytes are counted
    assert kind_of(FETCHES) == FETCH
    assert kind_of(FETCHES | EXEMPT) == NONE  # a follower's
    assert kind_of(MUTATES | STRICT) == MUTATION
    assert kind_of(0) == NONE


def test_throttles_are_added_up_over_all_and_by_minute() -> None:
    tally, minutes = new_tally(2), new_minutes(10)
    for wall_ms, throttled_ms in ((60_000, 5), (119_999, 7), (120_000, 100), (240_000, 1)):
        count_throttle(tally, minutes, 1, PRODUCE, wall_ms, throttled_ms)
    end_minutes(tally, minutes)
    found = tally[1, PRODUCE]
    assert [int(found[at]) for at in (THROTTLED, TOTAL_MS, LONGEST_MS)] == [4, 113, 100]
    assert [int(found[at]) for at in (FIRST_MS, LAST_MS)] == [60_000, 240_000]
    assert minutes[1 : minutes[0, 0] + 1].tolist() == [
        [1, PRODUCE, 1, 2, 12],
        [1, PRODUCE, 2, 1, 100],
        [1, PRODUCE, 4, 1, 1],
    ]


def test_minutes_for_which_there_is_no_room_are_left_out() -> None:
    tally, minutes = new_tally(1), new_minutes(1)
    for minute in range(5):
        count_throttle(tally, minutes, 0, FETCH, minute * 60_000, 1)
    end_minutes(tally, minutes)
    assert minutes[0, 0] == 1
    assert tally[0, FETCH, THROTTLED] == 5
