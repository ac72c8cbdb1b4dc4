from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.transaction_index import (
    ENTRY,
    AbortedTransaction,
    TransactionIndex,
    aborted_transaction,
    search_transaction_index,
)
from minibroker.broker.log.transactions import CompletedTransaction, UnstableTransactions
from minibroker_protocol.errors import DecodeError

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
    assert index.encode(1) == index.encode()[ENTRY.size :]
    assert len(index) == 2


@pytest.mark.parametrize("data", [b"\0", b"\0" * (ENTRY.size - 1), b"\0\1" + b"\0" * 32])
def test_damaged_index_is_rejected(data: bytes) -> None:
    with pytest.raises(DecodeError):
        TransactionIndex(data)


def test_entry_of_completed_transaction_has_its_last_stable_offset() -> None:
    completed = CompletedTransaction(1, 0, 4, 2, committed=False)
    assert aborted_transaction(completed) == ENTRIES[0]


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
