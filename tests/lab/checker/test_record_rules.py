"""."""

from __future__ import annotations

from pathlib import Path

import pytest

from minibroker.lab.checker.history import read_history
from minibroker.lab.checker.record_rules import LISTED_MAX, RULE_OF, RULES, Observations, listed
from tests.lab.checker.written import Line, assign, found, header, poll, report, send, txn

PAGE = Path(__file__).parents[3] / "docs/guides/check-a-history.md"


def test_names_are_unique() -> None:
    assert len(RULE_OF) == len(RULES)


def test_guide_has_the_same_table() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    table = [f"| `{rule.name}` | {rule.definition} | {rule.allowed_text} |" for rule in RULES]
    assert [row for row in rows if row in table] == table


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"], "; ") == "a; b"
    parts = [str(number) for number in range(LISTED_MAX + 3)]
    assert listed(parts, " ") == "0 1 2 3 4 5 6 7 3 more"


A, B = "orders-0", "orders-1"


def test_clean_history_has_no_anomaly() -> None:
    assert found(send(0, (A, 1, 0), (A, 2, 1)), poll(1, {A: [(0, 1), (1, 2)]})) == {}


def test_offset_with_two_values_is_inconsistent() -> None:
    assert found(
        send(0, (A, 1, 0)), poll(2, {A: [(0, 1)]}), send(1, (A, 2, 0)), poll(3, {A: [(0, 2)]})
    ) == {"inconsistent-offsets": 1}


def test_value_at_two_offsets_is_a_duplicate() -> None:
    history = (
        send(0, (A, 1, 0), (A, 2, 1), (A, 3, 3)),
        poll(1, {A: [(0, 1), (1, 2), (2, 1), (3, 3)]}),
    )
    assert found(*history) == {"duplicate": 1, "internal-send-skip": 1}
    assert report(*history).anomalies == {"duplicate": 1}
    assert report(*history, idempotence=False).valid


def test_acknowledged_value_below_a_polled_one_is_lost() -> None:
    assert found(send(0, (A, 1, 0), (A, 2, 1), (A, 3, 2)), poll(1, {A: [(0, 1), (2, 3)]})) == {
        "lost-write": 1
    }


def test_value_polled_by_a_failed_operation_only_is_lost() -> None:
    assert found(
        send(0, (A, 1, 0), (A, 2, 1)),
        poll(1, {A: [(0, 1)]}, result="fail"),
        poll(2, {A: [(1, 2)]}),
    ) == {"lost-write": 1}


def test_value_of_a_partly_polled_unknown_transaction_is_lost() -> None:
    assert found(
        txn(0, [(A, 1, 0), (A, 2, 1)], result="unknown"),
        send(1, (A, 3, 2)),
        poll(2, {A: [(1, 2), (2, 3)]}),
    ) == {"lost-write": 1}


def test_half_polled_transaction_without_offsets_has_lost_values() -> None:
    """A later record of the same producer was polled."""
    torn = txn(0, [(A, 1, None), (A, 2, None)], result="unknown")
    history = (torn, poll(1, {A: [(5, 2)]}))
    assert found(*history, final_polls=False) == {"lost-write": 1}
    [example] = report(*history).examples["lost-write"]
    assert example.text == (
        "value 1 of orders-0 was not polled; line 3 sent it and was partly polled, and line 5 "
        "polled the later offset 5"
    )


def test_half_polled_transaction_is_lost_when_a_later_one_is_polled() -> None:
    """The record that was sent after the first poll is behind the one that is missing."""
    torn = txn(0, [(A, 1, None), (B, 2, None)], result="unknown")
    later = (send(2, (B, 3, None)), poll(1, {B: [(9, 3)]}))
    assert found(torn, poll(1, {A: [(5, 1)]}), *later, final_polls=False) == {"lost-write": 1}


def test_half_polled_transaction_at_the_end_is_unseen() -> None:
    torn = txn(0, [(A, 1, None), (B, 2, None)], result="unknown")
    history = (torn, poll(1, {A: [(5, 1)]}))
    assert report(*history).anomalies == {"unseen": 1}
    assert report(*history, final_polls=False).valid
    [example] = report(*history).examples["unseen"]
    assert example.text == (
        "value 2 of orders-1 is of the transaction in line 3, of which line 5 polled a part, and "
        "no operation polled it"
    )


def test_record_that_was_sent_before_the_poll_proves_nothing_of_a_torn_transaction() -> None:
    torn = txn(0, [(A, 1, None), (B, 2, None)], result="unknown")
    history = (torn, send(2, (B, 3, None)), poll(1, {A: [(5, 1)], B: [(9, 3)]}))
    assert found(*history, final_polls=False) == {"unseen": 1}


def test_half_polled_sends_outside_of_a_transaction_may_fail_apart() -> None:
    sends = send(0, (A, 1, None), (A, 2, None), result="unknown")
    assert found(sends, poll(1, {A: [(5, 2)]})) == {}


def test_acknowledged_value_without_offset_before_a_polled_one_is_lost() -> None:
    history = (send(0, (A, 1, None)), send(0, (A, 2, 7)), poll(1, {A: [(7, 2)]}))
    assert found(*history, final_polls=False) == {"lost-write": 1}


def test_value_at_the_offset_of_a_polled_one_is_lost_there() -> None:
    history = (send(0, (A, 1, 0)), send(1, (A, 2, 0)), poll(2, {A: [(0, 2)]}))
    assert found(*history) == {"inconsistent-offsets": 1, "lost-write": 1}
    [example] = report(*history).examples["lost-write"]
    assert example.text == (
        "value 1 of orders-0 at offset 0 was not polled; line 3 sent it and was acknowledged, and "
        "line 7 polled another value at the same offset"
    )


def test_unpolled_value_of_an_unknown_operation_is_not_lost() -> None:
    assert (
        found(send(0, (A, 1, 0), result="unknown"), send(1, (A, 2, 1)), poll(2, {A: [(1, 2)]}))
        == {}
    )


def test_first_appearance_of_the_highest_value_bounds_what_is_lost() -> None:
    # Value 1 is at offsets 0 and 2, so polling it at 2 does not prove that 2 was passed.
    assert found(send(0, (A, 1, 0), (A, 2, 1)), poll(1, {A: [(2, 1)]})) == {
        "duplicate": 1,
        "unseen": 1,
    }


def test_value_of_a_failed_operation_is_an_aborted_read() -> None:
    history = (txn(0, [(A, 1, 0)], result="fail"), poll(1, {A: [(0, 1)]}))
    assert report(*history).anomalies == {"aborted-read": 1}
    assert report(*history, isolation_level="read_uncommitted").valid


def test_aborted_value_in_a_failed_poll_is_not_reported() -> None:
    assert found(txn(0, [(A, 1, 0)], result="fail"), poll(1, {A: [(0, 1)]}, result="fail")) == {}


def test_value_that_no_operation_sent_is_a_phantom_read() -> None:
    assert found(poll(0, {A: [(0, 7)]})) == {"phantom-read": 1}


def test_value_of_the_same_transaction_is_a_precommitted_read() -> None:
    history = txn(0, [(A, 1, 0)], {A: [(0, 1)]})
    assert report(history).anomalies == {"precommitted-read": 1}
    assert report(history, isolation_level="read_uncommitted").valid


def test_acknowledged_value_at_the_end_is_unseen() -> None:
    history = (send(0, (A, 1, 0), (A, 2, 1)), poll(1, {A: [(0, 1)]}))
    assert report(*history).anomalies == {"unseen": 1}
    assert report(*history, final_polls=False).allowed == {"unseen": 1}


def test_acknowledged_value_without_offset_is_unseen() -> None:
    assert found(send(0, (A, 1, None)), poll(1, {})) == {"unseen": 1}


SENT = send(0, *((A, value, value) for value in range(6)))
READ = poll(9, {A: [(value, value) for value in range(6)]})
"""Another process sees everything, so that nothing is lost or unseen."""


def at(*offsets: int) -> dict[str, list[tuple[int, int]]]:
    return {A: [(offset, offset) for offset in offsets]}


def test_operation_that_passes_over_a_record_skips() -> None:
    assert found(SENT, READ, poll(1, at(0, 2))) == {"internal-poll-skip": 1}


@pytest.mark.parametrize("offsets", [(0, 0), (1, 0)])
def test_operation_that_repeats_or_goes_back_is_nonmonotonic(offsets: tuple[int, int]) -> None:
    assert found(SENT, READ, poll(1, at(*offsets))) == {"internal-nonmonotonic-poll": 1}


def test_swapped_records_of_one_operation_are_nonmonotonic_and_not_skipped() -> None:
    assert found(SENT, READ, poll(1, at(0, 2, 1, 3))) == {"internal-nonmonotonic-poll": 1}


def test_rebalanced_key_is_not_compared_within_an_operation() -> None:
    assert found(SENT, READ, poll(1, at(0, 2, 1), rebalanced=[A])) == {}
    assert found(SENT, READ, poll(1, at(0, 2), rebalanced=[B])) == {"internal-poll-skip": 1}


def test_process_that_passes_over_a_record_skips() -> None:
    history = (SENT, READ, poll(1, at(0, 1)), poll(1, at(3, 4)))
    assert report(*history).anomalies == {"poll-skip": 1}
    assert report(*history, consumers="subscribe").valid


def test_process_that_polls_a_record_again_is_nonmonotonic() -> None:
    history = (SENT, READ, poll(1, at(0, 1)), poll(1, at(1, 2)))
    assert report(*history).anomalies == {"nonmonotonic-poll": 1}
    assert report(*history, consumers="subscribe").valid


def test_failed_poll_does_not_move_the_position_of_a_process() -> None:
    failed = poll(1, at(1, 2), result="fail")
    assert found(SENT, READ, poll(1, at(0)), failed, poll(1, at(1))) == {}
    assert found(SENT, READ, poll(1, at(0)), failed, poll(1, at(3))) == {"poll-skip": 1}


def test_processes_are_not_compared_with_each_other() -> None:
    assert found(SENT, READ, poll(1, at(3)), poll(2, at(0))) == {}


def test_assignment_forgets_the_keys_that_it_does_not_keep() -> None:
    first, again = poll(1, at(3)), poll(1, at(0))
    assert found(SENT, READ, first, assign(1, B), again) == {}
    assert found(SENT, READ, first, assign(1, A, from_beginning=True), again) == {}
    assert found(SENT, READ, first, assign(1, A, B), again) == {"nonmonotonic-poll": 1}
    assert found(SENT, READ, first, assign(1, B, operation="subscribe"), again) == {}


def test_reopened_process_has_no_positions() -> None:
    reopen = [{"process": 1, "type": kind, "operation": "reopen"} for kind in ("invoke", "ok")]
    assert found(SENT, READ, poll(1, at(3)), reopen, poll(1, at(0))) == {}


def test_hole_in_offsets_is_no_skip() -> None:
    assert found(txn(0, [(A, 1, 0)]), txn(0, [(A, 2, 2)]), poll(1, {A: [(0, 1), (2, 2)]})) == {}


def test_lost_write_is_not_reported_as_skipped() -> None:
    assert found(SENT, *(poll(process, at(0, 1, 3, 4, 5)) for process in range(1, 4))) == {
        "lost-write": 1
    }


def test_consumer_without_an_aborted_record_of_others_does_not_skip() -> None:
    assert found(
        txn(0, [(A, 1, 0)]),
        txn(0, [(A, 2, 2)], result="fail"),
        txn(0, [(A, 3, 4)]),
        poll(1, {A: [(0, 1), (4, 3)]}),
        poll(2, {A: [(0, 1), (2, 2), (4, 3)]}),
    ) == {"aborted-read": 1}


def test_sends_of_one_operation_in_another_order_are_nonmonotonic() -> None:
    assert found(send(0, (A, 1, 1), (A, 2, 0)), poll(1, {A: [(0, 2), (1, 1)]})) == {
        "internal-nonmonotonic-send": 1
    }


def test_record_of_others_between_two_sends_is_a_send_skip() -> None:
    history = (
        send(0, (A, 1, 0), (A, 3, 2)),
        send(1, (A, 2, 1)),
        poll(2, {A: [(0, 1), (1, 2), (2, 3)]}),
    )
    assert report(*history).allowed == {"internal-send-skip": 1, "G0": 1}
    assert report(*history).valid


def test_sends_of_successive_operations_in_another_order_are_nonmonotonic() -> None:
    polls = poll(2, {A: [(0, 2), (1, 1)]})
    assert report(send(0, (A, 1, 1)), send(0, (A, 2, 0)), polls).anomalies == {
        "nonmonotonic-send": 1
    }
    assert report(send(0, (A, 1, 1)), send(1, (A, 2, 0)), polls).valid


def test_failed_send_is_not_compared() -> None:
    assert (
        found(send(0, (A, 1, None), result="fail"), send(0, (A, 2, 0)), poll(1, {A: [(0, 2)]}))
        == {}
    )


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
