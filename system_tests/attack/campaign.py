"""A complete attack: the rounds of a plan, one after the other.

Owns the time and the order; what happens in a round is in ``rounds``. The invariant: a round that
fails unexpectedly is a problem in the report, and the next round is run.
"""

from __future__ import annotations

import time
import traceback
from pathlib import Path

from system_tests.attack.plan import Kind, Round, plan
from system_tests.attack.report import Invariant, Report
from system_tests.attack.rounds import run_round


def attack(
    seed: int,
    seconds: float,
    folder: Path,
    *,
    only: int | None = None,
) -> Report:
    """Attack for about ``seconds``; with ``only``, play that round of the plan alone."""
    report = Report(seed=seed)
    started = time.monotonic()
    for each in plan(seed, seconds):
        is_over = time.monotonic() - started > seconds - each.seconds / 2
        if only is not None and each.number != only:
            continue
        if only is None and is_over and len(report.rounds) == len(Kind):
            break
        print(
            f"{time.monotonic() - started:.0f} s: round {each.number}, {each.kind.value}",
            flush=True,
        )
        problems = len(report.problems)
        _run(each, folder / f"round-{each.number}", report)
        for problem in report.problems[problems:]:
            print(f"  {problem.invariant.name}: {problem.text}", flush=True)
        report.seconds = time.monotonic() - started
    return report


def _run(each: Round, folder: Path, report: Report) -> None:
    try:
        run_round(each, folder, report)
    except Exception:  # noqa: BLE001 (reported with everything else)
        report.found(Invariant.ENDING, f"round {each.number}", traceback.format_exc()[-3000:])
