from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from minibroker.pipeline.decimals import POWER_MAX, to_double


def check(value: int, power: int) -> None:
    found, sure = to_double(np.uint64(value), power)
    assert sure == (abs(power) <= POWER_MAX or value == 0)
    if sure:
        assert found == float(f"{value}e{power}")


@given(st.integers(0, 10**19 - 1), st.integers(-320, 320))
def test_the_double_is_the_one_that_python_finds(value: int, power: int) -> None:
    check(value, power)


@given(st.floats(1e-250, 1e250))
def test_float_repr_is_parsed_to_same_float(figure: float) -> None:
    digits, _, power = repr(figure).partition("e")
    whole, _, part = digits.partition(".")
    check(int(whole + part), int(power or 0) - len(part))


def test_decimal_halfway_rounds_to_even() -> None:
    chance = random.Random(1)
    for _ in range(2_000):
        odd = 2 * chance.randrange(2**52, 2**53) + 1
        for value, power in ((odd, 0), (odd << 8, 0), (odd * 5, -1), (odd * 125, -3)):
            if value < 10**19:
                check(value, power)
