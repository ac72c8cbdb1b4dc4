"""A share partition gives each record to one member at a time, until it is finished."""

from __future__ import annotations

from random import Random

import pytest

from minibroker.broker.shares.share_partition import (
    Acknowledgement,
    AcknowledgeRejected,
    AcknowledgeType,
    Acquired,
    AcquireLimits,
    DeadLetters,
    FetchedBatch,
    SharePartition,
    ShareSettings,
    Transition,
)
from minibroker.broker.shares.state import RecordState, ShareState, StateBatch, StateUpdate
from minibroker_protocol.errors import ErrorCode

GAP, ACCEPT, RELEASE, REJECT, RENEW = AcknowledgeType
SETTINGS = ShareSettings()
QUEUED = ShareSettings(has_queue=True)
AVAILABLE, ARCHIVED = RecordState.AVAILABLE, RecordState.ARCHIVED
ARCHIVING = RecordState.ARCHIVING
ACKNOWLEDGED = RecordState.ACKNOWLEDGED


def partition(start: int = 0, *batches: StateBatch) -> SharePartition:
    return SharePartition(ShareState(start_offset=start, batches=batches), start)


def log(first: int, last: int, size: int = 5) -> list[FetchedBatch]:
    """Batches of the log from the one that contains an offset."""
    base = first - first % size
    return [FetchedBatch(at, min(at + size - 1, last)) for at in range(base, last + 1, size)]


def acquire(
    share: SharePartition,
    member: str = "m",
    *,
    end: int = 100,
    records: int = 500,
    batch_size: int = 500,
    strict: bool = False,
    settings: ShareSettings = SETTINGS,
    now: float = 0.0,
) -> list[Acquired]:
    batches = log(share.fetch_offset, end - 1)
    limits = AcquireLimits(records, batch_size, strict)
    return share.acquire(member, batches, limits, settings, now) if batches else []


def settle(share: SharePartition, transition: Transition) -> Transition:
    share.commit(transition)
    return transition


def acknowledge(
    share: SharePartition,
    first: int,
    last: int,
    *types: int,
    member: str = "m",
    settings: ShareSettings = SETTINGS,
    now: float = 0.0,
) -> Transition:
    each = Acknowledgement(first, last, types)
    return settle(share, share.acknowledge(member, [each], settings, now))


# Acquire ------------------------------------------------------------------------------------------


def test_records_that_kafka_was_archiving_are_not_delivered_again() -> None:
    share = partition(0, StateBatch(0, 1, AVAILABLE, 1), StateBatch(2, 3, RecordState.ARCHIVING, 5))
    assert (share.in_flight, share.complete_count) == (2, 2)
    assert acquire(share, end=6) == [Acquired(0, 1, 2), Acquired(4, 5, 1)]
    leading = partition(0, StateBatch(0, 1, RecordState.ARCHIVING, 5))
    assert leading.start_offset == 2


def test_records_that_were_being_archived_are_in_flight_if_there_is_a_queue() -> None:
    batches = StateBatch(0, 1, RecordState.ARCHIVING, 5), StateBatch(2, 2, RecordState.ARCHIVING, 1)
    share = SharePartition(ShareState(start_offset=0, batches=batches), 0, has_queue=True)
    assert share.archiving(QUEUED) == (
        DeadLetters(0, 1, 5, is_rejected=False),
        DeadLetters(2, 2, 1, is_rejected=True),
    )
    assert (share.start_offset, share.in_flight, share.archiving_count) == (0, 3, 3)
    assert acquire(share, end=4, settings=QUEUED) == [Acquired(3, 3, 1)]
    settle(share, share.archive(0, 2))
    assert (share.start_offset, share.archiving_count) == (3, 0)


def test_rejected_and_exhausted_records_are_archived_when_they_are_in_the_queue() -> None:
    share, last = partition(), QUEUED._replace(delivery_count_limit=2)
    acquire(share, end=4, settings=last)
    acknowledge(share, 0, 0, RELEASE, settings=last)
    assert acquire(share, end=4, settings=last) == [Acquired(0, 0, 2)]
    transition = acknowledge(share, 0, 3, RELEASE, REJECT, GAP, RELEASE, settings=last)
    assert transition.dead == (
        DeadLetters(0, 0, 2, is_rejected=False),
        DeadLetters(1, 1, 1, is_rejected=True),
    )
    assert [each.state for each in transition.batches] == [
        ARCHIVING,
        ARCHIVING,
        ARCHIVED,
        AVAILABLE,
    ]
    assert (share.start_offset, share.archiving_count) == (0, 2)
    with pytest.raises(AcknowledgeRejected):
        acknowledge(share, 0, 0, ACCEPT, settings=last)
    assert settle(share, share.archive(0, 0)).batches == (StateBatch(0, 0, ARCHIVED, 2),)
    assert settle(share, share.archive(0, 3)).batches == (StateBatch(1, 1, ARCHIVED, 1),)
    assert share.archive(0, 3).is_empty
    assert share.start_offset == 3


def test_expired_and_returned_records_are_archived_when_they_are_in_the_queue() -> None:
    last = QUEUED._replace(delivery_count_limit=2)
    for how in ("expire", "release"):
        share = partition(0, StateBatch(0, 0, AVAILABLE, 1))
        acquire(share, end=2, settings=last)
        found = share.release("m", last) if how == "release" else share.expire(31.0, last)
        assert found.dead == (DeadLetters(0, 0, 2, is_rejected=False),)
        share.roll_back(found)
        assert share.archiving_count == 0


def test_nothing_is_archiving_without_a_queue() -> None:
    share = partition()
    acquire(share, end=2)
    transition = acknowledge(share, 0, 1, REJECT)
    assert (transition.dead, transition.batches) == ((), (StateBatch(0, 1, ARCHIVED, 1),))


def test_records_are_acquired_up_to_the_end_of_a_batch() -> None:
    share = partition()
    assert acquire(share, records=7) == [Acquired(0, 9, 1)]
    assert acquire(share, "n", records=1) == [Acquired(10, 14, 1)]
    assert (share.in_flight, share.acquired_count, share.end_offset) == (15, 15, 15)


def test_strict_limit_is_not_exceeded() -> None:
    share = partition()
    assert acquire(share, records=7, strict=True) == [Acquired(0, 6, 1)]
    # As in Kafka, the rest of a batch of the log that was acquired in part is apart.
    rest = acquire(share, "n", records=7, strict=True)
    assert rest == [Acquired(7, 9, 1), Acquired(10, 13, 1)]


def test_acquired_records_are_split_at_batches_of_the_log() -> None:
    share = partition()
    parts = [Acquired(0, 9, 1), Acquired(10, 19, 1), Acquired(20, 24, 1)]
    assert acquire(share, end=25, batch_size=8) == parts


def test_start_in_the_middle_of_a_batch() -> None:
    assert acquire(partition(7), end=12) == [Acquired(7, 11, 1)]


def test_nothing_is_acquired_beyond_the_window_limit() -> None:
    settings = ShareSettings(records_max=10)
    share = partition()
    assert acquire(share, settings=settings) == [Acquired(0, 9, 1)]
    assert not share.can_acquire(settings)
    assert acquire(share, "n", settings=settings) == []
    acknowledge(share, 3, 3, RELEASE)
    assert share.can_acquire(settings)
    assert acquire(share, "n", settings=settings) == [Acquired(3, 3, 2)]


def test_offsets_that_the_log_lacks_are_finished() -> None:
    share = partition()
    limits = AcquireLimits(500)
    found = share.acquire("m", [FetchedBatch(20, 24)], limits, SETTINGS, 0.0)
    assert found == [Acquired(20, 24, 1)]
    assert share.start_offset == 20


def test_records_of_aborted_transactions_are_archived() -> None:
    share = partition()
    acquired = acquire(share, end=20)
    kept = share.archive_acquired(acquired, [(5, 9)])
    assert kept == [Acquired(0, 4, 1), Acquired(10, 19, 1)]
    assert share.complete_count == 5
    acknowledge(share, 0, 4, ACCEPT)
    assert share.start_offset == 10


# Acknowledge --------------------------------------------------------------------------------------


def test_accepted_records_leave_the_window_from_its_start() -> None:
    share = partition()
    acquire(share, end=20)
    assert acknowledge(share, 5, 9, ACCEPT).batches == (StateBatch(5, 9, ACKNOWLEDGED, 1),)
    assert (share.start_offset, share.complete_count) == (0, 5)
    acknowledge(share, 0, 4, ACCEPT)
    assert (share.start_offset, share.complete_count) == (10, 0)


def test_each_offset_can_have_its_own_type() -> None:
    share = partition()
    acquire(share, end=5)
    changed = acknowledge(share, 0, 4, GAP, ACCEPT, RELEASE, RELEASE, REJECT)
    assert changed.batches == (
        StateBatch(0, 0, ARCHIVED, 1),
        StateBatch(1, 1, ACKNOWLEDGED, 1),
        StateBatch(2, 3, AVAILABLE, 1),
        StateBatch(4, 4, ARCHIVED, 1),
    )
    assert share.start_offset == 2
    assert acquire(share, "n", end=5) == [Acquired(2, 3, 2)]


def test_released_record_is_archived_at_the_delivery_limit() -> None:
    settings = ShareSettings(delivery_count_limit=2)
    share = partition()
    changed = Transition(())
    for count in (1, 2):
        assert acquire(share, end=1, settings=settings) == [Acquired(0, 0, count)]
        changed = acknowledge(share, 0, 0, RELEASE, settings=settings)
    assert changed.batches == (StateBatch(0, 0, ARCHIVED, 2),)
    assert share.start_offset == 1


def test_record_in_a_transition_cannot_be_had() -> None:
    share = partition()
    acquire(share, end=5)
    pending = share.acknowledge("m", [Acknowledgement(0, 4, (RELEASE,))], SETTINGS, 0.0)
    assert acquire(share, "n", end=5) == []
    with pytest.raises(AcknowledgeRejected, match="could not be completed"):
        acknowledge(share, 0, 4, ACCEPT)
    assert share.expire(1000.0, SETTINGS).is_empty
    share.commit(pending)
    assert acquire(share, "n", end=5) == [Acquired(0, 4, 2)]


def test_transition_that_is_not_stored_is_undone() -> None:
    share = partition()
    acquire(share, end=5)
    share.roll_back(share.acknowledge("m", [Acknowledgement(0, 4, (ACCEPT,))], SETTINGS, 0.0))
    assert (share.acquired_count, share.complete_count) == (5, 0)
    acknowledge(share, 0, 4, ACCEPT)
    assert share.start_offset == 5


@pytest.mark.parametrize(
    ("first", "last", "member", "error", "text"),
    [
        (0, 4, "n", ErrorCode.INVALID_RECORD_STATE, "not the owner of batch record"),
        (1, 1, "n", ErrorCode.INVALID_RECORD_STATE, "not the owner"),
        (5, 9, "m", ErrorCode.INVALID_RECORD_STATE, "is not in the acquired state"),
        (6, 6, "m", ErrorCode.INVALID_RECORD_STATE, "not"),
        (10, 12, "m", ErrorCode.INVALID_REQUEST, "first offset in request is past"),
        (0, 12, "m", ErrorCode.INVALID_REQUEST, "last offset in request is past"),
    ],
)
def test_invalid_acknowledgement_changes_nothing(
    first: int, last: int, member: str, error: ErrorCode, text: str
) -> None:
    share = partition()
    acquire(share, end=5)
    acquire(share, end=10)
    acknowledge(share, 5, 9, RELEASE)
    good = Acknowledgement(0, 0, (ACCEPT,)), Acknowledgement(first, last, (ACCEPT,))
    with pytest.raises(AcknowledgeRejected, match=text) as rejected:
        share.acknowledge(member, good if member == "m" else good[1:], SETTINGS, 0.0)
    assert rejected.value.error is error
    assert (share.acquired_count, share.complete_count) == (5, 0)


def test_record_that_is_acknowledged_twice_in_a_request_is_rejected() -> None:
    share = partition()
    acquire(share, end=5)
    twice = [Acknowledgement(0, 4, (ACCEPT,)), Acknowledgement(2, 2, (ACCEPT,))]
    with pytest.raises(AcknowledgeRejected):
        share.acknowledge("m", twice, SETTINGS, 0.0)
    acknowledge(share, 0, 4, ACCEPT)
    assert share.start_offset == 5


def test_record_that_is_acknowledged_and_renewed_in_a_request_is_rejected() -> None:
    share = partition()
    acquire(share, end=5)
    both = [Acknowledgement(0, 4, (ACCEPT,)), Acknowledgement(2, 2, (RENEW,))]
    with pytest.raises(AcknowledgeRejected):
        share.acknowledge("m", both, SETTINGS, 20.0)
    assert settle(share, share.expire(30.0, SETTINGS)).batches == (StateBatch(0, 4, AVAILABLE, 1),)


def test_lock_that_is_renewed_before_records_are_rejected_stays_renewed() -> None:
    share = partition()
    acquire(share, end=5)
    renewal = Acknowledgement(0, 1, (RENEW,))
    twice = [Acknowledgement(2, 4, (ACCEPT,)), Acknowledgement(3, 3, (ACCEPT,))]
    with pytest.raises(AcknowledgeRejected):
        share.acknowledge("m", [renewal, *twice], SETTINGS, 20.0)
    assert settle(share, share.expire(30.0, SETTINGS)).batches == (StateBatch(2, 4, AVAILABLE, 1),)


def test_acknowledgement_before_the_start_offset_is_ignored() -> None:
    share = partition()
    acquire(share, end=10)
    share.move_start(5)
    assert acknowledge(share, 0, 4, ACCEPT).is_empty
    assert acknowledge(share, 3, 9, ACCEPT).batches == (StateBatch(5, 9, ACKNOWLEDGED, 1),)


# Locks --------------------------------------------------------------------------------------------


def test_lock_expires_at_its_deadline_and_not_before() -> None:
    share = partition()
    acquire(share, end=5, now=10.0)
    assert share.expire(39.9, SETTINGS).is_empty
    assert share.expire(40.0, SETTINGS).batches == (StateBatch(0, 4, AVAILABLE, 1),)


def test_renewed_lock_starts_again() -> None:
    share = partition()
    acquire(share, end=5)
    assert acknowledge(share, 0, 1, RENEW, now=20.0).is_empty
    assert settle(share, share.expire(30.0, SETTINGS)).batches == (StateBatch(2, 4, AVAILABLE, 1),)
    assert share.next_deadline == 50.0
    assert settle(share, share.expire(50.0, SETTINGS)).batches == (StateBatch(0, 1, AVAILABLE, 1),)


def test_lock_is_not_renewed_if_the_group_may_not() -> None:
    share = partition()
    acquire(share, end=5)
    with pytest.raises(AcknowledgeRejected, match="not enabled"):
        acknowledge(share, 0, 4, RENEW, settings=ShareSettings(may_renew=False))


def test_member_that_leaves_releases_its_records_only() -> None:
    share = partition()
    acquire(share, "m", end=5)
    acquire(share, "n", end=10)
    assert settle(share, share.release("m", SETTINGS)).batches == (StateBatch(0, 4, AVAILABLE, 1),)
    assert (share.has_acquired("m"), share.has_acquired("n")) == (False, True)


# Throttled delivery -------------------------------------------------------------------------------


def test_records_that_failed_often_are_delivered_in_smaller_batches() -> None:
    """With a limit of 5, halves from the third delivery on, and at last one by one."""
    share = partition()
    sizes = []
    for _ in range(5):
        (acquired,) = acquire(share, end=64, batch_size=64)
        sizes.append(acquired.last - acquired.first + 1)
        acknowledge(share, acquired.first, acquired.last, RELEASE)
    assert sizes == [64, 64, 64, 32, 1]
    rest = acquire(share, "n", end=64)
    assert rest == [Acquired(1, 1, 5)]


def test_size_of_throttled_records_is_that_of_their_batch_of_the_log() -> None:
    """Kafka 4.4 gives the same offsets and counts in the same sequence."""
    share = partition()
    found = []
    for _ in range(7):
        batches = [FetchedBatch(0, 15)]
        limits = AcquireLimits(7, is_strict=True)
        (acquired,) = share.acquire("m", batches, limits, SETTINGS, 0.0)
        found.append(acquired)
        acknowledge(share, acquired.first, acquired.last, RELEASE)
    whole = [Acquired(0, 6, count) for count in (1, 2, 3, 4)]
    assert found == [*whole, Acquired(0, 0, 5), Acquired(1, 1, 5), Acquired(2, 2, 5)]


def test_last_delivery_is_not_together_with_others_of_the_batch() -> None:
    share = partition()
    acquire(share, end=5)
    share.set_delivery_count(4, "m", (2, 2), SETTINGS)
    share.set_delivery_count(3, "m", (3, 4), SETTINGS)
    settle(share, share.release("m", SETTINGS))
    assert acquire(share, end=5) == [Acquired(0, 1, 2)]
    assert acquire(share, end=5) == [Acquired(2, 2, 5)]
    assert acquire(share, end=5) == [Acquired(3, 4, 4)]


def test_throttled_records_are_not_delivered_with_others() -> None:
    share = partition(0, StateBatch(0, 4, AVAILABLE, 1), StateBatch(5, 9, AVAILABLE, 4))
    assert acquire(share, end=20) == [Acquired(0, 4, 2)]
    assert acquire(share, "n", end=20) == [Acquired(5, 5, 5)]


# State and retention ------------------------------------------------------------------------------


def test_restored_partition_delivers_what_was_acquired_again() -> None:
    """Acquired records are not stored: they are available, with the count of before."""
    stored = StateBatch(2, 3, ACKNOWLEDGED, 1), StateBatch(5, 6, AVAILABLE, 2)
    share = partition(0, *stored)
    assert (share.start_offset, share.end_offset, share.complete_count) == (0, 7, 2)
    found = [Acquired(0, 1, 1), Acquired(4, 4, 1), Acquired(5, 6, 3), Acquired(7, 9, 1)]
    assert acquire(share, end=10) == found


def test_finished_records_at_the_start_of_a_stored_window_are_skipped() -> None:
    share = partition(0, StateBatch(0, 3, ARCHIVED, 5))
    assert (share.start_offset, share.end_offset) == (4, 4)


def test_retention_overtakes_acquired_records() -> None:
    share = partition()
    acquire(share, end=10)
    share.move_start(7)
    assert (share.start_offset, share.in_flight) == (7, 3)
    share.move_start(50)
    assert (share.start_offset, share.end_offset, share.in_flight) == (50, 50, 0)
    share.move_start(1)
    assert share.start_offset == 50


# Any course ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_records_are_delivered_until_they_are_finished(seed: int) -> None:
    """Members that accept, release, reject, stay silent and die, with restarts in between."""
    random = Random(seed)
    settings = ShareSettings(
        lock_s=10.0,
        delivery_count_limit=random.randint(2, 6),
        records_max=random.choice((5, 40, 2000)),
    )
    end = random.randint(1, 200)
    course = _Course(random, settings, end)
    for _ in range(300):
        course.step()
    course.finish()


class _Course:
    """Members of a share group on a log that is complete, and what each record has met."""

    def __init__(self, random: Random, settings: ShareSettings, end: int) -> None:
        self._random = random
        self._settings = settings
        self._end = end
        self._size = random.choice((1, 3, 10))
        self._now = 0.0
        self._share = partition()
        self._state = ShareState(start_offset=0)
        self._held: dict[int, tuple[str, float]] = {}
        self._deliveries: dict[int, int] = {}
        self._finished: set[int] = set()

    def step(self) -> None:
        action = self._random.choice((self._acquire, self._acquire, self._answer, self._answer))
        roll = self._random.random()
        if roll < 0.05:
            action = self._leave
        elif roll < 0.1:
            action = self._wait
        elif roll < 0.12:
            action = self._restart
        action()
        self._check()

    def finish(self) -> None:
        """Everything that is left is delivered and accepted."""
        for _ in range(20_000):
            if len(self._finished) == self._end:
                break
            self._wait()
            for first, last, _ in self._acquired("z"):
                self._store(self._share.acknowledge("z", [_all(first, last)], self._settings, 0))
        assert self._finished == set(range(self._end))
        assert self._share.start_offset == self._end

    def _acquired(self, member: str) -> list[Acquired]:
        batches = log(self._share.fetch_offset, self._end - 1, self._size)
        limits = AcquireLimits(self._random.randint(1, 30), is_strict=self._random.random() < 0.5)
        found = self._share.acquire(member, batches, limits, self._settings, self._now)
        if limits.is_strict:
            assert sum(last - first + 1 for first, last, _ in found) <= limits.max_records
        for first, last, count in found:
            for offset in range(first, last + 1):
                assert offset not in self._held
                assert offset not in self._finished
                assert 1 <= count <= self._settings.delivery_count_limit
                self._held[offset] = member, self._now + self._settings.lock_s
        return found

    def _acquire(self) -> None:
        self._acquired(self._random.choice("abc"))

    def _answer(self) -> None:
        if not self._held:
            return
        first = self._random.choice(sorted(self._held))
        member, _ = self._held[first]
        last = first
        while last - first < 5 and self._held.get(last + 1, ("", 0))[0] == member:
            last += 1
        kinds = tuple(
            self._random.choice((ACCEPT, RELEASE, REJECT)) for _ in range(first, last + 1)
        )
        transition = self._share.acknowledge(
            member, [Acknowledgement(first, last, kinds)], self._settings, self._now
        )
        if self._random.random() < 0.2:
            self._share.roll_back(transition)
        else:
            self._store(transition)

    def _leave(self) -> None:
        self._store(self._share.release(self._random.choice("abc"), self._settings))

    def _wait(self) -> None:
        self._now += self._random.choice((1.0, 11.0))
        self._store(self._share.expire(self._now, self._settings))
        for offset, (_, deadline) in self._held.items():
            assert deadline > self._now, offset

    def _restart(self) -> None:
        self._held.clear()
        self._share = SharePartition(self._state, self._state.start_offset)

    def _store(self, transition: Transition) -> None:
        share = self._share
        update = StateUpdate(0, 0, share.start_offset, share.complete_count, transition.batches)
        self._state = update.apply(self._state)
        share.commit(transition)
        for batch in transition.batches:
            for offset in range(batch.first, batch.last + 1):
                del self._held[offset]
                if RecordState(batch.state).is_terminal:
                    self._finished.add(offset)

    def _check(self) -> None:
        share = self._share
        at = share.start_offset
        for first, last, state, _, _ in share.runs():
            assert first == at <= last
            at = last + 1
            for offset in range(first, last + 1):
                assert (offset in self._held) == (state is RecordState.ACQUIRED)
                assert (offset in self._finished) == state.is_terminal
        assert at == share.end_offset
        assert set(range(share.start_offset)) <= self._finished


def _all(first: int, last: int) -> Acknowledgement:
    return Acknowledgement(first, last, (ACCEPT,))


# Requests of tests --------------------------------------------------------------------------------

EVERYWHERE = (0, 2**63 - 1)


def test_locks_expire_on_request() -> None:
    share = partition()
    acquire(share, end=5)
    acquire(share, "n", end=10)
    changed = settle(share, share.expire_now("m", (2, 7), SETTINGS))
    assert changed.batches == (StateBatch(2, 4, AVAILABLE, 1),)
    assert acquire(share, "o", end=10) == [Acquired(2, 4, 2)]
    changed = settle(share, share.expire_now(None, EVERYWHERE, SETTINGS))
    assert [batch[:3] for batch in changed.batches] == [
        (0, 1, AVAILABLE),
        (2, 4, AVAILABLE),
        (5, 9, AVAILABLE),
    ]
    assert share.acquired_count == 0
    assert share.expire_now(None, EVERYWHERE, SETTINGS).is_empty


def test_lock_that_expires_on_request_after_the_last_delivery_archives() -> None:
    share = partition()
    acquire(share, end=5)
    share.set_delivery_count(5, "m", (1, 1), SETTINGS)
    changed = settle(share, share.expire_now(None, EVERYWHERE, SETTINGS))
    assert changed.batches == (
        StateBatch(0, 0, AVAILABLE, 1),
        StateBatch(1, 1, ARCHIVED, 5),
        StateBatch(2, 4, AVAILABLE, 1),
    )


def test_delivery_count_of_acquired_records_is_set_at_once() -> None:
    share = partition()
    acquire(share, end=5)
    assert share.set_delivery_count(4, "n", EVERYWHERE, SETTINGS) == (0, Transition(()))
    assert share.set_delivery_count(4, "m", (3, 9), SETTINGS) == (2, Transition(()))
    assert acknowledge(share, 0, 4, RELEASE).batches == (
        StateBatch(0, 2, AVAILABLE, 1),
        StateBatch(3, 4, AVAILABLE, 4),
    )


def test_delivery_count_of_available_records_is_in_force_when_stored() -> None:
    share = partition()
    acquire(share, end=5)
    acknowledge(share, 0, 4, RELEASE)
    affected, transition = share.set_delivery_count(4, None, (1, 1), SETTINGS)
    assert (affected, transition.batches) == (1, (StateBatch(1, 1, AVAILABLE, 4),))
    share.roll_back(transition)
    assert acquire(share, end=5, records=2, strict=True) == [Acquired(0, 0, 2), Acquired(1, 1, 2)]
    acknowledge(share, 0, 1, RELEASE)
    _, transition = share.set_delivery_count(4, None, (0, 0), SETTINGS)
    share.commit(transition)
    assert acquire(share, end=5) == [Acquired(0, 0, 5)]


def test_available_records_are_archived_after_their_last_delivery() -> None:
    share = partition()
    acquire(share, end=5)
    acknowledge(share, 0, 4, RELEASE)
    affected, transition = share.set_delivery_count(5, None, (0, 1), SETTINGS)
    assert affected == 2
    share.commit(transition)
    assert share.start_offset == 2
    assert acquire(share, end=5) == [Acquired(2, 4, 2)]
