from __future__ import annotations

from minibroker.pipeline.whatif.events import (
    KINDS,
    NONE,
    more_pending,
    new_answers,
    new_minutes,
    new_pending,
    new_tally,
)


def test_grown_pending_keeps_its_lists() -> None:
    pending = more_pending(new_pending(), 2, 1)
    assert pending.head.tolist() == [0, NONE]
    pending.head[1] = 0  # the first item is taken
    pending.head[0] = 1
    more = more_pending(pending, 3, 2)
    assert more.head.tolist() == [2, 0, NONE]
    free, found = int(more.head[0]), []
    while free != NONE:
        found.append(free)
        free = int(more.items[free, 2])
    assert found == [2, 3, 4, 1]


def test_without_more_room_the_free_items_stay() -> None:
    pending = more_pending(new_pending(), 1, 0)
    assert more_pending(pending, 0, 5).head.tolist() == [0] + [NONE] * 5


def test_new_state_is_empty() -> None:
    assert new_tally(3).shape[:2] == (3, len(KINDS))
    assert new_minutes(5)[0, 0] == 0
    assert set(new_answers(2).throttles[:, 1].tolist()) == {NONE}
