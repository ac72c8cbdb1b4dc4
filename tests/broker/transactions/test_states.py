"""The table of states: Kafka's numbers and names, and which state follows which."""

from __future__ import annotations

from minibroker.broker.transactions.states import (
    IDLE,
    OTHER_STATE_NAMES,
    PREDECESSORS,
    PREPARED,
    STATE_NAMES,
    TransactionState,
)


def test_states_have_kafkas_numbers_and_names() -> None:
    assert [(state.value, STATE_NAMES[state]) for state in TransactionState] == [
        (0, "Empty"),
        (1, "Ongoing"),
        (2, "PrepareCommit"),
        (3, "PrepareAbort"),
        (4, "CompleteCommit"),
        (5, "CompleteAbort"),
    ]
    assert not OTHER_STATE_NAMES & set(STATE_NAMES.values())


def test_decision_is_only_followed_by_its_completion() -> None:
    for prepared, complete in (
        (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT),
        (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT),
    ):
        followers = [state for state, before in PREDECESSORS.items() if prepared in before]
        assert followers == [complete]


def test_every_state_is_idle_prepared_or_ongoing() -> None:
    assert set(TransactionState) == IDLE | PREPARED | {TransactionState.ONGOING}
