"""Runs the scenario with all clients and writes the page with their verdicts.

Owns the list of clients and the command line. It must never judge. Invariant: a client whose
toolchain is missing is an error, so that the page never loses a column unnoticed. Run::

    python -m system_tests.verdicts
    python -m system_tests.verdicts --client aiokafka --output verdicts.md
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from minibroker.testing.workload import CLIENTS
from minibroker.verdicts.judging import RuleOutcome, Verdict
from system_tests.harness.compiling import built_with_go
from system_tests.harness.jars import java_driver
from system_tests.verdicts.page import ClientResult, page
from system_tests.verdicts.scenario import (
    observed,
    observed_fallback,
    observed_outages,
    observed_sessions,
)

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/verdicts.md"
FRANZ: Final = ROOT / "system_tests/histories/franz_workload"
NAMES: Final = (*CLIENTS, "java", "franz-go")


def command_of(name: str) -> list[str]:
    """Return the command of a client. Raises ``ToolchainMissing``."""
    if name == "java":
        return ["java", "-XX:+UseSerialGC", "-cp", java_driver(), "WorkloadClient"]
    if name == "franz-go":
        return [str(built_with_go(FRANZ))]
    return CLIENTS[name]


def result_of(name: str) -> ClientResult:
    """Run the scenario with a client."""
    print(f"running {name}", file=sys.stderr)
    command = command_of(name)
    title, report, entries = observed(command)
    runs = (observed_sessions, observed_fallback, observed_outages)
    others = {each.rule.id: each for run in runs for each in run(command)}
    verdicts = tuple(
        combined(each, without_evidence(others[each.rule.id])) if each.rule.id in others else each
        for each in report.verdicts
    )
    return ClientResult(name, title, report._replace(verdicts=verdicts), entries)


def combined(verdict: Verdict, other: Verdict) -> Verdict:
    """Return what a rule says after two runs."""
    broken = verdict.broken + other.broken
    outcomes = {verdict.outcome, other.outcome}
    found = next(
        each
        for each in (RuleOutcome.BROKEN, RuleOutcome.KEPT, RuleOutcome.NOT_OBSERVED)
        if each in outcomes
    )
    return verdict._replace(
        outcome=found,
        situations=verdict.situations + other.situations,
        broken=broken,
        findings=verdict.findings + other.findings,
    )


def without_evidence(verdict: Verdict) -> Verdict:
    """Return a verdict whose evidence is in a journal of which the page has no entries."""
    findings = tuple(each._replace(evidence=()) for each in verdict.findings)
    return verdict._replace(findings=findings)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the clients of the command line, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m system_tests.verdicts")
    parser.add_argument("--client", action="append", choices=NAMES, help="by default all")
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    results = [result_of(name) for name in options.client or NAMES]
    options.output.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
