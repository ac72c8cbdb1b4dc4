"""Changes of a session for its workers, and what is sent again after one was lost."""

from __future__ import annotations

from minibroker.broker.apis.fetch_session_parts import ALL, SessionParts, SessionReply
from minibroker.broker.apis.partition_fetch import FetchLimits, FetchQuery

LIMITS = FetchLimits(1000, 5, 9.0)
FIRST = FetchQuery("t", 0, 0, 100, -1, -1)
SECOND = FetchQuery("t", 1, 0, 100, -1, -1)


def names(part: object) -> list[tuple[str, int]]:
    return [(query.topic, query.partition) for query, _ in part.queries]  # type: ignore[attr-defined]


def test_first_part_has_all_partitions_in_order_of_the_session() -> None:
    parts = SessionParts(7)
    parts.watch(0, SECOND, 2)
    parts.watch(0, FIRST, 1)
    (part,) = parts.next_parts(LIMITS).values()
    assert (part.session_id, part.follows, part.max_bytes, part.deadline) == (7, ALL, 1000, 9.0)
    assert part.queries == ((FIRST, 1), (SECOND, 2))


def test_single_worker_waits_and_several_do_not() -> None:
    parts = SessionParts(7)
    parts.watch(0, FIRST, 1)
    assert parts.next_parts(LIMITS)[0].enough == 5
    parts.watch(1, SECOND, 2)
    assert {part.enough for part in parts.next_parts(LIMITS).values()} == {0}


def test_next_part_follows_and_has_changes_only() -> None:
    parts = SessionParts(7)
    parts.watch(0, FIRST, 1)
    parts.watch(0, SECOND, 2)
    first = parts.next_parts(LIMITS)[0]
    parts.move(0, ("t", 0), 3)
    parts.seen(0, 12)
    second = parts.next_parts(LIMITS)[0]
    assert (second.follows, second.sequence) == (first.sequence, first.sequence + 1)
    assert (second.queries, second.moved, second.seen) == ((), ((("t", 0), 3),), 12)
    third = parts.next_parts(LIMITS)[0]
    assert (third.queries, third.moved, third.forgotten) == ((), (), ())


def test_changed_partition_is_not_moved_apart() -> None:
    parts = SessionParts(7)
    parts.watch(0, FIRST, 1)
    parts.next_parts(LIMITS)
    parts.move(0, ("t", 0), 3)
    parts.watch(0, FIRST._replace(offset=4), 3)
    part = parts.next_parts(LIMITS)[0]
    assert (part.moved, part.queries) == ((), ((FIRST._replace(offset=4), 3),))


def test_worker_that_lost_the_session_gets_all_with_a_new_sequence() -> None:
    parts = SessionParts(7)
    parts.watch(0, FIRST, 1)
    parts.watch(0, SECOND, 2)
    before = parts.next_parts(LIMITS)[0]
    parts.move(0, ("t", 0), 3)
    parts.seen(0, 12)
    part = parts.complete_parts([0], LIMITS, 4)[0]
    assert (part.follows, part.seen, part.enough, part.moved) == (ALL, 0, 4, ())
    assert part.sequence > before.sequence
    assert part.queries == ((SECOND, 2), (FIRST, 3))


def test_all_partitions_are_sent_again_for_another_isolation_level() -> None:
    parts = SessionParts(7)
    parts.watch(0, FIRST, 1)
    parts.next_parts(LIMITS)
    parts.read_committed(True)
    part = parts.next_parts(LIMITS)[0]
    assert (part.follows, names(part), part.committed) == (ALL, [("t", 0)], True)
    parts.read_committed(True)
    assert parts.next_parts(LIMITS)[0].queries == ()


def test_worker_without_partitions_is_not_asked_and_forgotten() -> None:
    parts = SessionParts(7)
    parts.watch(0, FIRST, 1)
    parts.next_parts(LIMITS)
    parts.forget(0, ("t", 0))
    assert parts.next_parts(LIMITS) == {}
    parts.watch(0, SECOND, 2)
    part = parts.next_parts(LIMITS)[0]
    assert (part.follows, part.forgotten, names(part)) == (ALL, (), [("t", 1)])


def test_waiting_part_changes_nothing_and_waits_for_more() -> None:
    parts = SessionParts(7)
    parts.watch(0, FIRST, 1)
    parts.watch(1, SECOND, 2)
    sent = parts.next_parts(LIMITS)
    replies = {0: SessionReply({}, size=10), 1: SessionReply({})}
    waiting = dict(parts.waiting_parts(replies, LIMITS))
    assert [waiting[owner].enough for owner in (0, 1)] == [11, 1]
    for owner, part in waiting.items():
        assert part.follows == part.sequence == sent[owner].sequence
        assert (part.seen, part.queries, part.moved, part.forgotten) == (0, (), (), ())
