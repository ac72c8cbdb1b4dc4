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
from system_tests.harness.compiling import built_with_go
from system_tests.harness.jars import java_driver
from system_tests.harness.jvm import short_jvm
from system_tests.verdicts.page import ClientResult, page
from system_tests.verdicts.scenario import observed

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/verdicts.md"
FRANZ: Final = ROOT / "system_tests/histories/franz_workload"
RUNS: Final = 2
"""Runs of each client."""
NAMES: Final = (*CLIENTS, "java", "franz-go")


def command_of(name: str) -> list[str]:
    """Return the command of a client. Raises ``ToolchainMissing``."""
    if name == "java":
        return [*short_jvm(), "-cp", java_driver(), "WorkloadClient"]
    if name == "franz-go":
        return [str(built_with_go(FRANZ))]
    return CLIENTS[name]


def result_of(name: str, runs: int) -> ClientResult:
    """Run the scenario with a client, several times."""
    found = []
    title = name
    for number in range(runs):
        print(f"running {name}, {number + 1} of {runs}", file=sys.stderr)
        title, run = observed(command_of(name))
        found.append(run)
    return ClientResult(name, title, found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the clients of the command line, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m system_tests.verdicts")
    parser.add_argument("--client", action="append", choices=NAMES, help="by default all")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each client; counts vary")
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    results = [result_of(name, options.runs) for name in options.client or NAMES]
    options.output.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
