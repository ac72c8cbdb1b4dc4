from __future__ import annotations

from minibroker.broker.log.cleaner.cleaned_transactions import CleanedTransactions
from minibroker.broker.log.transaction_index import AbortedTransaction

FIRST = AbortedTransaction(1, 10, 19, 20)
SECOND = AbortedTransaction(1, 30, 39, 40)


def test_aborted_transaction_with_data_keeps_marker_and_entry() -> None:
    transactions = CleanedTransactions([SECOND, FIRST])
    assert not transactions.is_aborted(1, 9)
    assert not transactions.is_dispensable(1, 9, committed=True)
    assert transactions.is_aborted(1, 10)
    assert not transactions.is_dispensable(1, 19, committed=False)
    assert transactions.kept == [FIRST]
    assert transactions.is_dispensable(1, 39, committed=False), "its data is gone"
    assert transactions.kept == [FIRST]


def test_commit_marker_is_dispensable_without_data() -> None:
    transactions = CleanedTransactions()
    assert transactions.is_dispensable(1, 5, committed=True)
    assert not transactions.is_aborted(1, 6)
    assert not transactions.is_dispensable(1, 7, committed=True)
    assert transactions.is_dispensable(1, 8, committed=True)


def test_other_control_batch_stays() -> None:
    assert not CleanedTransactions().is_dispensable(1, 5, committed=None)


def test_producers_are_independent() -> None:
    transactions = CleanedTransactions([FIRST])
    assert not transactions.is_aborted(2, 12)
    assert transactions.is_aborted(1, 13)
    assert not transactions.is_dispensable(2, 14, committed=True)
