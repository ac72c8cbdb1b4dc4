"""Tests."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.transactions import (
    NO_GUARD,
    NO_OFFSET,
    TRANSACTION_ENTRY,
    AbortedTransaction,
    TransactionIndex,
    TransactionMarker,
    UnstableTransactions,
    Verifications,
    search_transaction_index,
)
from minibroker_protocol.control_records import EndTransactionMarker
from minibroker_protocol.errors import DecodeError


def test_first_unstable_offset_is_that_of_oldest_open_transaction() -> None:
    transactions = UnstableTransactions()
    assert transactions.first_unstable_offset == NO_OFFSET
    transactions.start(5)
    transactions.start(9)
    assert transactions.first_unstable_offset == 5
    assert transactions.complete(5, 12) == 9
    assert len(transactions) == 1


def test_completed_transaction_is_unstable_until_marker_is_replicated() -> None:
    transactions = UnstableTransactions()
    transactions.start(5)
    assert transactions.complete(5, 12) == 13
    transactions.replicated(12)
    assert transactions.first_unstable_offset == 5
    transactions.replicated(13)
    assert transactions.first_unstable_offset == NO_OFFSET


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=60))
def test_first_unstable_offset_agrees_with_all_transactions(
    steps: list[tuple[bool, int]],
) -> None:
    transactions = UnstableTransactions()
    opened: list[int] = []
    unreplicated: list[tuple[int, int]] = []
    for offset, (starts, choice) in enumerate(steps):
        if starts:
            transactions.start(offset)
            opened.append(offset)
        elif opened:
            first = opened.pop(choice % len(opened))
            stable = transactions.complete(first, offset)
            assert stable == min(opened, default=offset + 1)
            unreplicated.append((first, offset))
        elif choice:
            transactions.replicated(offset)
            unreplicated = [each for each in unreplicated if each[1] >= offset]
        expected = min([*opened, *(first for first, _ in unreplicated)], default=NO_OFFSET)
        assert transactions.first_unstable_offset == expected


ENTRIES = [AbortedTransaction(1, 0, 4, 2), AbortedTransaction(2, 2, 6, 7)]


def index_of(entries: list[AbortedTransaction]) -> TransactionIndex:
    index = TransactionIndex()
    for entry in entries:
        index.append(entry)
    return index


def test_index_has_kafkas_format() -> None:
    assert index_of(ENTRIES[:1]).encode().hex() == (
        "00000000000000000001000000000000000000000000000000040000000000000002"
    )


def test_index_is_read_back() -> None:
    index = index_of(ENTRIES)
    assert list(TransactionIndex(index.encode())) == ENTRIES
    assert index.encode(1) == index.encode()[TRANSACTION_ENTRY.size :]
    assert len(index) == 2


@pytest.mark.parametrize(
    "data", [b"\0", b"\0" * (TRANSACTION_ENTRY.size - 1), b"\0\1" + b"\0" * 32]
)
def test_damaged_index_is_rejected(data: bytes) -> None:
    with pytest.raises(DecodeError):
        TransactionIndex(data)


def test_index_file_is_searched(tmp_path: Path) -> None:
    path = tmp_path / "i"
    path.write_bytes(index_of(ENTRIES).encode())
    assert search_transaction_index(str(path), 5, 7) == (ENTRIES[1:], True)
    assert search_transaction_index(str(path), 0, 9) == (ENTRIES, False)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 80), st.integers(1, 30))
def test_search_finds_all_aborted_transactions_of_range(
    steps: list[int], start: int, length: int
) -> None:
    """Transactions that overlap are opened and aborted; the search must miss none of a range."""
    transactions, opened, index = UnstableTransactions(), list[int](), TransactionIndex()
    everything: list[AbortedTransaction] = []
    for offset, choice in enumerate(steps):
        if choice == 0 or not opened:
            transactions.start(offset)
            opened.append(offset)
            continue
        first = opened.pop(choice % len(opened))
        everything.append(
            AbortedTransaction(first, first, offset, transactions.complete(first, offset))
        )
        index.append(everything[-1])
    stable = opened[0] if opened else len(steps)
    end = min(start + length, stable)
    if end <= start:
        return
    found, is_complete = index.overlapping(start, end)
    needed = [each for each in everything if each.last_offset >= start and each.first_offset < end]
    assert found == needed
    assert is_complete or not everything or everything[-1].last_stable_offset < end


def test_guard_verifies_its_producer_until_verification_ends() -> None:
    verifications = Verifications()
    guard = verifications.begin(7, 0, 0, adds=True, now_ms=0)
    assert verifications.is_verified(7, guard)
    assert not verifications.is_verified(8, guard)
    assert not verifications.is_verified(7, NO_GUARD)
    verifications.end(7)
    assert not verifications.is_verified(7, guard)


def test_guard_of_earlier_verification_is_not_accepted() -> None:
    verifications = Verifications()
    stale = verifications.begin(7, 0, 0, adds=False, now_ms=0)
    verifications.end(7)
    fresh = verifications.begin(7, 0, 0, adds=False, now_ms=0)
    assert stale != fresh
    assert not verifications.is_verified(7, stale)


def test_lowest_sequence_falls_within_epoch_and_restarts_with_next_epoch() -> None:
    verifications = Verifications()
    guard = verifications.begin(7, 5, 0, adds=False, now_ms=0)
    assert verifications.begin(7, 3, 0, adds=False, now_ms=0) == guard
    assert verifications.begin(7, 8, 0, adds=False, now_ms=0) == guard
    lowest = verifications.get(7)
    assert lowest is not None
    assert (lowest.lowest_sequence, lowest.epoch) == (3, 0)
    verifications.begin(7, 6, 1, adds=False, now_ms=0)
    lowest = verifications.get(7)
    assert lowest is not None
    assert (lowest.lowest_sequence, lowest.epoch) == (6, 1)


def test_verification_without_result_expires() -> None:
    verifications = Verifications()
    verifications.begin(7, 0, 0, adds=False, now_ms=0)
    verifications.begin(8, 0, 0, adds=False, now_ms=1)
    verifications.expire(1000, 1000)
    assert verifications.get(7) is None
    assert len(verifications) == 1


def test_marker_request_is_sent_between_processes_as_it_is() -> None:
    request = TransactionMarker(7, 2, True, 5, 2, (("t", 0), ("t", 1)))
    assert pickle.loads(pickle.dumps(request)) == request
    assert request.marker == EndTransactionMarker(committed=True, coordinator_epoch=5)
