"""Checks a history for all anomalies of the table: the rules that are applied, and the report.

Owns the list of rules, and the text and the JSON of a report. It must never read files. Invariant:
the same history gives the same report, and time and memory are linear in its size, apart from
sorting; every case is counted, and at most `EXAMPLES_MAX` of each row are kept, so that the size of
a report is bounded. Jepsen's checker for Kafka does the same for histories in its own format.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from minibroker.lab.checker.anomalies import RULE_OF, RULES, FoundAnomaly
from minibroker.lab.checker.dependencies import cycle_anomalies
from minibroker.lab.checker.history import (
    ClientHistory,
    HistorySettings,
    OperationResult,
    read_history,
)
from minibroker.lab.checker.record_order import Observations
from minibroker.lab.checker.record_rules import (
    duplicates,
    foreign_reads,
    inconsistent_offsets,
    lost_writes,
    sequence_anomalies,
    unseen,
)

RULE_FUNCTIONS: Final = (
    inconsistent_offsets,
    duplicates,
    lost_writes,
    foreign_reads,
    sequence_anomalies,
    unseen,
    cycle_anomalies,
)

EXAMPLES_MAX: Final = 8
"""Cases of each anomaly that a report describes."""


@dataclass(frozen=True)
class CheckReport:
    """What was found in a history. Print it for a description of each anomaly."""

    settings: HistorySettings
    operations: Mapping[str, int]
    """Number of operations by result."""
    sent: int
    """Records sent."""
    polled: int
    """Records polled."""
    counts: Mapping[str, int]
    """Number of cases of each anomaly that was found."""
    examples: Mapping[str, list[FoundAnomaly]]
    clients: Mapping[int, str]
    """The client library of each line in the examples, if the history names it."""

    @property
    def anomalies(self) -> dict[str, int]:
        """The number of cases of each anomaly that is not allowed."""
        return {
            name: count
            for name, count in self.counts.items()
            if not RULE_OF[name].allowed(self.settings)
        }

    @property
    def allowed(self) -> dict[str, int]:
        """The number of cases of each anomaly that is allowed."""
        return {name: count for name, count in self.counts.items() if name not in self.anomalies}

    @property
    def valid(self) -> bool:
        """Whether there is no anomaly, except for those that are allowed."""
        return not self.anomalies

    def to_json(self) -> dict[str, Any]:
        """Return the report as an object for JSON."""
        return {
            "valid": self.valid,
            "workload": self.settings.workload,
            "operations": dict(self.operations),
            "sent": self.sent,
            "polled": self.polled,
            "anomalies": [self._row(name) for name in self.anomalies],
            "allowed": [self._row(name) for name in self.allowed],
        }

    def _row(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "count": self.counts[name],
            "definition": RULE_OF[name].definition,
            "allowed_when": RULE_OF[name].allowed_text,
            "examples": [
                {
                    "text": each.text,
                    "key": each.key,
                    "lines": list(each.lines),
                    "clients": [self.clients.get(line) for line in each.lines],
                }
                for each in self.examples[name]
            ],
        }

    def __str__(self) -> str:
        operations = (
            ", ".join(f"{count} {name}" for name, count in self.operations.items()) or "none"
        )
        records = f"{self.sent} records sent, {self.polled} records polled"
        lines = [f"{sum(self.operations.values())} operations ({operations}), {records}"]
        for name, count in self.anomalies.items():
            lines += ["", f"{name}: {_cases(count)}: {RULE_OF[name].definition}"]
            lines += [f"  {each.text}{self._clients_of(each)}" for each in self.examples[name]]
            if count > len(self.examples[name]):
                lines.append(f"  ... and {count - len(self.examples[name])} more")
        if self.allowed:
            lines.append("")
            for name, count in self.allowed.items():
                lines.append(f"allowed: {name}: {_cases(count)} ({RULE_OF[name].allowed_text})")
        verdict = f"invalid: {', '.join(self.anomalies)}" if self.anomalies else "valid"
        return "\n".join([*lines, "", verdict])

    def _clients_of(self, found: FoundAnomaly) -> str:
        named = [
            f"line {line}: {self.clients[line]}" for line in found.lines if line in self.clients
        ]
        return f" [{', '.join(named)}]" if named else ""


def check_history(history: ClientHistory) -> CheckReport:
    """Check a history."""
    observations = Observations(history)
    found = chain.from_iterable(rule(observations) for rule in RULE_FUNCTIONS)
    return _report_of(history, found)


def check_lines(lines: Iterable[str | Mapping[str, Any]]) -> CheckReport:
    """Check a history, given its lines. Raises ``InvalidHistory``."""
    with _collector_paused():
        return check_history(read_history(lines))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the search for reference cycles: a history is many objects without any."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _report_of(history: ClientHistory, found: Iterable[FoundAnomaly]) -> CheckReport:
    """Count what was found in a history, and keep examples."""
    counts: Counter[str] = Counter()
    examples: dict[str, list[FoundAnomaly]] = {}
    for each in found:
        counts[each.name] += 1
        kept = examples.setdefault(each.name, [])
        if len(kept) < EXAMPLES_MAX:
            kept.append(each)
    results = Counter(str(operation.result) for operation in history.operations)
    return CheckReport(
        settings=history.settings,
        operations={str(each): results[each] for each in OperationResult if results[each]},
        sent=sum(len(records) for each in history.operations for records in each.sends.values()),
        polled=sum(len(records) for each in history.operations for records in each.polls.values()),
        counts={rule.name: counts[rule.name] for rule in RULES if counts[rule.name]},
        examples=examples,
        clients=_clients_of_lines(history, examples.values()),
    )


def _clients_of_lines(
    history: ClientHistory, examples: Iterable[list[FoundAnomaly]]
) -> dict[int, str]:
    names = history.settings.clients
    lines = {line for found in examples for each in found for line in each.lines}
    return {
        operation.line: names[operation.process]
        for operation in history.operations
        if operation.line in lines and operation.process in names
    }


def _cases(count: int) -> str:
    return "1 case" if count == 1 else f"{count} cases"
