"""Records of ``__transaction_state``: Kafka's bytes, and every state survives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.transactions.metadata import TransactionMetadata, TransactionState
from minibroker.broker.transactions.records import (
    TransactionEntry,
    by_topic,
    decode_transaction,
)
from minibroker_protocol.errors import DecodeError, UnsupportedVersion

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
