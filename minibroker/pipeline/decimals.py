"""Compiled conversion of decimal numbers to the nearest double, like Python's ``float``.

Owns the conversion of digits and a power of ten: Clinger's fast path where one multiplication is
exact, Eisel and Lemire's algorithm otherwise. It must never know JSON. Invariant: the result equals
that of ``float``, or is reported as uncertain, which happens only far outside the range of measured
values.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from minibroker.pipeline.simd_words import compiled, high, leading

DIGITS_MAX: Final = 19
"""Any number with so many digits fits into 64 bits."""
POWER_MAX: Final = 280
"""Largest absolute exponent of ten; within it every number is a normal double."""
_EXACT_POWER: Final = 22
_EXACT: Final = 1 << 53
_ROUNDED_UP: Final = -27
"""From this power of five on, the rounded inverse times a word can be exactly half way."""


def _fives() -> Any:
    """The first 128 bits of the powers of five: upper and lower 64 bits."""
    found = []
    for power in range(-POWER_MAX, POWER_MAX + 1):
        five: int = 5 ** abs(power)
        if power < 0:
            more = 0 if power >= _ROUNDED_UP else five.bit_length() + 1
            value = ((1 << (five.bit_length() + 127 + more)) // five + 1) >> more
        else:
            value = five << 128 >> five.bit_length()
        found.append((value >> 64, value & ((1 << 64) - 1)))
    return np.array(found, np.uint64)


_FIVES: Final = _fives()
_TENS: Final = np.array([10.0**power for power in range(_EXACT_POWER + 1)])


@compiled
def to_double(value: Any, power: Any) -> Any:
    """(the double nearest to ``value`` times ten to the ``power``, whether it is certain)."""
    if value == 0:
        return 0.0, True
    if value <= np.uint64(_EXACT) and -_EXACT_POWER <= power <= _EXACT_POWER:
        whole = np.float64(value)
        return (whole * _TENS[power] if power >= 0 else whole / _TENS[-power]), True
    if power < -POWER_MAX or power > POWER_MAX:
        return 0.0, False
    zeros = leading(value)
    value <<= zeros
    upper, lower = _FIVES[power + POWER_MAX, 0], _FIVES[power + POWER_MAX, 1]
    top, bottom = high(value, upper), value * upper
    if top & np.uint64(0x1FF) == np.uint64(0x1FF):  # The lower bits may change the rounding.
        more = high(value, lower)
        bottom += more
        if more > bottom:
            top += np.uint64(1)
    above = top >> np.uint64(63)
    shift = above + np.uint64(9)
    mantissa = top >> shift
    exponent = ((217706 * power) >> 16) + 63 + np.int64(above) - np.int64(zeros) + 1023
    half_way = bottom <= 1 and -4 <= power <= 23 and (mantissa << shift) == top
    if half_way and mantissa & np.uint64(3) == np.uint64(1):  # Round half to even.
        mantissa &= ~np.uint64(1)
    mantissa = (mantissa + (mantissa & np.uint64(1))) >> np.uint64(1)
    if mantissa >= np.uint64(_EXACT):
        mantissa = np.uint64(_EXACT >> 1)
        exponent += 1
    bits = (np.uint64(exponent) << np.uint64(52)) | (mantissa & np.uint64((_EXACT >> 1) - 1))
    return np.uint64(bits).view(np.float64), True
