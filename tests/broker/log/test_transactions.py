from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.transactions import NO_OFFSET, UnstableTransactions


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
