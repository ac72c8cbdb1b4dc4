"""One attack for all tests of a run, chosen by ATTACK_S, ATTACK_SEED and ATTACK_ROUND."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from system_tests.attack.campaign import attack
from system_tests.attack.report import Report

HOUR_S = 3600.0


@pytest.fixture(scope="session")
def report(memory_folder: Path) -> Report:
    """What the attack did and found; its table is printed when it is over."""
    seed = int(os.environ.get("ATTACK_SEED") or random.SystemRandom().randrange(10**6))
    seconds = float(os.environ.get("ATTACK_S") or HOUR_S)
    only = os.environ.get("ATTACK_ROUND")
    print(f"\nATTACK_SEED={seed} ATTACK_S={seconds:g}", flush=True)
    found = attack(seed, seconds, memory_folder / "attack", only=int(only) if only else None)
    print(found.table(), flush=True)
    return found
