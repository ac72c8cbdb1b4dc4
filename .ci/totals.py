"""Add up pytest's JUnit reports and say what was left out.

Owns the last word of a test run. Prints one line of totals per report and every test that was left
out with its reason; exits with 1 if anything failed, if no test ran, or if CI=true and a test was
left out. A skip whose reason begins with "does not apply" leaves nothing out: there is nothing to
test.
"""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

NOT_APPLICABLE = "does not apply"


class Totals(NamedTuple):
    """What one report says."""

    tests: int
    failed: int
    skipped: int
    left_out: list[str]
    seconds: float


def read(report: Path) -> Totals:
    """The totals of one report."""
    suites = list(ET.parse(report).getroot().iter("testsuite"))
    skips = [
        (case, skip.get("message", ""))
        for suite in suites
        for case in suite.iter("testcase")
        for skip in case.iter("skipped")
    ]
    return Totals(
        tests=sum(int(suite.get("tests", 0)) for suite in suites),
        failed=sum(int(suite.get(kind, 0)) for suite in suites for kind in ("failures", "errors")),
        skipped=len(skips),
        left_out=[
            f"{case.get('classname')}::{case.get('name')}: {reason}"
            for case, reason in skips
            if not reason.startswith(NOT_APPLICABLE)
        ],
        seconds=sum(float(suite.get("time", 0)) for suite in suites),
    )


def main(reports: list[str]) -> int:
    """Print the totals of ``reports``; return the exit code."""
    tests = failed = left_out = 0
    for report in map(Path, reports):
        if not report.exists():
            print(f"{report}: no report was written")
            return 1
        totals = read(report)
        applicable = totals.tests - totals.skipped + len(totals.left_out)
        passed = applicable - totals.failed - len(totals.left_out)
        print(
            f"{report.stem}: {passed} passed, {totals.failed} failed, "
            f"{len(totals.left_out)} left out, {totals.seconds:.0f} s"
        )
        for test in totals.left_out:
            print(f"  left out: {test}")
        tests += totals.tests
        failed += totals.failed
        left_out += len(totals.left_out)
    if left_out and os.environ.get("CI") == "true":
        print("in CI no test may be left out")
        return 1
    if not tests:
        print("no test ran")
    return 1 if failed or not tests else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
