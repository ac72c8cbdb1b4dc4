from __future__ import annotations

from minibroker.pipeline.whatif.decisions import count_throttle, end_minutes, kind_of
from minibroker.pipeline.whatif.events import (
    EXEMPT,
    FETCH,
    FETCHES,
    FIRST_MS,
    LAST_MS,
    LONGEST_MS,
    MUTATES,
    MUTATION,
    NONE,
    PRODUCE,
    PRODUCES,
    STRICT,
    THROTTLED,
    TOTAL_MS,
    new_minutes,
    new_tally,
)


def test_request_counts_for_one_quota_besides_time() -> None:
    assert kind_of(PRODUCES | EXEMPT) == PRODUCE  # without an answer, but its bytes are counted
    assert kind_of(FETCHES) == FETCH
    assert kind_of(FETCHES | EXEMPT) == NONE  # a follower's
    assert kind_of(MUTATES | STRICT) == MUTATION
    assert kind_of(0) == NONE


def test_throttles_are_added_up_over_all_and_by_minute() -> None:
    tally, minutes = new_tally(2), new_minutes(10)
    for wall_ms, throttled_ms in ((60_000, 5), (119_999, 7), (120_000, 100), (240_000, 1)):
        count_throttle(tally, minutes, 1, PRODUCE, wall_ms, throttled_ms)
    end_minutes(tally, minutes)
    found = tally[1, PRODUCE]
    assert [int(found[at]) for at in (THROTTLED, TOTAL_MS, LONGEST_MS)] == [4, 113, 100]
    assert [int(found[at]) for at in (FIRST_MS, LAST_MS)] == [60_000, 240_000]
    assert minutes[1 : minutes[0, 0] + 1].tolist() == [
        [1, PRODUCE, 1, 2, 12],
        [1, PRODUCE, 2, 1, 100],
        [1, PRODUCE, 4, 1, 1],
    ]


def test_minutes_for_which_there_is_no_room_are_left_out() -> None:
    tally, minutes = new_tally(1), new_minutes(1)
    for minute in range(5):
        count_throttle(tally, minutes, 0, FETCH, minute * 60_000, 1)
    end_minutes(tally, minutes)
    assert minutes[0, 0] == 1
    assert tally[0, FETCH, THROTTLED] == 5
