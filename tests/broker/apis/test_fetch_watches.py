"""Pending partitions of a watch, notification of changes, and the limit of watches."""

from __future__ import annotations

from minibroker.broker.apis.fetch_sessions import ALL_PARTITIONS, SessionPart, Watched
from minibroker.broker.apis.fetch_watches import FetchWatch, FetchWatches
from minibroker.broker.apis.partition_fetch import FetchQuery

FIRST = FetchQuery("t", 0, 0, 100, -1, -1)
SECOND = FetchQuery("t", 1, 0, 100, -1, -1)


def part(session_id: int, follows: int, sequence: int, *queries: FetchQuery) -> SessionPart:
    watched = tuple(Watched(query, at) for at, query in enumerate(queries))
    return SessionPart(
        session_id, follows, sequence, 0, (), (), watched, 100, 1, 0.0, committed=False
    )


def opened(watches: FetchWatches, session_id: int, *queries: FetchQuery) -> FetchWatch:
    watch = watches.advance(part(session_id, ALL_PARTITIONS, 1, *queries))
    assert watch is not None
    return watch


def read_idle(watches: FetchWatches, watch: FetchWatch) -> None:
    """Read all pending partitions and find nothing."""
    for query in watch.pending():
        name = query.topic, query.partition
        watches.subscribe(watch, name)
        watch.note_idle(name)


def make() -> tuple[FetchWatches, list[int]]:
    woken: list[int] = []
    return FetchWatches(2, woken.append), woken


def test_all_partitions_are_pending_at_first() -> None:
    watches, _ = make()
    assert opened(watches, 1, FIRST, SECOND).pending() == [FIRST, SECOND]


def test_idle_partition_is_pending_until_a_response_was_seen() -> None:
    watches, _ = make()
    watch = opened(watches, 1, FIRST, SECOND)
    read_idle(watches, watch)
    watches.advance(part(1, 1, 2))
    assert watch.pending() == [FIRST, SECOND]
    watches.advance(part(1, 2, 3)._replace(seen=watch.mark))
    assert watch.pending() == []


def test_partition_with_records_stays_pending() -> None:
    watches, _ = make()
    watch = opened(watches, 1, FIRST, SECOND)
    watch.note_idle(("t", 1))
    watches.advance(part(1, 1, 2)._replace(seen=watch.mark))
    assert watch.pending() == [FIRST]


def test_partition_that_changed_after_the_read_stays_pending() -> None:
    watches, woken = make()
    watch = opened(watches, 1, FIRST, SECOND)
    read_idle(watches, watch)
    seen = watch.mark
    watches.changed("t", 0)
    assert woken == [1]
    watches.advance(part(1, 1, 2)._replace(seen=seen))
    assert watch.pending() == [FIRST]


def test_idle_partition_becomes_pending_by_a_change_of_its_log() -> None:
    watches, woken = make()
    watch = opened(watches, 1, FIRST, SECOND)
    read_idle(watches, watch)
    watches.advance(part(1, 1, 2)._replace(seen=watch.mark))
    watches.changed("t", 1)
    watches.changed("t", 1)
    watches.changed("u", 1)
    assert watch.pending() == [SECOND]
    assert woken == [1]


def test_change_of_query_makes_a_partition_pending() -> None:
    watches, _ = make()
    watch = opened(watches, 1, FIRST, SECOND)
    read_idle(watches, watch)
    changed = FIRST._replace(offset=8)
    watches.advance(part(1, 1, 2, changed)._replace(seen=watch.mark))
    assert watch.pending() == [changed]


def test_pending_partitions_are_in_the_order_of_the_session() -> None:
    watches, _ = make()
    watch = opened(watches, 1, FIRST, SECOND)
    watches.advance(part(1, 1, 2)._replace(moved=((("t", 0), 9),)))
    assert watch.pending() == [SECOND, FIRST]


def test_forgotten_partition_is_not_watched() -> None:
    watches, woken = make()
    watch = opened(watches, 1, FIRST, SECOND)
    read_idle(watches, watch)
    watches.advance(part(1, 1, 2)._replace(forgotten=(("t", 0), ("t", 7)), seen=watch.mark))
    watches.changed("t", 0)
    assert (watch.pending(), woken) == ([], [])


def test_part_that_does_not_follow_is_rejected() -> None:
    watches, _ = make()
    assert watches.advance(part(1, 1, 2)) is None
    watch = opened(watches, 1, FIRST)
    assert watches.advance(part(1, 2, 3)) is None
    assert watches.advance(part(1, 1, 2)) is watch
    assert watches.is_current(watch, 2)
    assert not watches.is_current(watch, 1)


def test_complete_part_replaces_the_watch_and_wakes_its_fetch() -> None:
    watches, woken = make()
    old = opened(watches, 1, FIRST)
    read_idle(watches, old)
    new = opened(watches, 1, SECOND)
    assert (woken, len(watches), new.pending()) == ([1], 1, [SECOND])
    assert not watches.is_current(old, 1)
    watches.changed("t", 0)
    assert woken == [1]


def test_least_recently_used_watch_is_dropped() -> None:
    watches, woken = make()
    first = opened(watches, 1, FIRST)
    opened(watches, 2, FIRST)
    watches.advance(part(1, 1, 2))
    opened(watches, 3, FIRST)
    assert (len(watches), woken) == (2, [2])
    assert watches.is_current(first, 2)
    assert watches.advance(part(2, 1, 2)) is None
