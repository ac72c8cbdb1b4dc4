"""Checks a history for all anomalies of the table.

Owns the list of rules that are applied. It must never read files. Invariant: the same history gives
the same report, and time and memory are linear in its size, apart from sorting. Jepsen's checker
for Kafka does the same for histories in its own format.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from minibroker.lab.checker.client_history import ClientHistory
from minibroker.lab.checker.dependencies import cycle_anomalies
from minibroker.lab.checker.history_reader import read_history
from minibroker.lab.checker.record_order import Observations
from minibroker.lab.checker.report import CheckReport, report_of
from minibroker.lab.checker.sequence_rules import sequence_anomalies
from minibroker.lab.checker.value_rules import (
    duplicates,
    foreign_reads,
    inconsistent_offsets,
    lost_writes,
    unseen,
)

RULE_FUNCTIONS = (
    inconsistent_offsets,
    duplicates,
    lost_writes,
    foreign_reads,
    sequence_anomalies,
    unseen,
    cycle_anomalies,
)


def check_history(history: ClientHistory) -> CheckReport:
    """Check a history."""
    observations = Observations(history)
    found = chain.from_iterable(rule(observations) for rule in RULE_FUNCTIONS)
    return report_of(history, found)


def check_lines(lines: Iterable[str | Mapping[str, Any]]) -> CheckReport:
    """Check a history, given its lines. Raises ``InvalidHistory``."""
    return check_history(read_history(lines))
