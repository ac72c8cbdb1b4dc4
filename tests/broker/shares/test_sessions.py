"""Share sessions have a member, a connection and an epoch."""

from __future__ import annotations

from minibroker.broker.shares.sessions import (
    FINAL_EPOCH,
    MemberKey,
    ShareSession,
    ShareSessionCache,
)
from minibroker_protocol.errors import ErrorCode

KEY = MemberKey("g", "m")
A, B, C = ((bytes(16), index) for index in range(3))


def opened_session(
    cache: ShareSessionCache, key: MemberKey = KEY, connection: str = "c"
) -> ShareSession:
    session = cache.begin(key, connection, [A, B])
    assert isinstance(session, ShareSession)
    return session


def test_only_the_epoch_of_the_session_continues_it() -> None:
    cache = ShareSessionCache(10, 0)
    assert cache.find(KEY, 1) is ErrorCode.SHARE_SESSION_NOT_FOUND
    session = opened_session(cache)
    assert cache.find(KEY, 2) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert cache.find(KEY, 1) is session
    assert cache.find(KEY, FINAL_EPOCH) is session
    session.epoch = 2**31 - 1
    session.advance()
    assert session.epoch == 1


def test_new_session_replaces_that_of_the_member() -> None:
    cache = ShareSessionCache(1, 0)
    opened_session(cache)
    second = opened_session(cache, connection="d")
    assert cache.find(KEY, 1) is second
    assert cache.disconnected("c") == []
    limit = ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert cache.begin(MemberKey("g", "n"), "e", []) is limit
    assert cache.disconnected("d") == [KEY]
    assert len(cache) == 0


def test_partition_is_reported_if_it_is_new_has_records_or_failed() -> None:
    session = opened_session(ShareSessionCache(1, 0))
    session.update([C], [A])
    assert session.reports(C, has_records=False, failed=False)
    assert not session.reports(C, has_records=False, failed=False)
    assert session.reports(B, has_records=True, failed=False)
    assert session.reports(B, has_records=False, failed=True)
    assert session.reports(B, has_records=False, failed=False)
    assert not session.reports(A, has_records=False, failed=False)


def test_each_epoch_begins_with_another_partition() -> None:
    session = opened_session(ShareSessionCache(1, 0))
    assert session.rotated(1) == [A, B]
    assert session.rotated(2) == [B, A]
