"""Waits are counted, and blocked time is one however many wait."""

from __future__ import annotations

import pytest

from minibroker.broker.admission.blocked_time import SHARE_OVER_S, BlockedTime

A, B = "A", "B"


@pytest.fixture
def waits() -> BlockedTime:
    return BlockedTime([A, B])


def test_waiting_and_delayed_connections_are_counted_by_listener(waits: BlockedTime) -> None:
    waits.begin(A, 1.0, blocks=True)
    waits.begin(A, 1.0, blocks=False)
    waits.start_delay(A)
    waits.start_delay(B)
    assert (waits.waiting(A), waits.held(A), waits.waiting(B), waits.held(B)) == (2, 1, 0, 1)
    assert waits.all_delayed() == 2
    waits.end(A, 2.0, blocks=True)
    waits.end_delay(A)
    assert (waits.waiting(A), waits.held(A), waits.all_delayed()) == (1, 0, 1)


def test_share_is_that_of_the_last_seconds(waits: BlockedTime) -> None:
    waits.begin(A, 100.0, blocks=True)
    waits.end(A, 102.5, blocks=True)
    assert waits.blocked_share(A, 110.0 - 2**-20) == pytest.approx(0.25, abs=1e-5)
    assert waits.blocked_share(A, 111.5) == pytest.approx(0.5 / 9.5)
    assert waits.blocked_share(A, 112.0) == 0
    assert waits.blocked_share(B, 112.0) == 0


def test_current_block_counts_up_to_now(waits: BlockedTime) -> None:
    waits.begin(A, 100.25, blocks=True)
    assert waits.blocked_share(A, 101.0) == pytest.approx(0.75 / 9)
    assert waits.blocked_share(A, 5000.0) == 1
    waits.end(A, 5000.0, blocks=True)
    assert waits.blocked_share(A, 5000.0) == 1
    assert waits.blocked_share(A, 5004.5) == pytest.approx(5 / 9.5)


def test_two_concurrent_waits_block_once(waits: BlockedTime) -> None:
    waits.begin(A, 100.0, blocks=True)
    waits.begin(A, 101.0, blocks=True)
    waits.end(A, 102.0, blocks=True)
    waits.end(A, 103.0, blocks=True)
    assert waits.blocked_share(A, 109.5) == pytest.approx(3 / 9.5)


def test_wait_that_blocks_no_other_connection_is_not_blocked_time(waits: BlockedTime) -> None:
    waits.begin(A, 100.0, blocks=False)
    assert waits.blocked_share(A, 105.0) == 0


def test_number_of_kept_entries_is_bounded(waits: BlockedTime) -> None:
    for step in range(1000):
        waits.begin(A, step / 2, blocks=True)
        waits.end(A, step / 2 + 0.25, blocks=True)
    assert len(waits._blocked[A]._by_second) <= SHARE_OVER_S
    assert waits.blocked_share(A, 499.75) == pytest.approx(0.5, abs=0.02)
