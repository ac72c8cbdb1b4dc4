"""Throughput of one neighbor in each situation, as measured.

Owns the bytes of each slice of time and the shares that follow from them. It must never know a
broker or a client. Invariant: a situation is compared with the neighbor alone right before and
right after it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

SLICES_A_SECOND = 10
BEFORE_S, SITUATION_S = 0.6, 2.0

Flow = list[float]
"""Bytes of each tenth of a second."""


class Timeline(NamedTuple):
    """Throughput of one neighbor and of all others, in each situation in some order."""

    order: Sequence[str]
    neighbour: Flow
    abusers: Mapping[str, Flow]
    worked_s: Sequence[float]
    """What broker and neighbour worked, in processor seconds, in each situation."""

    def rate(self, situation: str, flow: Flow) -> float:
        """Bytes a second in a situation that there is once."""
        return self._rate_at(self.order.index(situation), flow)

    def alone(self, situation: str) -> float:
        """Return the neighbor's throughput alone, right before and right after a situation."""
        return statistics.fmean(self._rate_at(at, self.neighbour) for at in self._beside(situation))

    def share(self, situation: str) -> float:
        """Return the neighbor's throughput relative to its throughput alone."""
        return self.rate(situation, self.neighbour) / self.alone(situation)

    def share_of_work(self, situation: str) -> float:
        """Return that share for the same amount of work, which other programs do not change."""
        worked_s = statistics.fmean(self.worked_s[at] for at in self._beside(situation))
        return self.share(situation) * worked_s / self.worked_s[self.order.index(situation)]

    def _beside(self, situation: str) -> tuple[int, int]:
        place = self.order.index(situation)
        return place - 1, place + 1

    def _rate_at(self, place: int, flow: Flow) -> float:
        start = BEFORE_S + SITUATION_S * place
        first = round(start * SLICES_A_SECOND)
        last = round((start + SITUATION_S) * SLICES_A_SECOND)
        return sum(flow[first:last]) / (last - first) * SLICES_A_SECOND


Timelines = dict[tuple[str, str], list[Timeline]]
"""By peer and neighbour."""
