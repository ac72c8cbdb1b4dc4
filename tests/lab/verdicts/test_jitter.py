"""Jitter is distinguished from schedules without it, on made-up waits."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.lab.verdicts.jitter import (
    COMPARISONS_MIN,
    WAIT_MS_MAX,
    WAIT_MS_MIN,
    RepeatedWaits,
    repeated_waits,
)

CLIENTS = 2000


def kafka_waits(random: Random, first_ms: float, count: int) -> list[float]:
    """Waits by the formula of KIP-580."""
    return [min(first_ms * 2**at * random.uniform(0.8, 1.2), 1000) for at in range(count)]


def varied_waits(random: Random, count: int) -> list[float]:
    """Waits of 100 ms that do not grow, with the jitter of Kafka."""
    return [100 * random.uniform(0.8, 1.2) for _ in range(count)]


@given(
    wait_ms=st.floats(WAIT_MS_MIN, WAIT_MS_MAX / 1.05),
    noise=st.lists(st.floats(0, 0.04), min_size=COMPARISONS_MIN + 1, max_size=30),
)
def test_equal_waits_lack_jitter(wait_ms: float, noise: list[float]) -> None:
    assert repeated_waits([[wait_ms * (1 + each) for each in noise]]).lack_jitter


@given(first_ms=st.floats(WAIT_MS_MIN, 110), noise=st.lists(st.floats(0, 0.02), min_size=24))
def test_waits_that_double_exactly_lack_jitter(first_ms: float, noise: list[float]) -> None:
    rows = [
        [min(first_ms * 2**at, 1000) * (1 + noise[8 * row + at]) for at in range(8)]
        for row in range(3)
    ]
    found = repeated_waits(rows)
    assert found.are_enough
    assert found.lack_jitter


@pytest.mark.parametrize("first_ms", [50, 100, 250])
def test_clients_with_the_jitter_of_kafka_have_jitter(first_ms: float) -> None:
    random = Random(first_ms)
    found = [
        repeated_waits([kafka_waits(random, first_ms, 8) for _ in range(5)]) for _ in range(CLIENTS)
    ]
    assert all(each.are_enough for each in found)
    assert sum(each.lack_jitter for each in found) <= CLIENTS / 1000


def test_few_waits_with_jitter_are_rarely_equal() -> None:
    random = Random(1)
    rows = [[varied_waits(random, COMPARISONS_MIN + 1)] for _ in range(CLIENTS)]
    assert sum(repeated_waits(each).lack_jitter for each in rows) <= CLIENTS / 1000


def test_waits_at_the_maximum_are_not_compared() -> None:
    """By the formula of KIP-580 they may be equal."""
    assert repeated_waits([[1000.0] * 30]) == RepeatedWaits(0, 0)
    assert repeated_waits([[1.0] * 30]) == RepeatedWaits(0, 0)


def test_too_few_waits_are_not_enough() -> None:
    assert not repeated_waits([[100.0] * COMPARISONS_MIN]).are_enough
    assert repeated_waits([[100.0] * (COMPARISONS_MIN + 1)]).are_enough
    assert not repeated_waits([]).lack_jitter


def test_waits_at_the_same_place_of_two_rows_are_compared() -> None:
    assert repeated_waits([[100, 300], [101, 500], [102]]) == RepeatedWaits(2, 5)
