"""The standing attack: one run, and a test for each thing that must hold whatever happens.

ATTACK_S, ATTACK_SEED and ATTACK_ROUND choose the duration, the seed and a single round.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final

import pytest

from system_tests.attack.campaign import attack
from system_tests.attack.report import Invariant, Report

SECONDS: Final = float(os.environ.get("ATTACK_S") or 3600)
SETTLING_S: Final = 600
"""For the end of the last round, and for what does not end."""

pytestmark = [pytest.mark.minibroker, pytest.mark.timeout(2 * SECONDS + SETTLING_S)]


@pytest.fixture(scope="session")
def report(memory_folder: Path) -> Report:
    """What the attack did and found; its table is printed when it is over."""
    seed = int(os.environ.get("ATTACK_SEED") or random.SystemRandom().randrange(10**6))
    only = os.environ.get("ATTACK_ROUND")
    print(f"\nATTACK_SEED={seed} ATTACK_S={SECONDS:g}", flush=True)
    found = attack(seed, SECONDS, memory_folder / "attack", only=int(only) if only else None)
    print(found.table(), flush=True)
    return found


@pytest.mark.parametrize("invariant", list(Invariant), ids=lambda each: each.name.lower())
def test_attack_leaves_invariant_intact(report: Report, invariant: Invariant) -> None:
    found = [f"{each.round}: {each.text}" for each in report.violations(invariant)]
    assert not found, f"{invariant.value}; ATTACK_SEED={report.seed}\n" + "\n".join(found)
