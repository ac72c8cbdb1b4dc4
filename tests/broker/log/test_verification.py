from __future__ import annotations

from minibroker.broker.log.verification import NO_GUARD, Verifications


def test_guard_verifies_its_producer_until_verification_ends() -> None:
    verifications = Verifications()
    guard = verifications.begin(7, 0, 0, adds=True, now_ms=0)
    assert verifications.is_verified(7, guard)
    assert not verifications.is_verified(8, guard)
    assert not verifications.is_verified(7, NO_GUARD)
    verifications.end(7)
    assert not verifications.is_verified(7, guard)


def test_guard_of_earlier_verification_is_not_accepted() -> None:
    verifications = Verifications()
    stale = verifications.begin(7, 0, 0, adds=False, now_ms=0)
    verifications.end(7)
    fresh = verifications.begin(7, 0, 0, adds=False, now_ms=0)
    assert stale != fresh
    assert not verifications.is_verified(7, stale)


def test_lowest_sequence_falls_within_epoch_and_restarts_with_next_epoch() -> None:
    verifications = Verifications()
    guard = verifications.begin(7, 5, 0, adds=False, now_ms=0)
    assert verifications.begin(7, 3, 0, adds=False, now_ms=0) == guard
    assert verifications.begin(7, 8, 0, adds=False, now_ms=0) == guard
    lowest = verifications.get(7)
    assert lowest is not None
    assert (lowest.lowest_sequence, lowest.epoch) == (3, 0)
    verifications.begin(7, 6, 1, adds=False, now_ms=0)
    lowest = verifications.get(7)
    assert lowest is not None
    assert (lowest.lowest_sequence, lowest.epoch) == (6, 1)


def test_verification_without_result_expires() -> None:
    verifications = Verifications()
    verifications.begin(7, 0, 0, adds=False, now_ms=0)
    verifications.begin(8, 0, 0, adds=False, now_ms=1)
    verifications.expire(1000, 1000)
    assert verifications.get(7) is None
    assert len(verifications) == 1
