"""The table of states, and the error for a transition that is not in it."""

from __future__ import annotations

import pytest

from minibroker.broker.groups.states import (
    COMMIT_ERRORS,
    HEARTBEAT_ERRORS,
    TRANSITIONS,
    GroupState,
    InvalidGroupTransition,
    StateTransition,
    TransitionCause,
    next_state,
)

ALLOWED = {
    ("Empty", "REBALANCE", "PreparingRebalance"),
    ("Empty", "REMOVED", "Dead"),
    ("PreparingRebalance", "NEW_GENERATION", "CompletingRebalance"),
    ("PreparingRebalance", "NO_MEMBERS", "Empty"),
    ("PreparingRebalance", "REMOVED", "Dead"),
    ("CompletingRebalance", "ASSIGNED", "Stable"),
    ("CompletingRebalance", "REBALANCE", "PreparingRebalance"),
    ("CompletingRebalance", "REMOVED", "Dead"),
    ("Stable", "REBALANCE", "PreparingRebalance"),
    ("Stable", "REMOVED", "Dead"),
}


@pytest.mark.parametrize("state", GroupState)
@pytest.mark.parametrize("move", TransitionCause)
def test_transitions_equal_kafkas(state: GroupState, move: TransitionCause) -> None:
    targets = {after for before, why, after in ALLOWED if (before, why) == (state.value, move.name)}
    if targets:
        assert {next_state("g", state, move, []).value} == targets
    else:
        with pytest.raises(InvalidGroupTransition):
            next_state("g", state, move, [])


def test_every_state_is_reachable_and_has_answers() -> None:
    reached = {after for moves in TRANSITIONS.values() for after in moves.values()}
    assert reached == set(GroupState)
    assert set(TRANSITIONS) == set(HEARTBEAT_ERRORS) == set(COMMIT_ERRORS) == set(GroupState)


def test_invalid_transition_lists_past_transitions() -> None:
    past_transitions = [
        StateTransition(1.5, GroupState.STABLE, TransitionCause.REMOVED, GroupState.DEAD)
    ]
    with pytest.raises(
        InvalidGroupTransition, match=r"1\.500 Stable -> Dead \(the group was deleted"
    ):
        next_state("g", GroupState.DEAD, TransitionCause.REBALANCE, past_transitions)
