"""What quotas, activity and the journal cost a request: a short form of `quotas` and `activity`.

Owns brokers without any, with quotas of all types, with activity, and with the journal, for the
time of all rounds. It must never know how a request is measured. Invariant: a cost is the median
difference of turns right after each other; there are several brokers of each kind, because two of
one kind differ by some microseconds.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Final

from minibroker.broker.settings import JOURNAL_ENABLE
from system_tests.benchmarks import activity, quotas
from system_tests.benchmarks.measures import Figures

BROKERS: Final = 2
QUOTAS_TURNS: Final = 4
ACTIVITY_TURNS: Final = 2
PIPELINED_TURNS: Final = 8
JOURNAL_TURNS: Final = 2
JOURNAL_PIPELINED_TURNS: Final = 64
"""Takes longer than the time after which records are collected."""

QUOTAS_LATENCY: Final = "quotas of all types: latency of a request"
QUOTAS_CPU: Final = "quotas of all types: processor time of a request"
ACTIVITY_CPU: Final = "activity: processor time of a request"
JOURNAL_RATE: Final = "journal: requests per second lost"
JOURNAL_CPU: Final = "journal: processor time of a request"
RATE: Final = "pipelined: requests/s"
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
        self._journal = [
            (off, activity.Bench(stack, {JOURNAL_ENABLE.name: "true"})) for off, _ in self._activity
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

    def of_journal(self) -> Figures:
        lost, worked = [], []
        for turn in range(JOURNAL_TURNS):
            for pair in self._journal:
                for bench in pair if turn % 2 else reversed(pair):
                    bench.pipelined(JOURNAL_PIPELINED_TURNS)
                off, on = (bench.figures for bench in pair)
                lost.append(100 * (1 - on[RATE][-1] / off[RATE][-1]))
                worked.append(on[WORKED][-1] - off[WORKED][-1])
        return {JOURNAL_RATE: statistics.median(lost), JOURNAL_CPU: statistics.median(worked)}
