"""Many simulated runs, and what they have in common: failures, rare paths, and their rate.

Owns the command. ``make sim-seeds SEEDS=1000`` runs a thousand on all cores; a failure names its
seed. Invariant: runs are independent, so a seed that fails among many fails alone.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from time import perf_counter

from tests.simulation.run_plan import crowd_plan
from tests.simulation.runs import Outcome, simulate
from tests.simulation.sometimes import SEEDS_MIN, never_taken, table


class Summary:
    """What became of many runs."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Number of seeds that took each rare path."""
        self.failed: list[int] = []

    def add(self, outcome: Outcome) -> list[str]:
        """Add a run; return the lines to print about it."""
        self.counts.update(path for path, count in outcome.counts.items() if count)
        if not outcome.wrong:
            return []
        self.failed.append(outcome.seed)
        return [*(f"seed {outcome.seed}: {each}" for each in outcome.wrong), outcome.again]


def run_seeds(seeds: Sequence[int]) -> tuple[Summary, list[str]]:
    """Run seeds on all cores; return the summary, and the lines about failures."""
    summary = Summary()
    with ProcessPoolExecutor() as pool:
        lines = [line for outcome in pool.map(simulate, seeds) for line in summary.add(outcome)]
    return summary, lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run seeds from a first one on."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("first", type=int, help="the first seed")
    parser.add_argument("count", type=int, help="the number of seeds")
    parser.add_argument("-v", "--verbose", action="store_true", help="print transcripts")
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument(
        "-m", "--members", type=int, help="have groups of all types with this many members each"
    )
    chosen = parser.parse_args(arguments)
    seeds = range(chosen.first, chosen.first + chosen.count)
    plan = crowd_plan(chosen.members) if chosen.members else None
    summary = Summary()
    started = perf_counter()
    with ProcessPoolExecutor(min(chosen.jobs, chosen.count)) as pool:
        for outcome in pool.map(partial(simulate, plan=plan), seeds):
            lines = list(outcome.transcript) if chosen.verbose else []
            lines += summary.add(outcome)
            if chosen.count == 1:
                lines.append(f"seed {outcome.seed}: hash {outcome.digest}")
            sys.stdout.writelines(f"{line}\n" for line in lines)
            sys.stdout.flush()
    seconds = perf_counter() - started
    is_enough = chosen.count >= SEEDS_MIN and plan is None
    missing = never_taken(summary.counts) if is_enough else []
    sys.stdout.write(f"{table(summary.counts)}\n")
    sys.stdout.writelines(f"never in {chosen.count} seeds: {path}\n" for path in missing)
    sys.stdout.write(
        f"{chosen.count} seeds from {chosen.first} on, {chosen.count / seconds:.2f} a second, "
        f"{len(summary.failed)} with problems: {summary.failed}\n"
    )
    return 1 if summary.failed or missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
