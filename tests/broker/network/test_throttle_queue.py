"""The end of throttles; the first case is Kafka's own (``ThrottledChannelExpirationTest``)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.network.quota_stage import ThrottleQueue


def test_throttles_end_in_order_of_their_end_times() -> None:
    throttled: ThrottleQueue[str] = ThrottleQueue()
    for name, delay_ms in (("a", 10), ("b", 30), ("c", 30), ("d", 20)):
        throttled.hold(name, "Produce", delay_ms)
    assert throttled.size("Produce") == 4
    assert throttled.due(9) == []
    assert throttled.due(10) == ["a"]
    assert throttled.next_ms() == 20
    assert throttled.due(20) == ["d"]
    assert throttled.due(30) == ["b", "c"]
    assert (throttled.size("Produce"), throttled.next_ms()) == (0, None)


def test_throttle_queue_size_is_counted_by_quota_type() -> None:
    throttled: ThrottleQueue[int] = ThrottleQueue()
    assert throttled.hold(1, "Produce", 50)
    assert not throttled.hold(2, "Request", 60)
    assert throttled.hold(3, "Request", 40)
    assert [throttled.size(kind) for kind in ("Produce", "Request", "Fetch")] == [1, 2, 0]
    assert throttled.due(100) == [3, 1, 2]


@given(st.lists(st.integers(0, 100)), st.lists(st.integers(0, 30)))
def test_every_client_is_unthrottled_once_and_in_time(ends: list[int], waits: list[int]) -> None:
    throttled: ThrottleQueue[tuple[int, int]] = ThrottleQueue()
    for number, end_ms in enumerate(ends):
        throttled.hold((end_ms, number), "Fetch", end_ms)
    now_ms, gone = 0, list[int]()
    for wait_ms in [*waits, 100]:
        now_ms += wait_ms
        gone += [end_ms for end_ms, _ in throttled.due(now_ms)]
        assert sorted(gone) == gone == sorted(end for end in ends if end <= now_ms)


def test_disconnected_client_is_removed_from_throttle_queue() -> None:
    throttled: ThrottleQueue[int] = ThrottleQueue()
    throttled.hold(-1, "Produce", 5)
    for number in range(1000):
        throttled.hold(number, "Produce", 10**9)
        throttled.forget(number)
        throttled.forget(number)
    assert len(throttled._ends) == 1
    assert throttled.size("Produce") == 1
    assert throttled.due(10**10) == [-1]
    assert throttled.next_ms() is None
    throttled.hold(-1, "Produce", 7)
    assert throttled.due(7) == [-1]
