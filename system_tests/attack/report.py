"""What an attack did and found.

Owns the figures, the problems and their table; it knows nothing of how they came about. The
invariant: a figure is only ever added to, so that the table of an interrupted run is right too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from system_tests.attack.checks import mib
from system_tests.attack.stalls import SLOW_S

KINDS_SHOWN_MAX = 40


class Invariant(Enum):
    """What must hold under any attack; each is a test of its own."""

    RECORDS = "no acknowledged record is lost, duplicated or reordered"
    TRACEBACKS = "no log has a traceback"
    STALLS = "no honest client waits for more than a second"
    DISCONNECTS = "no honest client gets an error or loses its connection"
    MEMORY = "memory stays bounded"
    RESTARTS = "no process restarts that was not killed"
    FILES = "no file of others changes"
    AUTHENTICATION = "no request is served without valid authentication"
    ENDING = "every broker recovers, answers and stops"


class Problem(NamedTuple):
    invariant: Invariant
    round: str
    text: str


@dataclass
class Report:
    """The figures of a run. ``counts`` holds what was done, by name."""

    seed: int
    seconds: float = 0.0
    rounds: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    log_messages: Counter[str] = field(default_factory=Counter)
    longest_s: float = 0.0
    """The longest that an honest client waited because of the broker."""
    longest: str = ""
    growth_bytes: int = 0
    """The largest growth of a broker's processes together."""
    problems: list[Problem] = field(default_factory=list)

    def found(self, invariant: Invariant, round_name: str, text: str) -> None:
        self.problems.append(Problem(invariant, round_name, text))

    def violations(self, invariant: Invariant) -> list[Problem]:
        return [problem for problem in self.problems if problem.invariant is invariant]

    def waited(self, seconds: float, what: str) -> None:
        """Note how long an honest client waited because of the broker."""
        if seconds > self.longest_s:
            self.longest_s, self.longest = seconds, what

    def grew(self, count: int) -> None:
        self.growth_bytes = max(self.growth_bytes, count)

    def _longest_wait(self) -> str:
        if not self.longest_s:
            return f"below {SLOW_S} s"
        return f"{self.longest_s:.2f} s {self.longest}"

    def table(self) -> str:
        """All figures in one table, the problems below it."""
        rows = [
            ("seed", str(self.seed)),
            ("duration", f"{self.seconds:.0f} s"),
            ("rounds", ", ".join(f"{count} {kind}" for kind, count in sorted(self.rounds.items()))),
            *((name, f"{count:,}") for name, count in sorted(self.counts.items())),
            ("longest wait of an honest client", self._longest_wait()),
            ("largest memory growth", mib(self.growth_bytes)),
        ]
        rows += [
            (f"log: {message}", f"{count:,}")
            for message, count in self.log_messages.most_common(KINDS_SHOWN_MAX)
        ]
        rows.append(("problems", str(len(self.problems))))
        width = max(len(name) for name, _ in rows)
        lines = [f"{name:<{width}}  {value}" for name, value in rows]
        lines += [
            f"{problem.invariant.name} in {problem.round}: {problem.text}"
            for problem in self.problems
        ]
        return "\n".join(lines)
