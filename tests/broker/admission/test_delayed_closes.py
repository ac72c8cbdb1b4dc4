"""Rejected connections are closed at once, or delayed if there are too many."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.admission.rejected_connections import (
    ADMIT_INTERVAL_S,
    AT_ONCE,
    DELAYED_MAX,
    PER_S,
    STORM_S,
    TICK_S,
    DelayedCloses,
)

PER_TICK = round(PER_S * TICK_S)


def stormed(held: int) -> DelayedCloses[int]:
    """Return closes in a storm: none left to close at once, and ``held`` delayed, numbered from
    0.
    """
    refusals: DelayedCloses[int] = DelayedCloses()
    assert all(refusals.add(-1) for _ in range(AT_ONCE))
    assert not any(refusals.add(number) for number in range(held))
    return refusals


def test_first_connections_are_closed_at_once_and_the_next_are_delayed() -> None:
    refusals = stormed(3)
    assert (refusals.delayed, refusals.most_delayed) == (3, 3)
    assert list(refusals.tick()) == [0, 1, 2]
    assert (refusals.delayed, refusals.most_delayed) == (0, 3)


def test_storm_closes_rejected_connections_in_order_at_the_rate() -> None:
    refusals = stormed(DELAYED_MAX)
    closed: list[int] = []
    for _ in range(round(0.5 / TICK_S)):
        closed += refusals.tick()
    assert closed == list(range(PER_S // 2))


def test_admission_pauses_during_a_storm() -> None:
    assert stormed(0).pause_s == 0
    assert stormed(1).pause_s == ADMIT_INTERVAL_S
    shared: DelayedCloses[int] = DelayedCloses(3)
    for number in range(AT_ONCE + 1):
        shared.add(number)
    assert shared.pause_s == pytest.approx(3 * ADMIT_INTERVAL_S)


def weather(refusals: DelayedCloses[int]) -> tuple[bool, bool]:
    return refusals.is_storm, refusals.are_idle


def test_storm_lasts_from_first_delay_to_last_rejection() -> None:
    refusals = stormed(0)
    assert weather(refusals) == (False, False)
    assert not refusals.add(1)
    ticks = round(STORM_S / TICK_S)
    for _ in range(5):
        for _ in range(ticks - 1):
            list(refusals.tick())
        assert weather(refusals) == (True, False)
        assert refusals.add(2), "few enough by now to be closed at once"
    for _ in range(ticks):
        assert weather(refusals) == (True, False)
        list(refusals.tick())
    assert weather(refusals) == (False, True)
    assert refusals.add(3)
    assert weather(refusals) == (False, False)


def test_rate_is_shared_by_accepting_processes() -> None:
    parts: list[DelayedCloses[int]] = [DelayedCloses(4) for _ in range(4)]
    for part in parts:
        for number in range(AT_ONCE + DELAYED_MAX):
            part.add(number)
    assert sum(len(list(part.tick())) for part in parts) == PER_TICK


def test_small_rate_shared_by_many_processes_serves_each() -> None:
    refusals: DelayedCloses[int] = DelayedCloses(10_000)
    for number in range(AT_ONCE + 1):
        refusals.add(number)
    assert list(refusals.tick()) == [AT_ONCE]


def test_connection_without_room_is_closed_at_once() -> None:
    refusals = stormed(DELAYED_MAX)
    assert refusals.add(DELAYED_MAX)
    assert refusals.delayed == DELAYED_MAX
    assert next(refusals.tick()) == 0


def test_quiet_interval_restores_immediate_closes() -> None:
    refusals = stormed(0)
    ticks = 0
    while not refusals.are_idle:
        assert not list(refusals.tick())
        ticks += 1
    assert ticks == -(-AT_ONCE // PER_TICK)
    assert not list(refusals.tick())
    assert all(refusals.add(number) for number in range(AT_ONCE))
    assert not refusals.add(AT_ONCE)


def test_release_all_returns_all_delayed_connections() -> None:
    refusals = stormed(5)
    assert list(refusals.take_all()) == [0, 1, 2, 3, 4]
    assert refusals.delayed == 0


STEPS = st.lists(
    st.one_of(st.integers(1, AT_ONCE), st.sampled_from(["tick", "tick", "let go"])), max_size=60
)


@pytest.mark.parametrize("sharing", [1, 3])
@given(steps=STEPS)
def test_each_connection_is_closed_once_in_order_within_the_rate(
    sharing: int, steps: list[int | str]
) -> None:
    refusals: DelayedCloses[int] = DelayedCloses(sharing)
    per_tick = max(1, round(PER_S * TICK_S / sharing))
    waiting: deque[int] = deque()
    allowance, number = AT_ONCE, 0
    for step in steps:
        if step == "tick":
            allowance = min(AT_ONCE, allowance + per_tick)
            expected = [waiting.popleft() for _ in range(min(allowance, len(waiting)))]
            allowance -= len(expected)
            assert list(refusals.tick()) == expected
        elif step == "let go":
            assert list(refusals.take_all()) == list(waiting)
            waiting.clear()
        else:
            assert isinstance(step, int)
            for _ in range(step):
                number += 1
                at_once = allowance > 0
                assert refusals.add(number) == (at_once or len(waiting) == DELAYED_MAX)
                if at_once:
                    allowance -= 1
                elif len(waiting) < DELAYED_MAX:
                    waiting.append(number)
        assert refusals.delayed == len(waiting) <= DELAYED_MAX
        assert refusals.are_idle == (allowance == AT_ONCE)
