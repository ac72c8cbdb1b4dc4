from __future__ import annotations

from minibroker.lab.checker.history import read_history
from minibroker.lab.checker.record_order import Observations
from tests.lab.checker.written import Line, header, poll, send, txn

A = "orders-0"


def observed(*operations: list[Line]) -> Observations:
    return Observations(read_history([header(), *(line for lines in operations for line in lines)]))


def test_index_is_the_dense_rank_of_offsets() -> None:
    order = observed(send(0, (A, 7, 3), (A, 8, 10)), poll(1, {A: [(5, 9)]})).orders[A]
    assert order.offsets == [3, 5, 10]
    assert order.index_of_offset == {3: 0, 5: 1, 10: 2}
    assert order.first_index == {7: 0, 9: 1, 8: 2}


def test_polls_of_failed_transactions_are_part_of_the_order() -> None:
    assert observed(txn(0, [], {A: [(4, 1)]}, result="fail")).orders[A].offsets == [4]


def test_sends_of_failed_operations_are_not_part_of_the_order() -> None:
    assert A not in observed(send(0, (A, 1, 0), result="fail")).orders


def test_unknown_operation_committed_if_one_of_its_values_was_polled() -> None:
    unknown = txn(0, [(A, 1, 0), (A, 2, 1)], result="unknown")
    assert observed(unknown).committed == [False]
    assert A not in observed(unknown).orders
    seen = observed(unknown, poll(1, {A: [(1, 2)]}))
    assert seen.committed == [True, True]
    assert seen.orders[A].offsets == [0, 1]


def test_values_of_an_inconsistent_offset_are_all_kept() -> None:
    order = observed(send(0, (A, 1, 0)), poll(1, {A: [(0, 2), (1, 1)]})).orders[A]
    assert list(order.values_at(0)) == [1, 2]
    assert (order.first_index[1], order.last_index[1]) == (0, 1)
