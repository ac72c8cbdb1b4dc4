"""The restart rule: deaths and times in, delays or a refusal out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.runtime.restarts import OPTIONAL, RESTARTS_MAX, RestartPolicy, Restarts

POLICY = RestartPolicy(restarts_max=4, window_s=10, backoff_s=1, backoff_max_s=3)


def test_first_restart_is_immediate_and_later_ones_wait_longer() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.died(now) for now in (0, 1, 2, 3, 4)] == [0, 1, 2, 3, None]


def test_earlier_deaths_do_not_count() -> None:
    restarts = Restarts(POLICY)
    assert [restarts.died(now) for now in (0, 9.9, 10, 30)] == [0, 1, 1, 0]


def test_process_that_dies_at_once_ends_the_broker_by_default() -> None:
    restarts = Restarts(RestartPolicy())
    now, started = 100.0, 1
    while (delay := restarts.died(now)) is not None:
        now += delay
        started += 1
        assert started <= RESTARTS_MAX + 1
    assert started == RESTARTS_MAX + 1


def test_spare_process_is_restarted_forever_with_growing_delay() -> None:
    restarts = Restarts(OPTIONAL)
    now, delays = 0.0, []
    for _ in range(5 * RESTARTS_MAX):
        delay = restarts.died(now)
        assert delay is not None
        delays.append(delay)
        now += delay
    assert delays[:3] == [0.0, 0.01, 0.02]
    assert sum(delays[:RESTARTS_MAX]) > 2  # so the usual policy would let it come so often
    assert max(delays) == OPTIONAL.backoff_max_s
    assert now / len(delays) > 8
    assert restarts.died(now + OPTIONAL.window_s) == 0


@given(st.lists(st.floats(0, 5), max_size=100))
def test_no_window_holds_more_restarts_than_allowed(pauses: list[float]) -> None:
    restarts = Restarts(POLICY)
    now, granted = 0.0, []
    for pause in pauses:
        now += pause
        delay = restarts.died(now)
        if delay is not None:
            assert 0 <= delay <= POLICY.backoff_max_s
            granted.append(now)
    for begin in granted:
        inside = [t for t in granted if begin <= t < begin + POLICY.window_s]
        assert len(inside) <= POLICY.restarts_max
