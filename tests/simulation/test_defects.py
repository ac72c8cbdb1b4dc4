"""The simulation of whole brokers finds defects that are planted into the broker."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.defects import DEFECTS, SHARE_DEFECTS, STREAMS_DEFECTS, planted
from tests.simulation.run_plan import draw_plan
from tests.simulation.runs import simulate

SEEDS: Final = 20
"""Seeds of which one must find a defect. Most defects are found by the first."""


@pytest.mark.parametrize("name", DEFECTS)
def test_simulation_with_a_planted_defect_fails(name: str) -> None:
    for seed in range(SEEDS):
        plan = draw_plan(seed)
        if name in SHARE_DEFECTS and not plan.has_share_group:
            continue
        if name in STREAMS_DEFECTS and not plan.has_streams_group:
            continue
        with planted(name):
            outcome = simulate(seed)
        if outcome.wrong:
            return
    pytest.fail(f"{SEEDS} seeds do not find that {name}")
