"""Runs the scenario with all clients and writes the page with their verdicts.

Owns the command line, and the folder with the journals of runs: those that are there are judged
again, and the others are recorded first. It must never judge. Invariant: a client whose toolchain
is missing is an error, so that the page never loses a column unnoticed. Clients run one after the
other, and a run of a client takes about two minutes. Run::

    python -m system_tests.verdicts
    python -m system_tests.verdicts --client aiokafka --output verdicts.md
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from system_tests.harness.jars import CACHE
from system_tests.verdicts.libraries import LIBRARIES, command_of
from system_tests.verdicts.page import ClientResult, page
from system_tests.verdicts.scenario import NAME_FILE, judged, record

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/verdicts.md"
JOURNALS: Final = CACHE / "verdicts"
RUNS: Final = 3
"""Runs of each client."""


def result_of(library: str, folder: Path, runs: int) -> ClientResult:
    """Judge several runs of a client; those that the folder lacks are recorded first."""
    title, found = library, []
    for number in range(1, runs + 1):
        run_folder = folder / f"{library.replace('/', '-')}-{number}"
        if not (run_folder / NAME_FILE).exists():
            print(f"running {library}, {number} of {runs}", file=sys.stderr)
            shutil.rmtree(run_folder, ignore_errors=True)
            record(command_of(library), run_folder)
        title, run = judged(run_folder)
        found.append(run)
    return ClientResult(library, title, found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the clients of the command line, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m system_tests.verdicts")
    parser.add_argument("--client", action="append", choices=LIBRARIES, help="by default all")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each client; counts vary")
    parser.add_argument("--journals", type=Path, default=JOURNALS, help="where runs are kept")
    parser.add_argument("--again", action="store_true", help="run the clients again")
    parser.add_argument("--output", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    if options.again:
        shutil.rmtree(options.journals, ignore_errors=True)
    names = options.client or LIBRARIES
    results = [result_of(name, options.journals, options.runs) for name in names]
    options.output.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
