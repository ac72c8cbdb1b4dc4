from __future__ import annotations

from tests.lab.checker.written import found, poll, report, send, txn

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
