"""Recent throttles: bounded, in order, and consistent after a kill during a write."""

from __future__ import annotations

from minibroker.broker.quotas.rate import NO_CAUSE, Cause
from minibroker.broker.quotas.recent_throttles import (
    RECENT_THROTTLES_MAX,
    WORDS,
    RecentThrottle,
    RecentThrottles,
)


def words() -> memoryview[int]:
    return memoryview(bytearray(8 * WORDS)).cast("Q")


def test_recent_throttles_are_listed_newest_first() -> None:
    lately = RecentThrottles(words())
    assert lately.newest_first() == []
    for n in range(1, RECENT_THROTTLES_MAX + 3):
        lately.record(2**64 - n, 1, 10 * n, Cause(n / 3, n, 0.1), n)
    found = lately.newest_first()
    assert [each.number for each in found] == list(range(RECENT_THROTTLES_MAX + 2, 2, -1))
    assert found[-1] == RecentThrottle(3, 3, 2**64 - 3, 1, 30, Cause(1.0, 3, 0.1))


def test_torn_entry_is_skipped_and_overwritten() -> None:
    memory = words()
    lately = RecentThrottles(memory)
    for n in range(1, RECENT_THROTTLES_MAX + 2):
        lately.record(n, 0, 5, NO_CAUSE, n)
    before = lately.newest_first()
    # A process killed during a write leaves a torn entry in the next place.
    memory[1 + (RECENT_THROTTLES_MAX + 2) % RECENT_THROTTLES_MAX * 8] = 0
    assert lately.newest_first() == before[:-1]
    lately.record(7, 0, 5, NO_CAUSE, 9)
    found = lately.newest_first()
    assert found[0] == RecentThrottle(RECENT_THROTTLES_MAX + 2, 9, 7, 0, 5, NO_CAUSE)
    assert found[1:] == before[:-1]
