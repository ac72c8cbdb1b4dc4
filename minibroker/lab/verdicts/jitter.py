"""Jitter of waits: whether a client repeats the same waits, or varies them.

Owns which waits are comparable. It must never know what a client waits for. Invariant: only waits
that would be equal, or the double of each other, without jitter are compared: those that follow
each other in a row, and those at the same place of two rows. Waits that are as long as the maximum
are not, since the formula of KIP-580 limits a wait after its jitter. Kafka's
``ExponentialBackoff``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

WAIT_MS_MIN: Final = 40
"""Shorter waits do not show jitter, because a timer's delay varies as much. Kafka's shortest wait
is 50 ms, less 20 %.
"""
WAIT_MS_MAX: Final = 750
"""Waits up to which jitter is certain: Kafka's maximum is 1000 ms by default, less 20 %."""
EQUAL_SHARE: Final = 0.05
"""Difference of two waits that count as equal."""
GROWTH: Final = 2
"""How much a wait grows without jitter, unless it stays the same. Kafka's clients double it."""
COMPARISONS_MIN: Final = 8
"""Comparisons from which there is something to judge."""
EQUAL_COMPARISONS_SHARE: Final = 0.8
"""Share of equal waits from which there is no jitter.

With Kafka's jitter of 20 % each way, a quarter of the comparisons are equal by chance. Of 10,000
such clients with the fewest comparisons, 5 have a share as large as this.
"""


class RepeatedWaits(NamedTuple):
    """How many waits repeat an earlier one."""

    equal: int
    compared: int

    @property
    def are_enough(self) -> bool:
        """Whether there is something to judge."""
        return self.compared >= COMPARISONS_MIN

    @property
    def lack_jitter(self) -> bool:
        """Whether the waits follow a schedule without jitter."""
        return self.are_enough and self.equal >= EQUAL_COMPARISONS_SHARE * self.compared


def repeated_waits(rows: Sequence[Sequence[float]]) -> RepeatedWaits:
    """Compare the waits of one client, in ms: a row has those of successive failures."""
    found = list(_comparisons(rows))
    return RepeatedWaits(sum(found), len(found))


def _comparisons(rows: Sequence[Sequence[float]]) -> Iterator[bool]:
    for row in rows:
        for earlier, later in pairwise(row):
            if _is_comparable(earlier, later):
                yield _is_equal(earlier, later) or _is_equal(GROWTH * earlier, later)
    for row, next_row in pairwise(rows):
        for earlier, later in zip(row, next_row, strict=False):
            if _is_comparable(earlier, later):
                yield _is_equal(earlier, later)


def _is_comparable(*waits: float) -> bool:
    return all(WAIT_MS_MIN <= wait <= WAIT_MS_MAX for wait in waits)


def _is_equal(earlier: float, later: float) -> bool:
    return abs(later - earlier) <= EQUAL_SHARE * earlier
