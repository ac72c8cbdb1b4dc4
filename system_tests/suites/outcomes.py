"""Reads what test runners report: JUnit XML, `go test -json`, and librdkafka's table.

Owns these formats. It must never start a runner. Invariant: a test that started and has no end is
red, so a runner that was killed reports what it did not finish.
"""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable

from system_tests.suites.expectations import Outcome, Result

TEXT_MAX = 2_000
"""Characters of a failure that are kept: the end says what failed."""


def from_junit(report: str, prefix: str = "") -> dict[str, Result]:
    """Read pytest's report. Names are `module.Class::test`, without `prefix`."""
    results: dict[str, Result] = {}
    for case in ET.fromstring(report).iter("testcase"):
        name = f"{case.get('classname', '').removeprefix(prefix)}::{case.get('name')}"
        result = _from_case(case)
        # A test that passes and whose fixtures fail afterwards has two entries.
        if name not in results or results[name].outcome is Outcome.PASSED:
            results[name] = result
    return results


def _from_case(case: ET.Element) -> Result:
    for child in case:
        text = f"{child.get('message') or ''}\n{child.text or ''}".strip()
        if child.tag in {"failure", "error"}:
            return Result(Outcome.RED, text[-TEXT_MAX:])
        if child.tag == "skipped":
            # pytest reports a test that fails as its authors expect as skipped.
            known = child.get("type") == "pytest.xfail"
            return Result(Outcome.PASSED if known else Outcome.SKIPPED, text[:TEXT_MAX])
    return Result(Outcome.PASSED)


def from_go(lines: Iterable[str]) -> dict[str, Result]:
    """Read the events of `go test -json`; subtests have names of their own."""
    ends = {"pass": Outcome.PASSED, "fail": Outcome.RED, "skip": Outcome.SKIPPED}
    outcomes: dict[str, Outcome] = {}
    output: dict[str, str] = {}
    for line in lines:
        if not line.startswith("{"):
            continue
        event = json.loads(line)
        test, action = event.get("Test"), event["Action"]
        if test is None:
            continue
        outcomes.setdefault(test, Outcome.RED)
        if action in ends:
            outcomes[test] = ends[action]
        elif action == "output":
            output[test] = (output.get(test, "") + event["Output"])[-TEXT_MAX:]
    return {
        test: Result(outcome, "" if outcome is Outcome.PASSED else output.get(test, "").strip())
        for test, outcome in outcomes.items()
    }


_ROW = re.compile(r"^\|\s*(\d{4}_\w+)\s*\|\s*(PASSED|FAILED|SKIPPED|RUNNING)\s*\|[^|]*\|?\s*(.*)$")
_STARTED = re.compile(r"Running test (\d{4}_\w+)")
_FAILURE = re.compile(r"^### Test .*\n?.*$", re.MULTILINE)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


def from_librdkafka(output: str) -> dict[str, Result]:
    """Read the table that librdkafka's test runner prints at its end.

    A runner that ended before has no table: the tests that it started are red.
    """
    ends = {"PASSED": Outcome.PASSED, "SKIPPED": Outcome.SKIPPED}
    plain = _COLOR.sub("", output)
    failure = _FAILURE.search(plain)
    text = (failure[0] if failure else plain)[-TEXT_MAX:]
    results = {name: Result(Outcome.RED, text) for name in _STARTED.findall(plain)}
    for line in plain.splitlines():
        if row := _ROW.match(line.strip()):
            name, state, text = row.groups()
            if text.startswith("Filtered due to"):  # needs no broker
                continue
            results[name] = Result(ends.get(state, Outcome.RED), text.strip(" |"))
    return results
