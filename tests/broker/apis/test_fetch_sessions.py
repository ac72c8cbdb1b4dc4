"""Rules of incremental fetch sessions, and the parts that workers get."""

from __future__ import annotations

from itertools import pairwise

import pytest

from minibroker.broker.apis.fetch_sessions import (
    ALL_PARTITIONS,
    EPOCH_MAX,
    EVICTION_S,
    CachedPartition,
    FetchSession,
    FetchSessionCache,
    Sent,
    SessionParts,
    next_epoch,
    session_ids,
    slots_of,
)
from minibroker.broker.apis.partition_fetch import FetchLimits, FetchQuery, FetchReply, FetchResult
from minibroker.broker.log.checkpoint import EpochEnd
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

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
    assert (part.session_id, part.follows, part.max_bytes, part.deadline) == (
        7,
        ALL_PARTITIONS,
        1000,
        9.0,
    )
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
    assert (part.follows, part.seen, part.enough, part.moved) == (ALL_PARTITIONS, 0, 4, ())
    assert part.sequence > before.sequence
    assert part.queries == ((SECOND, 2), (FIRST, 3))


def test_all_partitions_are_sent_again_for_another_isolation_level() -> None:
    parts = SessionParts(7)
    parts.watch(0, FIRST, 1)
    parts.next_parts(LIMITS)
    parts.read_committed(True)
    part = parts.next_parts(LIMITS)[0]
    assert (part.follows, names(part), part.committed) == (ALL_PARTITIONS, [("t", 0)], True)
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
    assert (part.follows, part.forgotten, names(part)) == (ALL_PARTITIONS, (), [("t", 1)])


def test_waiting_part_changes_nothing_and_waits_for_more() -> None:
    parts = SessionParts(7)
    parts.watch(0, FIRST, 1)
    parts.watch(1, SECOND, 2)
    sent = parts.next_parts(LIMITS)
    replies = {0: FetchReply({}, size=10), 1: FetchReply({})}
    waiting = dict(parts.waiting_parts(replies, LIMITS))
    assert [waiting[owner].enough for owner in (0, 1)] == [11, 1]
    for owner, part in waiting.items():
        assert part.follows == part.sequence == sent[owner].sequence
        assert (part.seen, part.queries, part.moved, part.forgotten) == (0, (), (), ())


LIMITS_FETCH_SESSIONS = FetchLimits(1000, 1, 0.0)


def make_cache(slots: int) -> FetchSessionCache:
    ids = iter(range(1, 10_000))
    return FetchSessionCache(slots, range(1, 10_000), lambda _low, _high: next(ids))


def create(
    cache: FetchSessionCache, now: float, partitions: int = 1, *, is_privileged: bool = False
) -> FetchSession | None:
    session = cache.create(partitions, now, is_privileged=is_privileged, by_id=False)
    if session is not None:
        for index in range(partitions):
            session.add(FetchTopic(topic="t"), FetchPartition(partition=index))
        cache.touch(session, now)
    return session


def opened(cache: FetchSessionCache, now: float, partitions: int = 1) -> FetchSession:
    session = create(cache, now, partitions)
    assert session is not None
    return session


@pytest.mark.parametrize(
    ("epoch", "expected"), [(-1, -1), (0, 1), (1, 2), (EPOCH_MAX - 1, EPOCH_MAX), (EPOCH_MAX, 1)]
)
def test_epoch_follows_and_wraps_to_one(epoch: int, expected: int) -> None:
    assert next_epoch(epoch) == expected


@pytest.mark.parametrize("processors", [1, 2, 3, 64])
def test_session_ids_of_processors_are_positive_and_disjoint(processors: int) -> None:
    ranges = [session_ids(index, processors) for index in range(processors)]
    assert ranges[0].start == 1
    assert ranges[-1].stop <= EPOCH_MAX
    assert all(before.stop == after.start for before, after in pairwise(ranges))


@pytest.mark.parametrize("slots", [0, 1, 7, 1000])
@pytest.mark.parametrize("processors", [1, 2, 3, 64])
def test_slots_are_shared_completely(slots: int, processors: int) -> None:
    shares = [slots_of(index, processors, slots) for index in range(processors)]
    assert sum(shares) == slots
    assert max(shares) - min(shares) <= 1


def test_session_is_found_by_id_and_epoch() -> None:
    cache = make_cache(1)
    session = opened(cache, 0)
    assert cache.get(session.id, 1, by_id=False) is session
    assert cache.get(session.id + 1, 1, by_id=False) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.get(session.id, 2, by_id=False) == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert cache.get(session.id, 1, by_id=True) == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_taken_id_is_not_given_again() -> None:
    ids = iter([5, 5, 6])
    cache = FetchSessionCache(2, range(1, 10), lambda _low, _high: next(ids))
    assert [opened(cache, 0).id, opened(cache, 0).id] == [5, 6]


def test_cache_without_slots_creates_no_session() -> None:
    assert create(make_cache(0), 0) is None


def test_full_cache_keeps_recent_sessions() -> None:
    cache = make_cache(2)
    opened(cache, 0)
    opened(cache, 0)
    assert create(cache, EVICTION_S, 100) is None
    assert (len(cache), cache.evictions, cache.partition_count) == (2, 0, 2)


def test_unused_session_is_evicted_first() -> None:
    cache = make_cache(2)
    first, second = opened(cache, 0, 9), opened(cache, 1)
    cache.touch(first, 2)
    opened(cache, EVICTION_S + 1.5)
    assert cache.get(second.id, 1, by_id=False) == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert cache.get(first.id, 1, by_id=False) is first
    assert (len(cache), cache.evictions, cache.partition_count) == (2, 1, 10)


@pytest.mark.parametrize(("size", "is_evicted"), [(4, False), (5, False), (6, True)])
def test_old_session_gives_way_to_a_larger_one(size: int, is_evicted: bool) -> None:
    cache = make_cache(2)
    small, large = opened(cache, 0, 5), opened(cache, 0, 7)
    now = EVICTION_S + 1
    for session in (small, large):
        cache.touch(session, 1)
        cache.touch(session, now)
    assert (create(cache, now, size) is not None) == is_evicted
    assert (cache.get(small.id, 1, by_id=False) is small) != is_evicted
    assert cache.get(large.id, 1, by_id=False) is large


def test_session_is_old_only_by_its_last_use() -> None:
    cache = make_cache(1)
    session = opened(cache, 0)
    cache.touch(session, EVICTION_S)
    assert create(cache, EVICTION_S + 50, 9) is None


def test_follower_evicts_consumers_and_not_the_other_way_round() -> None:
    cache = make_cache(1)
    opened(cache, 0, 9)
    assert create(cache, 1, 1, is_privileged=True) is not None
    assert create(cache, 2, 99) is None
    assert create(cache, 2, 99, is_privileged=True) is None


def test_removed_session_frees_its_slot() -> None:
    cache = make_cache(1)
    session = opened(cache, 0, 3)
    cache.remove(session.id)
    cache.remove(session.id)
    assert (len(cache), cache.partition_count, cache.evictions) == (0, 0, 0)
    opened(cache, 0)


@pytest.mark.parametrize(
    ("result", "records", "expected"),
    [
        (FetchResult(0, None, 5, 5, 2), b"", False),
        (FetchResult(0, None, 5, 4, 2), b"", False),  # As Kafka: not for the last stable offset.
        (FetchResult(0, None, 5, 5, 2), b"x", True),
        (FetchResult(0, None, 6, 6, 2), b"", True),
        (FetchResult(0, None, 5, 5, 3), b"", True),
        (FetchResult(0, None, 5, 5, 2, EpochEnd(1, 2)), b"", True),
        (FetchResult(ErrorCode.OFFSET_OUT_OF_RANGE, None, 5, 5, 2), b"", True),
    ],
)
def test_response_includes_what_is_new(result: FetchResult, records: bytes, expected: bool) -> None:
    partition = CachedPartition(FetchTopic(topic="t"), FetchPartition(partition=0), 1)
    partition.high_watermark, partition.log_start_offset = 5, 2
    assert partition.must_respond(result, records) == expected


def placed(session: FetchSession) -> dict[int, CachedPartition]:
    """Place all partitions at worker 0; return them by index."""
    partitions = {key[1]: (key, cached) for key, cached in session.partitions()}
    for key, cached in partitions.values():
        session.place(key, cached, 0)
    return {index: cached for index, (_, cached) in partitions.items()}


def test_changed_partition_keeps_its_position_and_offsets() -> None:
    session = opened(make_cache(1), 0, 2)
    first = placed(session)[0]
    session.note_sent([Sent(first, 8, 3, False)], {})
    session.settle()
    session.add(FetchTopic(topic="t"), FetchPartition(partition=0, fetch_offset=4))
    assert first.query().offset == 4
    assert (first.position, first.high_watermark, first.log_start_offset) == (1, 8, 3)


def test_sent_records_move_the_partition_to_the_end_at_next_use() -> None:
    session = opened(make_cache(1), 0, 2)
    first = placed(session)[0]
    session.parts.next_parts(LIMITS_FETCH_SESSIONS)
    session.note_sent([Sent(first, 8, 3, True)], {0: 7})
    assert first.position == 1
    session.settle()
    assert first.position == 3
    (part,) = session.parts.next_parts(LIMITS_FETCH_SESSIONS).values()
    assert (part.moved, part.seen) == (((("t", 0), 3),), 7)


def test_withdrawn_response_changes_nothing() -> None:
    session = opened(make_cache(1), 0)
    first = placed(session)[0]
    session.note_sent([Sent(first, 8, 3, True)], {0: 7})
    session.withdraw_sent()
    session.settle()
    assert (first.position, first.high_watermark) == (1, -1)


def test_forgotten_partition_leaves_its_worker() -> None:
    session = opened(make_cache(1), 0, 2)
    placed(session)
    session.parts.next_parts(LIMITS_FETCH_SESSIONS)
    session.forget(ForgottenTopic(topic="t"), 0)
    session.forget(ForgottenTopic(topic="t"), 5)
    assert len(session) == 1
    assert session.watched(("t", 0)) is None
    (part,) = session.parts.next_parts(LIMITS_FETCH_SESSIONS).values()
    assert part.forgotten == (("t", 0),)


def test_rejected_partition_leaves_its_worker_and_returns() -> None:
    session = opened(make_cache(1), 0, 2)
    first = placed(session)[0]
    session.place(("t", 0), first, None)
    assert list(session.rejected) == [("t", 0)]
    assert session.watched(("t", 0)) is None
    session.place(("t", 0), first, 0)
    assert not session.rejected
    assert session.watched(("t", 0)) is first


def test_new_id_of_a_topic_takes_over_its_name() -> None:
    cache = make_cache(1)
    session = cache.create(2, 0, is_privileged=False, by_id=True)
    assert session is not None
    partitions = []
    for number in (1, 2):
        topic = FetchTopic(topic_id=bytes([number]) * 16)
        partitions.append(session.add(topic, FetchPartition(partition=0)))
        partitions[-1].topic = "t"
    keys = [key for key, _ in session.partitions()]
    for order in ((0, 1), (1, 0)):
        for at in order:
            session.place(keys[at], partitions[at], 0)
        session.place(keys[order[0]], partitions[order[0]], None)
        assert session.watched(("t", 0)) is partitions[order[1]]


def test_cleared_cache_has_no_session() -> None:
    cache = make_cache(2)
    session = opened(cache, 0.0, 3)
    cache.clear()
    assert (len(cache), cache.partition_count) == (0, 0)
    found = cache.get(session.id, session.epoch, by_id=False)
    assert found is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
