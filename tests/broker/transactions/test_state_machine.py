"""The order of checks, retries, fencing and exhaustion, in both transaction versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.replica_manager import Partition
from minibroker.broker.transactions.state_machine import (
    EPOCH_MAX,
    IDLE,
    MARKERS_PER_REQUEST_MAX,
    OTHER_STATE_NAMES,
    PREDECESSORS,
    PREPARED,
    STATE_NAMES,
    TIMEOUT_OF_TWO_PHASE_COMMIT,
    AddPartitions,
    EndTransaction,
    InitProducer,
    InvalidTransactionTransition,
    MarkerQueue,
    ProducerIdAndEpoch,
    TransactionDecision,
    TransactionEntry,
    TransactionManager,
    TransactionMetadata,
    TransactionState,
    VerifyPartitions,
    add_partitions,
    by_topic,
    decode_transaction,
    end_transaction,
    init_producer,
    is_expired,
    is_timed_out,
    markers_written,
    new_metadata,
    time_out,
    verify_partitions,
)
from minibroker.broker.transactions.state_machine import TransactionState as State
from minibroker_protocol.errors import DecodeError, ErrorCode, UnsupportedVersion
from tests.broker.log.cleaned_partition import compact
from tests.broker.transactions.conftest import START_MS, StateDisk

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


LONG = st.integers(-1, 2**63 - 1)
SHORT = st.integers(-1, 2**15 - 1)
PARTITIONS = st.frozensets(st.tuples(st.text(max_size=9), st.integers(0, 2**31 - 1)), max_size=5)


@st.composite
def states(draw: st.DrawFn) -> TransactionMetadata:
    state = draw(st.sampled_from(TransactionState))
    return TransactionMetadata(
        producer_id=draw(LONG),
        producer_epoch=draw(SHORT),
        timeout_ms=draw(st.integers(0, 2**31 - 1)),
        state=state,
        partitions=frozenset() if state is TransactionState.EMPTY else draw(PARTITIONS),
        start_ms=draw(LONG),
        updated_ms=draw(LONG),
        previous_producer_id=draw(LONG),
        next_producer_id=draw(LONG),
        client_version=draw(st.integers(0, 2)),
    )


@given(st.text(max_size=20), states())
def test_decoding_an_encoded_entry_returns_it(transactional_id: str, state: object) -> None:
    assert isinstance(state, TransactionMetadata)
    entry = TransactionEntry(transactional_id, state)
    for version in (1, 2):
        assert decode_transaction(*entry.encode(version)) == entry


@given(states())
def test_version_0_has_no_tagged_fields(state: TransactionMetadata) -> None:
    key, value = TransactionEntry("x", state).encode(0)
    assert value is not None
    assert value[:2] == b"\0\0"
    expected = state._replace(previous_producer_id=-1, next_producer_id=-1, client_version=0)
    assert decode_transaction(key, value) == TransactionEntry("x", expected)


def test_bytes_are_those_of_kafka() -> None:
    metadata = TransactionMetadata(
        producer_id=258,
        producer_epoch=3,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        partitions=frozenset({("t", 1), ("t", 0)}),
        start_ms=5,
        updated_ms=6,
        previous_producer_id=258,
        client_version=2,
    )
    key, value = TransactionEntry("id", metadata).encode(2)
    assert key.hex() == "0000" + "00026964"
    assert value is not None
    assert value.hex() == (
        "0001" + "0000000000000102" + "0003" + "0000ea60" + "01"
        # one topic with two partitions
        + "02" + "0274" + "03" + "00000000" + "00000001" + "00"
        + "0000000000000006" + "0000000000000005"
        # two tagged fields: the previous producer id and the client's version
        + "02" + "0008" + "0000000000000102" + "0202" + "0002"
    )  # fmt: skip
    assert TransactionEntry("id", None).encode(2) == (key, None)


def test_empty_state_has_null_partitions() -> None:
    metadata = TransactionMetadata(1, 0, 1, TransactionState.EMPTY, frozenset(), -1, 6)
    _, value = TransactionEntry("id", metadata).encode(0)
    assert value is not None
    assert value[17:21] == b"\xff\xff\xff\xff"


def test_unknown_key_version_is_no_entry() -> None:
    assert decode_transaction(b"\0\1\0\1x", None) is None


def test_unknown_value_version_or_state_is_an_error() -> None:
    metadata = TransactionMetadata(1, 0, 1, TransactionState.EMPTY, frozenset(), -1, 6)
    key, value = TransactionEntry("id", metadata).encode(0)
    assert value is not None
    with pytest.raises(UnsupportedVersion):
        decode_transaction(key, b"\0\x09" + value[2:])
    with pytest.raises(DecodeError, match="77 is no state"):
        decode_transaction(key, value[:16] + b"\x4d" + value[17:])
    with pytest.raises(DecodeError):
        decode_transaction(key, value[:9])


def test_partitions_are_grouped_by_topic() -> None:
    assert by_topic([("b", 1), ("a", 2), ("b", 0)]) == [("a", [2]), ("b", [0, 1])]


# ------------------------------------ Transactional ids survive kills; failed writes change nothing


STATE = TransactionMetadata(1, 0, 60_000, TransactionState.EMPTY, frozenset(), -1, 5, 1)


def manager(disk: StateDisk) -> TransactionManager:
    return TransactionManager(
        partitions=50, open_partition=disk.open, transaction_version=lambda: 2
    )


def stored(disk: StateDisk) -> list[int]:
    names = (path.name for path in disk.directory.iterdir())
    return [int(name.rpartition("-")[2]) for name in names]


def test_states_are_restored_after_a_kill(disk: StateDisk) -> None:
    first = manager(disk)
    for name in ("a", "b", "c"):
        assert first.store(name, STATE, 1) is OK
    assert first.store("a", STATE._replace(producer_epoch=7), 2) is OK
    assert first.store("b", None, 3) is OK
    assert "b" not in first.transactions
    disk.kill()
    second = manager(disk)
    assert sorted(second.load(stored(disk))) == ["a", "c"]
    assert second.transactions == {"a": STATE._replace(producer_epoch=7), "c": STATE}
    assert second.coordinator_epoch("a") == 4


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
        (ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST),
    ],
)
def test_failed_write_keeps_previous_state(
    disk: StateDisk, code: ErrorCode, error: ErrorCode
) -> None:
    states = manager(disk)
    assert states.store("a", STATE, 1) is OK
    disk.fail(states.partition_of("a"), code)
    assert states.store("a", STATE._replace(producer_epoch=1), 2) is error
    assert states.store("a", None, 3) is error
    assert states.transactions == {"a": STATE}


def test_partition_that_cannot_be_opened_is_loaded_later(disk: StateDisk) -> None:
    states = manager(disk)
    states.store("a", STATE, 1)
    disk.kill()
    states = manager(disk)
    index = states.partition_of("a")
    disk.broken = {index}
    assert states.load([index]) == []
    assert (list(states.unloaded), states.is_loaded("a")) == ([index], False)
    assert states.is_loaded("b")
    disk.broken = set()
    assert states.load([index]) == ["a"]
    assert states.is_loaded("a")


def test_compacted_log_has_the_current_states(disk: StateDisk) -> None:
    states = manager(disk)
    for number in range(1000):
        assert states.store("a", STATE._replace(producer_epoch=number), number) is OK
    log = disk.logs[states.partition_of("a")]
    large = log.size
    compact(Partition(log, bytes(16), broker_id=1, leader_id=1, leader_epoch=4), START_MS)
    assert log.size < large / 100
    disk.kill()
    again = manager(disk)
    again.load(stored(disk))
    assert again.transactions["a"].producer_epoch == 999


def test_number_of_ids_is_limited(disk: StateDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minibroker.broker.transactions.state_machine.TRANSACTIONAL_IDS_MAX", 1)
    states = manager(disk)
    assert states.store("a", STATE, 1) is OK
    assert states.store("b", STATE, 1) is ErrorCode.POLICY_VIOLATION
    assert states.store("a", STATE, 1) is OK


def test_cleared_manager_starts_anew(disk: StateDisk) -> None:
    states = manager(disk)
    states.store("a", STATE, 1)
    states.remove_all(clear=True)
    assert states.transactions == {}
    disk.kill()
    again = manager(disk)
    assert again.load(stored(disk)) == []


A, B, C = ("t", 0), ("t", 1), ("t", 2)


def by_index(_topic: str, index: int) -> int:
    return index % 2


def test_markers_are_taken_by_owner() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({A, B, C}))
    queue.add("y", frozenset({B}))
    assert queue.take(by_index) == {
        0: {"x": frozenset({A, C})},
        1: {"x": frozenset({B}), "y": frozenset({B})},
    }
    assert len(queue) == 0


def test_markers_of_busy_owner_wait_until_its_request_is_answered() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({A}))
    assert queue.take(by_index)
    queue.add("y", frozenset({A, B}))
    assert queue.take(by_index) == {1: {"y": frozenset({B})}}
    queue.sent(0)
    assert queue.take(by_index) == {0: {"y": frozenset({A})}}


def test_owner_is_the_one_at_the_time_of_sending() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({A}))
    queue.take(by_index)
    queue.add("x", frozenset({A}))
    assert queue.take(lambda *_: 5) == {5: {"x": frozenset({A})}}


def test_request_has_a_maximum_of_transactions() -> None:
    queue = MarkerQueue()
    for number in range(MARKERS_PER_REQUEST_MAX + 1):
        queue.add(f"x{number}", frozenset({A}))
    [batch] = queue.take(by_index).values()
    assert len(batch) == MARKERS_PER_REQUEST_MAX
    assert len(queue) == 1
    queue.clear()
    queue.sent(0)
    assert queue.take(by_index) == {}


def test_queue_is_busy_until_all_owners_have_answered() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({("t", 0), ("t", 1)}))
    states = [queue.is_busy]
    queue.take(lambda _, index: index)
    for owner in (0, 1):
        states.append(queue.is_busy)
        queue.sent(owner)
    assert [*states, queue.is_busy] == [False, True, True, False]
