"""The attacks of a round, as processes.

Owns their start, their end and what they report. The invariant: an attack that fails or does not
end is a problem in the report, and its process is killed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Final

from system_tests.attack.attacks.sasl import VIOLATION
from system_tests.attack.plan import Round
from system_tests.attack.report import Invariant, Report
from system_tests.attack.targets import Target

ATTACKER_OVERTIME_S: Final = 60.0
SHOWN_CHARACTERS: Final = 1500


def start_module(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a module of this package as a process."""
    return subprocess.Popen(
        [sys.executable, "-m", f"system_tests.attack.{module}", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


class Attackers:
    """The attacks on one broker; ``names`` are those of all that were started."""

    def __init__(self, round_: Round, where: str, report: Report) -> None:
        self._round = round_
        self._where = where
        self._report = report
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self.names: list[str] = []

    def start(self, name: str, seconds: float, target: Target) -> None:
        """Start an attack that ends by itself."""
        seed = f"{name} {self._round.seed}"
        process = start_module("attacker", name, seed, f"{seconds:.1f}", target.encoded())
        self._running.append((name, process))
        self.names.append(name)

    def wait(self) -> None:
        """Wait until all attacks have ended, and add up what they did."""
        for name, process in self._running:
            try:
                printed, complaint = process.communicate(
                    timeout=self._round.seconds + ATTACKER_OVERTIME_S
                )
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                self._problem(Invariant.ENDING, f"the attack {name!r} did not end")
                continue
            if process.returncode:
                text = complaint.decode()[-SHOWN_CHARACTERS:]
                self._problem(Invariant.ENDING, f"the attack {name!r} failed: {text}")
                continue
            self._add(json.loads(printed))
        self._running.clear()

    def _add(self, counts: dict[str, int]) -> None:
        for what, count in counts.items():
            if what.startswith(VIOLATION):
                self._problem(Invariant.AUTHENTICATION, f"{what}, {count} times")
            else:
                self._report.counts[what] += count

    def _problem(self, invariant: Invariant, text: str) -> None:
        self._report.found(invariant, self._where, text)

    def kill(self) -> None:
        """Kill those that still run."""
        for _, process in self._running:
            process.kill()
            process.communicate()
        self._running.clear()
