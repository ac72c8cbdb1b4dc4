"""Transitions of one transactional id: which fields change, and which transitions are invalid."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.transactions.metadata import (
    EPOCH_MAX,
    IDLE,
    OTHER_STATE_NAMES,
    PREDECESSORS,
    PREPARED,
    STATE_NAMES,
    InvalidTransactionTransition,
    TransactionEntry,
    TransactionMetadata,
    TransactionState,
    by_topic,
    decode_transaction,
    new_metadata,
)
from minibroker_protocol.errors import DecodeError, UnsupportedVersion

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
