"""The order of checks, retries, fencing and exhaustion, in both transaction versions."""

from __future__ import annotations

import pytest

from minibroker.broker.transactions.metadata import (
    EPOCH_MAX,
    TIMEOUT_OF_TWO_PHASE_COMMIT,
    TransactionMetadata,
)
from minibroker.broker.transactions.metadata import TransactionState as State
from minibroker.broker.transactions.state_machine import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    ProducerIdAndEpoch,
    TransactionDecision,
    VerifyPartitions,
    add_partitions,
    end_transaction,
    init_producer,
    is_expired,
    is_timed_out,
    markers_written,
    time_out,
    verify_partitions,
)
from minibroker_protocol.errors import ErrorCode

OK = ErrorCode.NONE
CONCURRENT = ErrorCode.CONCURRENT_TRANSACTIONS
FENCED = ErrorCode.PRODUCER_FENCED
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING
INVALID = ErrorCode.INVALID_TXN_STATE
LAST = EPOCH_MAX - 1
PARTS = frozenset({("t", 0), ("t", 1)})
COMPLETE = (State.COMPLETE_COMMIT, State.COMPLETE_ABORT)


def at(state: State, epoch: int = 5, **changes: int) -> TransactionMetadata:
    partitions = frozenset() if state in (State.EMPTY, *COMPLETE) else PARTS
    base = TransactionMetadata(7, epoch, 60_000, state, partitions, 100, 100, 7, -1)
    return base._replace(**changes)  # type: ignore[arg-type]


def init(
    metadata: TransactionMetadata | None,
    expected: tuple[int, int] | None = None,
    *,
    version: int = 2,
    new: int | None = None,
) -> TransactionDecision:
    given = None if expected is None else ProducerIdAndEpoch(*expected)
    return init_producer(metadata, InitProducer(60_000, given, version), 200, new)


def end(
    metadata: TransactionMetadata | None,
    epoch: int,
    *,
    committed: bool = True,
    version: int = 2,
    producer_id: int = 7,
    new: int | None = None,
) -> TransactionDecision:
    event = EndTransaction(ProducerIdAndEpoch(producer_id, epoch), committed, version)
    return end_transaction(metadata, event, 200, new)


def written(decision: TransactionDecision) -> TransactionMetadata:
    assert decision.write is not None
    return decision.write


# --------------------------------------------------------------------------- InitProducerId


def test_first_init_needs_producer_id_and_starts_with_epoch_0() -> None:
    assert init(None).needs_producer_id
    decision = init(None, new=9)
    assert (decision.error, decision.producer) == (OK, (9, 0))
    assert written(decision).state is State.EMPTY
    assert init(None, (1, 4), new=9).producer == (9, 0)


@pytest.mark.parametrize("state", [State.EMPTY, *COMPLETE])
def test_init_of_idle_id_increments_epoch(state: State) -> None:
    decision = init(at(state))
    assert decision.producer == (7, 6)
    assert written(decision).last_epoch == -1
    assert written(decision).start_ms == -1


@pytest.mark.parametrize("state", [State.PREPARE_COMMIT, State.PREPARE_ABORT])
def test_init_while_markers_are_written_is_concurrent(state: State) -> None:
    assert init(at(state)).error is CONCURRENT
    assert init(at(state), (1, 1)).error is CONCURRENT


def test_init_in_transaction_aborts_it_and_is_retried() -> None:
    for version, epoch in ((2, 6), (1, 6), (0, 6)):
        decision = init(at(State.ONGOING), version=version)
        assert decision.error is CONCURRENT
        assert written(decision).state is State.PREPARE_ABORT
        assert written(decision).producer_epoch == epoch
        assert written(decision).client_version == (2 if version == 2 else 0)


def test_init_in_transaction_with_last_epoch_continues_with_other_producer_id() -> None:
    assert init(at(State.ONGOING, LAST)).needs_producer_id
    aborted = written(init(at(State.ONGOING, LAST), new=9))
    assert (aborted.producer_epoch, aborted.next_producer_id) == (EPOCH_MAX, 9)
    older = written(init(at(State.ONGOING, LAST), version=1))
    assert (older.producer_epoch, older.next_producer_id) == (EPOCH_MAX, -1)
    ended = older.completed(201)
    assert init(ended, new=9).producer == (9, 0)


def test_producer_that_continues_gets_next_epoch() -> None:
    decision = init(at(State.EMPTY), (7, 5))
    assert decision.producer == (7, 6)
    assert written(decision).last_epoch == 5


def test_repeated_continuation_gets_same_epoch_again() -> None:
    decision = init(at(State.EMPTY, 6, last_epoch=5), (7, 5))
    assert decision.producer == (7, 6)
    assert written(decision).last_epoch == 5
    assert init(at(State.EMPTY, LAST, last_epoch=LAST - 1), (7, LAST - 1)).producer == (7, LAST)


def test_other_producer_that_continues_is_fenced() -> None:
    assert init(at(State.EMPTY), (7, 4)).error is FENCED
    assert init(at(State.EMPTY), (8, 5)).error is FENCED
    assert init(at(State.ONGOING), (8, 5)).error is FENCED


def test_exhausted_epoch_gets_new_producer_id() -> None:
    assert init(at(State.EMPTY, LAST)).needs_producer_id
    decision = init(at(State.EMPTY, LAST), (7, LAST), new=9)
    assert decision.producer == (9, 0)
    assert (written(decision).previous_producer_id, written(decision).last_epoch) == (7, LAST)
    assert init(written(decision), (7, LAST)).producer == (9, 0)
    assert init(written(decision), (7, LAST - 1)).error is FENCED


# ---------------------------------------------------------------------- AddPartitionsToTxn


def add(
    metadata: TransactionMetadata | None, epoch: int = 5, producer_id: int = 7
) -> TransactionDecision:
    event = AddPartitions(ProducerIdAndEpoch(producer_id, epoch), PARTS, 2)
    return add_partitions(metadata, event, 200)


@pytest.mark.parametrize("state", [State.EMPTY, *COMPLETE])
def test_first_partitions_start_transaction(state: State) -> None:
    added = written(add(at(state)))
    assert (added.state, added.start_ms, added.partitions) == (State.ONGOING, 200, PARTS)


def test_known_partitions_are_not_written_again() -> None:
    assert add(at(State.ONGOING)) == TransactionDecision()
    one = at(State.ONGOING)._replace(partitions=frozenset({("u", 0)}))
    assert written(add(one)).partitions == PARTS | {("u", 0)}


def test_add_checks_state_before_producer_id_before_epoch() -> None:
    assert add(None).error is UNKNOWN
    assert add(at(State.PREPARE_COMMIT), 9, 9).error is CONCURRENT
    assert add(at(State.ONGOING), 9, 9).error is UNKNOWN
    assert add(at(State.ONGOING), 4).error is FENCED
    assert add(at(State.ONGOING), 6).error is FENCED


def test_verification_finds_only_partitions_of_ongoing_transaction() -> None:
    asked = frozenset({("t", 0), ("u", 0)})

    def verify(metadata: TransactionMetadata | None, epoch: int = 5) -> set[ErrorCode]:
        event = VerifyPartitions(ProducerIdAndEpoch(7, epoch), asked)
        return set(verify_partitions(metadata, event).values())

    event = VerifyPartitions(ProducerIdAndEpoch(7, 5), asked)
    assert verify_partitions(at(State.ONGOING), event) == {
        ("t", 0): OK,
        ("u", 0): ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert verify(at(State.EMPTY)) == {ErrorCode.TRANSACTION_ABORTABLE}
    assert verify(None) == {UNKNOWN}
    assert verify(at(State.ONGOING), 4) == {FENCED}
    assert verify(at(State.PREPARE_ABORT)) == {CONCURRENT}
    assert verify(at(State.PREPARE_ABORT), 4) == {FENCED}


# ----------------------------------------------------------------------------------- EndTxn


@pytest.mark.parametrize(
    ("committed", "state"), [(True, State.PREPARE_COMMIT), (False, State.PREPARE_ABORT)]
)
def test_end_of_ongoing_transaction_is_prepared(committed: bool, state: State) -> None:
    decision = end(at(State.ONGOING), 5, committed=committed)
    assert decision.producer == (7, 6)
    assert (written(decision).state, written(decision).producer_epoch) == (state, 6)
    older = end(at(State.ONGOING), 5, committed=committed, version=0)
    assert older.producer == (-1, -1)
    assert (written(older).state, written(older).producer_epoch) == (state, 5)


@pytest.mark.parametrize("version", [0, 2])
def test_end_of_other_producer_is_rejected(version: int) -> None:
    assert end(None, 5, version=version).error is UNKNOWN
    assert end(at(State.ONGOING), 5, producer_id=8, version=version).error is UNKNOWN
    for epoch in (4, 6):
        assert end(at(State.ONGOING), epoch, version=version).error is FENCED


def test_version_1_checks_producer_before_concurrency_and_version_2_after() -> None:
    assert end(at(State.PREPARE_COMMIT), 4, version=1).error is FENCED
    assert end(at(State.PREPARE_COMMIT), 5, version=1).error is CONCURRENT
    assert end(at(State.PREPARE_COMMIT), 1, producer_id=1).error is CONCURRENT


@pytest.mark.parametrize(
    ("state", "committed", "error"),
    [
        (State.EMPTY, True, INVALID),
        (State.EMPTY, False, INVALID),
        (State.COMPLETE_COMMIT, True, OK),
        (State.COMPLETE_COMMIT, False, INVALID),
        (State.COMPLETE_ABORT, True, INVALID),
        (State.COMPLETE_ABORT, False, OK),
    ],
)
def test_version_1_repeats_last_answer(state: State, committed: bool, error: ErrorCode) -> None:
    decision = end(at(state), 5, committed=committed, version=1)
    assert (decision.error, decision.write) == (error, None)


@pytest.mark.parametrize(
    ("state", "committed", "repeated", "current"),
    [
        (State.EMPTY, False, FENCED, "abort"),
        (State.EMPTY, True, FENCED, INVALID),
        (State.COMPLETE_ABORT, False, OK, "abort"),
        (State.COMPLETE_ABORT, True, INVALID, INVALID),
        (State.COMPLETE_COMMIT, False, INVALID, "abort"),
        (State.COMPLETE_COMMIT, True, OK, INVALID),
    ],
)
def test_version_2_tells_repetition_from_next_end(
    state: State, committed: bool, repeated: ErrorCode, current: ErrorCode | str
) -> None:
    """Kafka's table in the comment of ``endTransaction``."""
    decision = end(at(state), 4, committed=committed)
    assert (decision.error, decision.write) == (repeated, None)
    if repeated is OK:
        assert decision.producer == (7, 5)
    decision = end(at(state), 5, committed=committed)
    if current == "abort":
        assert written(decision).state is State.PREPARE_ABORT
        assert decision.producer == (7, 6)
    else:
        assert (decision.error, decision.write) == (current, None)


def test_end_with_last_epoch_continues_with_other_producer_id() -> None:
    assert end(at(State.ONGOING, LAST), LAST).needs_producer_id
    decision = end(at(State.ONGOING, LAST), LAST, new=9)
    assert decision.producer == (9, 0)
    assert (written(decision).producer_id, written(decision).producer_epoch) == (7, EPOCH_MAX)
    completed = written(decision).completed(300)
    assert end(completed, LAST).producer == (9, 0)
    assert end(completed, LAST, committed=False).error is INVALID
    assert end(completed, 0, committed=False, producer_id=9).error is OK
    assert end(completed, LAST - 1).error is UNKNOWN


# -------------------------------------------------------------------------- internal events


def test_transaction_times_out_after_its_timeout() -> None:
    ongoing = at(State.ONGOING)
    assert not is_timed_out(ongoing, 60_100)
    assert is_timed_out(ongoing, 60_101)
    assert not is_timed_out(at(State.EMPTY), 10**9)
    assert not is_timed_out(at(State.PREPARE_COMMIT), 10**9)
    endless = ongoing._replace(timeout_ms=TIMEOUT_OF_TWO_PHASE_COMMIT)
    assert not is_timed_out(endless, 2**40)


def test_timed_out_transaction_is_aborted_and_its_producer_fenced() -> None:
    for version in (0, 2):
        aborted = written(time_out(at(State.ONGOING), version, 70_000))
        assert (aborted.state, aborted.producer_epoch) == (State.PREPARE_ABORT, 6)
        ended = aborted.completed(70_001)
        assert end(ended, 5, version=0).error is FENCED
        assert add(ended).error is FENCED
    assert time_out(at(State.EMPTY), 2, 70_000) == TransactionDecision()
    exhausted = time_out(at(State.ONGOING, LAST), 2, 70_000)
    assert exhausted.needs_producer_id


def test_transaction_is_complete_when_all_markers_are_written() -> None:
    prepared = at(State.PREPARE_COMMIT)
    first = markers_written(prepared, frozenset({("t", 0)}), 300)
    assert first.write is None
    assert first.keep is not None
    assert first.keep.partitions == {("t", 1)}
    last = markers_written(first.keep, frozenset({("t", 1)}), 300)
    assert written(last).state is State.COMPLETE_COMMIT
    assert last.keep is not None
    assert last.keep.partitions == frozenset()


def test_only_idle_ids_expire() -> None:
    for state in State:
        idle = state in (State.EMPTY, *COMPLETE)
        assert is_expired(at(state), 1_100, 1_000) == idle
        assert not is_expired(at(state), 1_099, 1_000)


def test_decision_is_success_without_write_by_default() -> None:
    decision = TransactionDecision()
    assert decision.error is ErrorCode.NONE
    assert decision.producer == (-1, -1)
    assert decision.write is None
    assert decision.keep is None
    assert not decision.needs_producer_id
