"""What every test may ask for, and how hard hypothesis tries.

Owns the profiles (``HYPOTHESIS_PROFILE=deep`` for a long look) and the ``seed`` fixture. Knows
nothing of the broker. Invariant: two runs with the same ``--randomly-seed`` see the same seed.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Neither an example nor its making has a time: a busy machine is no mistake of a test.
TIMELESS = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fast", TIMELESS, max_examples=25)
settings.register_profile("deep", TIMELESS, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Seed of this run: ``make sim SEED=7`` (``--randomly-seed=7``) replays it."""
    value = request.config.getoption("randomly_seed", default=0)
    return value if isinstance(value, int) else 0
