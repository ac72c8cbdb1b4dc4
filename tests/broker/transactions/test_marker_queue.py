"""Markers wait while their owner has a request in flight, and go to the owner of the moment."""

from __future__ import annotations

from minibroker.broker.transactions.marker_queue import MARKERS_PER_REQUEST_MAX, MarkerQueue

A, B, C = ("t", 0), ("t", 1), ("t", 2)


def by_index(_topic: str, index: int) -> int:
    return index % 2


def test_markers_are_taken_by_owner() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({A, B, C}))
    queue.add("y", frozenset({B}))
    assert queue.take(by_index) == {
        0: {"x": frozenset({A, C})},
        1: {"x": frozenset({B}), "y": frozenset({B})},
    }
    assert len(queue) == 0


def test_markers_of_busy_owner_wait_until_its_request_is_answered() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({A}))
    assert queue.take(by_index)
    queue.add("y", frozenset({A, B}))
    assert queue.take(by_index) == {1: {"y": frozenset({B})}}
    queue.sent(0)
    assert queue.take(by_index) == {0: {"y": frozenset({A})}}


def test_owner_is_the_one_at_the_time_of_sending() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({A}))
    queue.take(by_index)
    queue.add("x", frozenset({A}))
    assert queue.take(lambda *_: 5) == {5: {"x": frozenset({A})}}


def test_request_has_a_maximum_of_transactions() -> None:
    queue = MarkerQueue()
    for number in range(MARKERS_PER_REQUEST_MAX + 1):
        queue.add(f"x{number}", frozenset({A}))
    [batch] = queue.take(by_index).values()
    assert len(batch) == MARKERS_PER_REQUEST_MAX
    assert len(queue) == 1
    queue.clear()
    queue.sent(0)
    assert queue.take(by_index) == {}


def test_queue_is_busy_until_all_owners_have_answered() -> None:
    queue = MarkerQueue()
    queue.add("x", frozenset({("t", 0), ("t", 1)}))
    states = [queue.is_busy]
    queue.take(lambda _, index: index)
    for owner in (0, 1):
        states.append(queue.is_busy)
        queue.sent(owner)
    assert [*states, queue.is_busy] == [False, True, True, False]
