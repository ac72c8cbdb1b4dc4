"""Latencies as small integers, and their percentiles, compiled.

Owns the precision of latencies and the definition of their percentiles; it must never know to which
entity they belong. Invariant: a number means the same latency in every process, and numbers
are in the order of latencies. Brokers keep histograms for this, in ``RequestMetrics``.

Latencies are rounded to three digits, so percentiles are off by half a percent at most, and an
entity needs a few thousand counters instead of one number for each event.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np

from minibroker.pipeline.compiled_functions import compiled
from minibroker.pipeline.quota_amounts import Ints

BITS: Final = 14
"""Bits of a latency's number."""
NO_LATENCY: Final = (1 << BITS) - 1
PERCENTILES: Final = (50, 95, 99)

_DIGITS: Final = 1000
_STEPS: Final = 10 ** np.arange(1, 14)
_A_STEP: Final = _DIGITS - _DIGITS // 10
"""Numbers for each power of ten."""
_SHARES: Final = np.array(PERCENTILES) / 100


def rounded(us: Ints) -> Ints:
    """Numbers of latencies, rounded to three significant digits."""
    steps = np.searchsorted(_STEPS * (_DIGITS // 10), us, "right")
    unit = np.append(1, _STEPS)[steps]
    found: Ints = np.where(us < 0, NO_LATENCY, steps * _A_STEP + (us + unit // 2) // unit)
    return found


def latency_of(numbers: Ints) -> Ints:
    """The latencies of numbers."""
    steps = np.maximum(numbers - _DIGITS // 10, 0) // _A_STEP
    found: Ints = (numbers - steps * _A_STEP) * np.append(1, _STEPS)[steps]
    return found


NUMBERS: Final = len(_STEPS) * _A_STEP + _DIGITS
"""Upper bound (exclusive) of the numbers."""
_LATENCIES: Final = latency_of(np.arange(NUMBERS))


def percentiles(numbers: Ints, counts: Ints, starts: Ints) -> Any:
    """A row for each of ``PERCENTILES``, with a value for each span between two ``starts``; nan for
    an empty span. Within a span ``numbers`` ascend; ``counts`` are their occurrences.
    """
    found = np.full((len(PERCENTILES), len(starts) - 1), np.nan)
    _percentiles(numbers, counts, starts, _LATENCIES, _SHARES, found)
    return found


@compiled
def _percentiles(
    numbers: Any, counts: Any, starts: Any, latencies: Any, shares: Any, found: Any
) -> None:
    """Interpolate between the two nearest latencies, like SQL's ``percentile``."""
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
