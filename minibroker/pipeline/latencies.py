"""Latencies as small numbers, and their percentiles, compiled.

Owns how exactly latencies are kept and what a percentile of them is; it must never know whose they
are. Invariant: a number stands for the same latency in every process, and numbers are in the order
of latencies. Brokers keep histograms for this, in ``RequestMetrics``.

Times are rounded to three digits before their percentiles are taken, so that these are off by half
a percent at most, and an entity keeps some thousand figures and not one an event.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from minibroker.pipeline.counting import Ints
from minibroker.pipeline.words import compiled

BITS: Final = 14
"""Of a latency's number."""
NO_LATENCY: Final = (1 << BITS) - 1
PERCENTILES: Final = (50, 95, 99)

_DIGITS: Final = 1000
_STEPS: Final = 10 ** np.arange(1, 14)
_A_STEP: Final = _DIGITS - _DIGITS // 10
"""Roundings of one number of digits."""
_SHARES: Final = np.array(PERCENTILES) / 100


def rounded(us: Ints) -> Ints:
    """Numbers in the order of latencies, the same for those that are alike in three digits."""
    steps = np.searchsorted(_STEPS * (_DIGITS // 10), us, "right")
    unit = np.append(1, _STEPS)[steps]
    found: Ints = np.where(us < 0, NO_LATENCY, steps * _A_STEP + (us + unit // 2) // unit)
    return found


def latency_of(numbers: Ints) -> Ints:
    """The latencies that they stand for."""
    steps = np.maximum(numbers - _DIGITS // 10, 0) // _A_STEP
    found: Ints = (numbers - steps * _A_STEP) * np.append(1, _STEPS)[steps]
    return found


NUMBERS: Final = len(_STEPS) * _A_STEP + _DIGITS
"""Of latencies: all are below."""
_LATENCIES: Final = latency_of(np.arange(NUMBERS))


def percentiles(numbers: Ints, counts: Ints, starts: Ints) -> Any:
    """A row for each of ``PERCENTILES``, in it those of each span between two ``starts``; nan where
    there is nothing. In a span numbers grow, and each was seen so many times.
    """
    found = np.full((len(PERCENTILES), len(starts) - 1), np.nan)
    _percentiles(numbers, counts, starts, _LATENCIES, _SHARES, found)
    return found


@compiled
def _percentiles(
    numbers: Any, counts: Any, starts: Any, latencies: Any, shares: Any, found: Any
) -> None:
    """Between the two nearest of a span's latencies, as SQL's ``percentile`` has it."""
    for span in range(len(starts) - 1):
        total = np.int64(0)
        for at in range(starts[span], starts[span + 1]):
            total += counts[at]
        if total == 0:
            continue
        at = starts[span]
        reached = counts[at]
        for which in range(len(shares)):
            position = (total - 1) * shares[which]
            low, high = math.floor(position), math.ceil(position)
            while reached <= low:
                at += 1
                reached += counts[at]
            at_low = latencies[numbers[at]]
            if low == high:
                found[which, span] = at_low
            else:
                after = at
                if reached <= high:
                    after += 1
                at_high = latencies[numbers[after]]
                found[which, span] = (high - position) * at_low + (position - low) * at_high
