"""The verdict on a share group names what is certainly wrong, and nothing else."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.history import Partition
from tests.simulation.share_history import DELIVERIES_MAX, Delivery, ShareHistory, ranges

T: Final[Partition] = ("t", 0)


@pytest.fixture
def history() -> ShareHistory:
    return ShareHistory()


def deliver(
    history: ShareHistory, member: str, requested: float, received: float, count: int = 1
) -> list[str]:
    """Deliver the record at offset 0, with locks of a second; return the kinds of anomalies."""
    values = {0: ("v:0", count)}
    history.deliver(Delivery(member, T, requested, received, 1.0, history.kills, values))
    return [each.kind for each in history.anomalies]


def test_record_of_another_member_within_the_lock_is_shared(history: ShareHistory) -> None:
    deliver(history, "a", 0.0, 0.0)
    assert deliver(history, "b", 0.9, 0.9, 2) == ["shared"]


def test_record_after_the_lock_is_not_shared(history: ShareHistory) -> None:
    deliver(history, "a", 0.0, 0.5)
    assert deliver(history, "b", 0.5, 1.0, 2) == []


def test_late_response_of_an_earlier_lock_is_not_shared(history: ShareHistory) -> None:
    deliver(history, "a", 5.0, 5.0, 2)
    assert deliver(history, "b", 4.0, 5.1) == []


def test_record_that_was_let_go_is_not_shared(history: ShareHistory) -> None:
    deliver(history, "a", 0.0, 0.0)
    history.let_go("a")
    assert deliver(history, "b", 0.0, 0.0, 2) == []
    history.acknowledge(T, [0], finishes=False)
    assert deliver(history, "c", 0.1, 0.1, 3) == []
    history.kill()
    assert deliver(history, "d", 0.2, 0.2, 4) == []


def test_response_to_a_request_before_a_kill_has_no_lock(history: ShareHistory) -> None:
    late = Delivery("a", T, 0.0, 0.2, 1.0, history.kills, {0: ("v:0", 1)})
    history.kill()
    history.deliver(late)
    assert deliver(history, "b", 0.3, 0.3) == []


def test_finished_record_that_comes_again_is_repeated(history: ShareHistory) -> None:
    deliver(history, "a", 0.0, 0.0)
    history.acknowledge(T, [0], finishes=True)
    history.finish(T, [0], 0.5)
    assert deliver(history, "a", 0.5, 0.6) == []  # It may have been acquired before.
    assert deliver(history, "a", 0.6, 0.6) == ["repeated"]


def test_delivery_count_beyond_the_limit_is_reported(history: ShareHistory) -> None:
    assert deliver(history, "a", 0.0, 0.0, DELIVERIES_MAX) == []
    assert deliver(history, "a", 0.0, 0.0, DELIVERIES_MAX + 1) == ["counted"]


def test_record_is_lost_unless_it_is_acknowledged_or_its_count_used_up(
    history: ShareHistory,
) -> None:
    log = {T: {0: "v:0"}}
    assert [each.kind for each in history.lost(log)] == ["lost"]
    deliver(history, "a", 0.0, 0.0, DELIVERIES_MAX - 1)
    assert [each.kind for each in history.lost(log)] == ["lost"]
    history.lost_fetches += 1
    assert list(history.lost(log)) == []
    history.lost_fetches = 0
    history.acknowledge(T, [0], finishes=True)
    assert list(history.lost(log)) == []
    assert [each.kind for each in history.lost({T: {0: "v:1"}})] == ["moved"]


def test_ranges_are_of_consecutive_offsets() -> None:
    assert ranges([3, 1, 2, 7]) == [(1, 3), (7, 7)]
