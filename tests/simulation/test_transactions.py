"""Whole brokers with transactions keep their promises under random faults, and replay by seed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.simulation.sometimes import SEEDS_MIN, never_taken, table
from tests.simulation.transaction_runs import simulate
from tests.simulation.transactional import STATES

ROUNDS: Final = 2
ROOT: Final = Path(__file__).parents[2]


@pytest.mark.parametrize("number", range(ROUNDS))
def test_transactions_under_random_faults_are_neither_lost_nor_torn(number: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(number * SEEDS_MIN, (number + 1) * SEEDS_MIN):
        outcome = simulate(seed)
        assert outcome.wrong == [], outcome.again
        results = Counter(each.committed for each in outcome.transactions)
        assert results[True] > 5
        assert outcome.cleaned >= {STATES, "__transaction_state"}
        counts += outcome.counts
    assert never_taken(counts) == [], table(counts)


def test_seed_repeats_a_run_of_transactions(seed: int) -> None:
    first, second = simulate(seed), simulate(seed)
    assert second.transcript == first.transcript
    other = subprocess.run(
        [sys.executable, "-m", "tests.simulation.transaction_runs", str(seed), "1", "-v"],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(seed % 1000 + 1)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert other[: len(first.transcript)] == first.transcript
    assert f"seed {seed}: hash {first.digest}" in other


def test_other_seed_has_another_hash(seed: int) -> None:
    assert simulate(seed).digest != simulate(seed + 1).digest
