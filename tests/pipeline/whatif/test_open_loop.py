"""The compiled open loop, decision by decision, against the broker's own modules."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.pipeline.whatif.columns import more_pending, new_pending
from minibroker.pipeline.whatif.open_loop import room
from minibroker.pipeline.whatif.proposal import Counting
from tests.pipeline.whatif import oracle, random_workload


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 120), st.sampled_from([1, 2, 11]))
def test_simulation_matches_broker(seed: int, number: int, samples: int) -> None:
    chance = random.Random(seed)
    proposal, events = random_workload.proposal(chance), random_workload.events(chance, number)
    counting = Counting(quota_window_num=samples)
    found = random_workload.replay(
        events, proposal, counting, batches=chance.randrange(1, 4), shuffle=chance
    )
    assert found == oracle.open_loop(events, proposal, counting)


@pytest.mark.parametrize("seed", range(4))
def test_simulation_matches_broker_over_long_runs(seed: int) -> None:
    chance = random.Random(seed)
    proposal, events = (
        random_workload.proposal(chance, most=6),
        random_workload.events(chance, 5000, step_ms=400),
    )
    counting = Counting()
    wanted = oracle.open_loop(events, proposal, counting)
    assert random_workload.replay(events, proposal, counting, batches=7, shuffle=chance) == wanted
    assert sum(decision.ms > 0 for decision in wanted.values()) > 50


def test_arena_has_the_configured_capacity() -> None:
    assert room(new_pending()) == 0
    assert room(more_pending(more_pending(new_pending(), 3, 1), 4, 1)) == 7
