"""What quotas and activity cost a request: a short form of `quotas` and `activity`.

Owns brokers without either, with quotas of all types, and with activity, for the time of all
rounds. It must never know how a request is measured. Invariant: a cost is the median difference of
turns right after each other; there are several brokers of each kind, because two of one kind differ
by some microseconds.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Final

from system_tests.benchmarks import activity, quotas
from system_tests.benchmarks.measures import Figures

BROKERS: Final = 2
QUOTAS_TURNS: Final = 4
ACTIVITY_TURNS: Final = 2
PIPELINED_TURNS: Final = 8
QUOTAS_LATENCY: Final = "quotas of all types: latency of a request"
QUOTAS_CPU: Final = "quotas of all types: processor time of a request"
ACTIVITY_CPU: Final = "activity: processor time of a request"
WORKED: Final = "pipelined: us/request, total"


class Costs:
    """Brokers of all kinds, measured in turns."""

    def __init__(self, stack: ExitStack) -> None:
        self._quotas = [
            tuple(quotas.Bench(stack, limited=each, clients=quotas.FEW) for each in (False, True))
            for _ in range(BROKERS)
        ]
        kinds = activity.settings_of_kinds(0)
        self._activity = [
            (activity.Bench(stack, kinds["off"]), activity.Bench(stack, kinds["arrow"]))
            for _ in range(BROKERS)
        ]

    def of_quotas(self) -> Figures:
        latency, worked = [], []
        for turn in range(QUOTAS_TURNS):
            for pair in self._quotas:
                for bench in pair if turn % 2 else reversed(pair):
                    bench.measure(quotas.FEW)
                without, limited = (bench.turns[quotas.FEW][-1] for bench in pair)
                latency.append(limited.latency_us - without.latency_us)
                worked.append(limited.worked_us - without.worked_us)
        return {
            QUOTAS_LATENCY: statistics.median(latency),
            QUOTAS_CPU: statistics.median(worked),
        }

    def of_activity(self) -> Figures:
        worked = []
        for turn in range(ACTIVITY_TURNS):
            for pair in self._activity:
                for bench in pair if turn % 2 else reversed(pair):
                    bench.pipelined(PIPELINED_TURNS)
                off, on = (bench.figures[WORKED][-1] for bench in pair)
                worked.append(on - off)
        return {ACTIVITY_CPU: statistics.median(worked)}
