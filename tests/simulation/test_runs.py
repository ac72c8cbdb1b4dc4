"""Whole brokers keep their promises under random faults, and a seed repeats a run.

Each test run has new seeds. A failure names its seed, and the command that runs it alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.simulation import runs
from tests.simulation.many_seeds import run_seeds
from tests.simulation.runs import simulate
from tests.simulation.sometimes import SEEDS_MIN, never_taken, table

SEEDS_MAX: Final = 4 * SEEDS_MIN
"""A test run has ``SEEDS_MIN``, and again as many while none has taken one of the rare paths."""
ROOT: Final = Path(__file__).parents[2]


def test_clients_lose_nothing_under_random_faults(seed: int) -> None:
    taken: Counter[str] = Counter()
    for first in range(seed * SEEDS_MAX, (seed + 1) * SEEDS_MAX, SEEDS_MIN):
        summary, problems = run_seeds(range(first, first + SEEDS_MIN))
        assert not problems, "\n".join(problems)
        taken += summary.counts
        if not never_taken(taken):
            return
    raise AssertionError(f"{SEEDS_MAX} seeds never took {never_taken(taken)}\n{table(taken)}")


def test_seed_repeats_a_run_in_another_process(seed: int) -> None:
    first, second = simulate(seed), simulate(seed)
    assert second.transcript == first.transcript
    other = subprocess.run(
        [sys.executable, "-m", "tests.simulation.many_seeds", str(seed), "1", "-v"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed % 1000 + 1)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert other[: len(first.transcript)] == first.transcript
    assert f"seed {seed}: hash {first.digest}" in other


def test_run_without_an_end_is_reported(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    async def play_forever(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(runs, "play", play_forever)
    monkeypatch.setattr(runs, "RUN_CPU_S_MAX", 0.2)
    (wrong,) = simulate(seed).wrong
    assert "RunTooLong" in wrong
    assert "in play_forever" in wrong


def test_other_seed_has_another_hash(seed: int) -> None:
    assert simulate(seed).digest != simulate(seed + 1).digest
