"""What a client's suite is expected to do, test by test, and how a run differs from it.

Owns the lists in `expected/` and the comparison. It must never know clients, brokers or processes.
Invariant: a comparison fails in both directions, so a test that is red without a reason is a
problem, and so is a listed test that passes.

A line of a list is `KIND NAME: reason`. Kinds are `red`, `flaky` (the test may fail) and `skipped`
(the client's suite itself skips the test). A `*` in a name matches any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from typing import NamedTuple

LISTS = Path(__file__).parent / "expected"


class Outcome(Enum):
    """How a test ended."""

    PASSED = "passed"
    RED = "red"
    SKIPPED = "skipped"


class Result(NamedTuple):
    """How one test ended; `text` is what it said if it did not pass."""

    outcome: Outcome
    text: str = ""


class Expectation(NamedTuple):
    """One line of a list."""

    kind: str
    name: str
    reason: str

    def is_of(self, test: str) -> bool:
        """Whether the line is about this test."""
        pattern = ".*".join(re.escape(part) for part in self.name.split("*"))
        return re.fullmatch(pattern, test) is not None

    def allows(self, outcome: Outcome) -> bool:
        """Whether a test of this line may end like this."""
        return outcome.value == self.kind or (
            self.kind == "flaky" and outcome is not Outcome.SKIPPED
        )


def read(lines: Iterable[str]) -> list[Expectation]:
    """Parse a list. Raises `ValueError` with the line that has no kind, name and reason."""
    expectations = []
    for line in lines:
        if not line.strip() or line.startswith("#"):
            continue
        parts = re.fullmatch(r"(red|flaky|skipped) (\S.*?): (\S.*)", line.strip())
        if parts is None:
            raise ValueError(f"expected `KIND NAME: reason`, got {line!r}")
        expectations.append(Expectation(*parts.groups()))
    return expectations


def expectations_of(suite: str) -> list[Expectation]:
    """Return the list of a suite."""
    return read((LISTS / f"{suite}.txt").read_text().splitlines())


def problems(
    results: Mapping[str, Result], expectations: Iterable[Expectation], *, complete: bool
) -> list[str]:
    """Return a sentence for each difference; `complete` says that every test of the suite ran."""
    found = []
    unused = set(expectations)
    ordered = sorted(unused, key=lambda each: each.name.count("*"))
    for test, result in results.items():
        line = next((each for each in ordered if each.is_of(test)), None)
        if line is None and result.outcome is not Outcome.PASSED:
            found.append(f"{test} is {result.outcome.value} and not listed: {result.text}")
        elif line is not None and not line.allows(result.outcome):
            found.append(
                f"{test} is listed as {line.kind} ({line.reason}) and is {result.outcome.value}"
                f"{': ' + result.text if result.text else ''}"
            )
        unused.discard(line) if line else None
    if complete:
        found += [f"{line.name} is listed as {line.kind}, and no such test ran" for line in unused]
    return found


def summary(results: Mapping[str, Result]) -> str:
    """Return the totals of a run as text."""
    counts = dict.fromkeys(Outcome, 0)
    for result in results.values():
        counts[result.outcome] += 1
    return ", ".join(f"{count} {outcome.value}" for outcome, count in counts.items())
