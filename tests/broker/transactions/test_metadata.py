"""Transitions of one transactional id: which fields change, and which transitions are invalid."""

from __future__ import annotations

import pytest

from minibroker.broker.transactions.metadata import (
    EPOCH_MAX,
    IDLE,
    OTHER_STATE_NAMES,
    PREDECESSORS,
    PREPARED,
    STATE_NAMES,
    InvalidTransactionTransition,
    TransactionMetadata,
    TransactionState,
    new_metadata,
)

PARTITION = frozenset({("t", 0)})


def started(epoch: int = 3) -> TransactionMetadata:
    empty = new_metadata(7, timeout_ms=60_000, now_ms=1)
    named = empty.with_epoch(epoch, last_epoch=-1, timeout_ms=60_000, now_ms=2)
    return named.with_partitions(PARTITION, client_version=2, now_ms=10)


def test_first_partition_starts_transaction_and_later_ones_do_not() -> None:
    metadata = started()
    assert (metadata.state, metadata.start_ms, metadata.updated_ms) == (
        TransactionState.ONGOING,
        10,
        10,
    )
    more = metadata.with_partitions(frozenset({("t", 1)}), client_version=2, now_ms=20)
    assert more.partitions == {("t", 0), ("t", 1)}
    assert (more.start_ms, more.updated_ms) == (10, 20)


def test_version_2_increments_epoch_when_transaction_ends() -> None:
    prepared = started().prepared(committed=True, client_version=2, next_producer_id=-1, now_ms=30)
    assert (prepared.producer_epoch, prepared.last_epoch) == (4, 3)
    completed = prepared.completed(40)
    assert (completed.state, completed.producer_epoch) == (TransactionState.COMPLETE_COMMIT, 4)
    assert (completed.partitions, completed.start_ms) == (frozenset(), 10)


def test_version_1_keeps_epoch_when_transaction_ends() -> None:
    prepared = started().prepared(committed=False, client_version=0, next_producer_id=-1, now_ms=30)
    assert (prepared.state, prepared.producer_epoch) == (TransactionState.PREPARE_ABORT, 3)
    assert not prepared.is_commit
    assert prepared.is_prepared


def test_next_producer_id_is_used_when_transaction_is_complete() -> None:
    prepared = started(EPOCH_MAX - 1).prepared(
        committed=True, client_version=2, next_producer_id=8, now_ms=30
    )
    assert (prepared.producer_id, prepared.producer_epoch) == (7, EPOCH_MAX)
    completed = prepared.completed(40)
    assert (completed.producer_id, completed.producer_epoch) == (8, 0)
    assert (completed.previous_producer_id, completed.next_producer_id) == (7, -1)
    assert completed.last_epoch == EPOCH_MAX - 1


def test_abort_without_partitions_starts_and_ends_now() -> None:
    empty = new_metadata(7, timeout_ms=1, now_ms=1).with_epoch(
        0, last_epoch=-1, timeout_ms=1, now_ms=2
    )
    prepared = empty.prepared(committed=False, client_version=2, next_producer_id=-1, now_ms=5)
    assert prepared.start_ms == 5


def test_new_producer_id_starts_with_epoch_0() -> None:
    ended = started(EPOCH_MAX - 1).prepared(
        committed=True, client_version=0, next_producer_id=-1, now_ms=30
    )
    rotated = ended.completed(31).with_producer_id(9, last_epoch=-1, timeout_ms=5, now_ms=32)
    assert (rotated.producer_id, rotated.producer_epoch, rotated.timeout_ms) == (9, 0, 5)
    assert rotated.previous_producer_id == 7


def test_fenced_epoch_is_never_above_maximum() -> None:
    assert started(4).fenced().producer_epoch == 5
    assert started(EPOCH_MAX).fenced().producer_epoch == EPOCH_MAX


def test_invalid_transition_raises_and_names_both_states() -> None:
    with pytest.raises(InvalidTransactionTransition, match="Ongoing cannot become Empty"):
        started().with_epoch(4, last_epoch=-1, timeout_ms=1, now_ms=1)
    empty = new_metadata(7, timeout_ms=1, now_ms=1)
    with pytest.raises(InvalidTransactionTransition, match="Empty cannot become PrepareCommit"):
        empty.prepared(committed=True, client_version=0, next_producer_id=-1, now_ms=1)


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
