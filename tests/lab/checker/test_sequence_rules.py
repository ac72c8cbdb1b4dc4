from __future__ import annotations

import pytest

from tests.lab.checker.written import assign, found, poll, report, send, txn

A = "orders-0"
B = "orders-1"
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
