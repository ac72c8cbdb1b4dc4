"""Timeouts, rebalances and expiry of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from minibroker.broker.groups.classic_group import ClassicGroup
from minibroker.broker.groups.events import (
    CommitResult,
    HeartbeatResult,
    JoinResult,
    LeaveResult,
    LeavingMember,
    Moment,
    Persist,
    Persisted,
    Removed,
    Restored,
    SyncResult,
    TimePassed,
)
from minibroker.broker.groups.group import (
    MEMBER_METADATA_BYTES_MAX,
    PENDING_MEMBERS_MAX,
    GroupLimits,
)
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.groups.records import GroupEntry, GroupMetadataValue
from minibroker.broker.groups.states import GroupState
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.stored import stored_group, stored_member

if TYPE_CHECKING:
    from tests.broker.groups.conftest import Playbook, Words

DAY_MS = 24 * 3_600_000


def test_initial_delay_with_more_joins_gives_one_generation(
    play: Playbook, say: type[Words]
) -> None:
    play >> say.join(1, client_id="a") >> 2.0 >> say.join(2, client_id="b") >> 0.9
    play >> 0.1  # the delay of 3 s is extended by 3 s because another member joined
    play >> 2.9 >> say.join(3, client_id="c")
    play >> 0.1 >> 2.9
    all_members = ("a-id1", "b-id2", "c-id3")
    play >> 0.1
    play << say.joined(1, "a-id1", "a-id1", all_members)
    play << say.joined(2, "b-id2", "a-id1") << say.joined(3, "c-id3", "a-id1")
    assert play.is_in(GroupState.COMPLETING_REBALANCE)


def test_initial_delay_is_limited_by_rebalance_timeout(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, client_id="a", rebalance_timeout_ms=4_000) >> 2.0
    play >> say.join(2, client_id="b", rebalance_timeout_ms=4_000) >> 1.0
    play >> say.join(3, client_id="c", rebalance_timeout_ms=4_000) >> 0.9
    play >> 0.1
    play << say.joined(1, "a-id1", "a-id1", ("a-id1", "b-id2", "c-id3"))
    play << say.joined(2, "b-id2", "a-id1") << say.joined(3, "c-id3", "a-id1")


def test_first_member_without_initial_delay_starts_generation(
    make_play: Any, say: type[Words]
) -> None:
    play = make_play(initial_rebalance_delay_s=0.0)
    play >> say.join(1) << say.joined(1, "c-id1", "c-id1", ("c-id1",))


def test_member_that_does_not_rejoin_in_time_is_removed(play: Playbook, say: type[Words]) -> None:
    play.stable("a", "b")
    play >> say.join(1, "a-id1") >> 9.0 >> say.beat(2, "b-id2")
    play << say.refused(2, HeartbeatResult, ErrorCode.REBALANCE_IN_PROGRESS)
    for waiter in range(3, 8):
        play >> 9.0 >> say.beat(waiter, "b-id2")
        play << say.refused(waiter, HeartbeatResult, ErrorCode.REBALANCE_IN_PROGRESS)
    play >> 6.0  # the rebalance timeout of 60 s has passed
    play << say.joined(1, "a-id1", "a-id1", ("a-id1",), generation=2)
    assert "b-id2" not in play.group.membership


def test_member_session_timeout_starts_rebalance(play: Playbook, say: type[Words]) -> None:
    play.stable("a", "b")
    play >> 6.0 >> say.beat(1, "a-id1") << say.refused(1, HeartbeatResult, ErrorCode.NONE)
    play >> 3.9 >> 0.1  # the session timeout of b, 10 s, has passed
    assert play.is_in(GroupState.PREPARING_REBALANCE)
    assert "b-id2" not in play.group.membership
    play >> say.join(2, "a-id1") << say.joined(2, "a-id1", "a-id1", ("a-id1",), generation=2)


def test_member_with_waiting_join_does_not_expire(play: Playbook, say: type[Words]) -> None:
    play.stable("a", "b")
    play >> say.join(1, "a-id1") >> 9.0 >> say.beat(2, "b-id2")
    play << say.refused(2, HeartbeatResult, ErrorCode.REBALANCE_IN_PROGRESS)
    play >> 5.0  # a has sent no heartbeat for 14 s, because its join still waits
    play >> say.join(3, "b-id2")
    play << say.joined(1, "a-id1", "a-id1", ("a-id1", "b-id2"), generation=2)
    play << say.joined(3, "b-id2", "a-id1", generation=2)


def test_group_with_all_sessions_expired_is_empty(play: Playbook, say: type[Words]) -> None:
    play.stable("a", "b")
    play >> 10.0 << play.STORED
    assert play.is_in(GroupState.EMPTY)
    assert play.group.generation == 2
    assert play.stored.members == []
    assert play.group.membership.leader is None


def test_new_member_join_times_out_after_five_minutes(make_play: Any, say: type[Words]) -> None:
    play = make_play(initial_rebalance_delay_s=600.0)
    play >> say.join(1, rebalance_timeout_ms=600_000) >> 299.0 >> 1.0
    play << say.refused(1, JoinResult, ErrorCode.UNKNOWN_MEMBER_ID)
    play >> 300.0 << play.STORED


def test_members_that_never_sync_are_removed(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, client_id="a") >> say.join(2, client_id="b") >> 3.0 >> 3.0
    play << say.joined(1, "a-id1", "a-id1", ("a-id1", "b-id2")) << say.joined(2, "b-id2", "a-id1")
    play >> say.sync(3, "a-id1", assignments=(("a-id1", b"A"), ("b-id2", b"B"))) << play.STORED
    play << say.synced(3, b"A")
    for waiter in range(4, 10):
        play >> 9.0
        for number, member in ((waiter, "a-id1"), (100 + waiter, "b-id2")):
            play >> say.beat(number, member)
            play << say.refused(number, HeartbeatResult, ErrorCode.NONE)
    play >> 6.0
    assert play.is_in(GroupState.PREPARING_REBALANCE)
    assert [member.member_id for member in play.group.membership] == ["a-id1"]


def test_leader_session_timeout_before_assignment_starts_rebalance(
    play: Playbook, say: type[Words]
) -> None:
    play >> say.join(1, client_id="a") >> say.join(2, client_id="b") >> 3.0 >> 3.0
    play << say.joined(1, "a-id1", "a-id1", ("a-id1", "b-id2")) << say.joined(2, "b-id2", "a-id1")
    play >> say.sync(3, "b-id2") >> 10.0
    play << say.refused(3, SyncResult, ErrorCode.REBALANCE_IN_PROGRESS)
    assert play.group.membership.leader == "b-id2"


def test_static_member_late_for_rejoin_remains_until_session_timeout(
    play: Playbook, say: type[Words]
) -> None:
    play.stable("a", "s", group_instance_id=None)
    play >> say.leave(1, "s-id2")
    play << say.refused(1, LeaveResult, ErrorCode.NONE, members=((LeavingMember("s-id2"), 0),))
    play >> say.join(2, client_id="s", group_instance_id="s1") >> say.join(3, "a-id1")
    play << say.joined(3, "a-id1", "a-id1", ("a-id1", ("s1-id3", "s1")), generation=2)
    play << say.joined(2, "s1-id3", "a-id1", generation=2)
    play >> say.sync(4, "s1-id3", generation=2) >> say.sync(5, "a-id1", generation=2)
    play << play.STORED << say.synced(5, b"") << say.synced(4, b"")
    play >> say.join(6, "a-id1")  # s1 sends heartbeats but does not rejoin within 60 s...
    for waiter in range(7, 13):
        play >> 9.0 >> say.beat(waiter, "s1-id3", generation=2, instance="s1")
        play << say.refused(waiter, HeartbeatResult, ErrorCode.REBALANCE_IN_PROGRESS)
    play >> 6.0  # ...and remains, because it has an instance id
    play << say.joined(6, "a-id1", "a-id1", ("a-id1", ("s1-id3", "s1")), generation=3)
    play >> say.sync(13, "a-id1", generation=3) << play.STORED << say.synced(13, b"")
    play >> 9.9 >> say.beat(14, "a-id1", generation=3)
    play << say.refused(14, HeartbeatResult, ErrorCode.NONE) >> 0.1
    assert [member.member_id for member in play.group.membership] == ["a-id1"]


def test_rebalance_without_rejoins_waits_for_static_sessions(
    play: Playbook, say: type[Words]
) -> None:
    static: dict[str, Any] = {
        "group_instance_id": "s1",
        "rebalance_timeout_ms": 5000,
        "session_timeout_ms": 30_000,
    }
    play >> say.join(1, **static) >> 3.0
    play << say.joined(1, "s1-id1", "s1-id1", (("s1-id1", "s1"),))
    play >> say.sync(2, "s1-id1") << play.STORED << say.synced(2, b"")
    play >> say.join(3, client_id="d", require_known_member_id=True)
    play << say.refused(3, JoinResult, ErrorCode.MEMBER_ID_REQUIRED, member_id="d-id2")
    play >> say.join(4, "d-id2", rebalance_timeout_ms=5000) >> say.leave(5, "d-id2")
    play << say.refused(4, JoinResult, ErrorCode.UNKNOWN_MEMBER_ID)
    play << say.refused(5, LeaveResult, ErrorCode.NONE, members=((LeavingMember("d-id2"), 0),))
    play >> 5.0 >> 5.0 >> 5.0
    assert play.is_in(GroupState.PREPARING_REBALANCE)
    assert play.group.generation == 1
    play >> 15.0 << play.STORED
    assert play.is_in(GroupState.EMPTY)


def test_pending_member_delays_rebalance_until_it_expires(play: Playbook, say: type[Words]) -> None:
    play.stable("a")
    play >> say.join(1, client_id="b", require_known_member_id=True)
    play << say.refused(1, JoinResult, ErrorCode.MEMBER_ID_REQUIRED, member_id="b-id2")
    play >> say.join(2, "a-id1") >> 9.9 >> 0.1
    play << say.joined(2, "a-id1", "a-id1", ("a-id1",), generation=2)


def test_removed_group_rejects_waiting_requests(play: Playbook, say: type[Words]) -> None:
    play.stable("a", "b")
    play >> say.join(1, "a-id1") >> Removed()
    play << say.refused(1, JoinResult, ErrorCode.NOT_COORDINATOR, member_id="a-id1")
    assert play.is_in(GroupState.DEAD)
    assert play.group.next_deadline is None
    play >> 1000.0


@pytest.mark.parametrize(
    ("protocol_type", "state", "expected"),
    [
        (None, GroupState.EMPTY, ["old", "dated"]),
        ("consumer", GroupState.EMPTY, ["old", "new", "dated"]),
        ("consumer", GroupState.STABLE, ["old", "dated"]),
        ("connect", GroupState.STABLE, []),
        ("consumer", GroupState.PREPARING_REBALANCE, []),
    ],
)
def test_offsets_expire_only_when_no_member_consumes_them(
    protocol_type: str | None, state: GroupState, expected: list[str]
) -> None:
    group = ClassicGroup("g", GroupLimits(offsets_retention_ms=7 * DAY_MS), str, Moment(0.0, 0))
    group.protocol_type, group.state = protocol_type, state
    group.subscribed = frozenset({"busy"}) if protocol_type == "consumer" else None
    if state is GroupState.EMPTY:
        group.subscribed = frozenset()
    group.offsets.put("old", 0, CommittedOffset(1, -1, "", DAY_MS))
    group.offsets.put("new", 0, CommittedOffset(1, -1, "", 9 * DAY_MS))
    group.offsets.put("dated", 0, CommittedOffset(1, -1, "", 9 * DAY_MS, 9 * DAY_MS + 1))
    if state is GroupState.STABLE:
        group.offsets.put("busy", 0, CommittedOffset(1, -1, "", 0))
    assert [topic for topic, _ in group.expired_offsets(10 * DAY_MS)] == expected


def restored(stored: GroupMetadataValue, limits: GroupLimits, time: Moment) -> ClassicGroup:
    return ClassicGroup.restore("g", [GroupEntry("g", stored)], limits, str, time)


def test_restored_group_equals_written_group(play: Playbook) -> None:
    play.stable("a", "b")
    stored = play.stored
    again = restored(stored, play.group.limits, play.time)
    assert again.state is GroupState.STABLE
    assert again.metadata(again.membership.assignments()) == stored
    assert again.membership.assignments() == {"a-id1": b"a-id1", "b-id2": b"b-id2"}
    assert again.handle(Restored(), play.time) == []
    assert again.next_deadline == play.now + 10.0


def test_restored_group_above_max_size_rebalances(make_play: Any) -> None:
    small = GroupLimits(members_max=1)
    members = tuple(stored_member(name, None, "c", "h", 1000, 6000, b"r", b"A") for name in "ab")
    stored = stored_group("consumer", 4, "range", "a", 0, members=members)
    group = restored(stored, small, Moment(0.0, 0))
    group.handle(Restored(), Moment(0.0, 0))
    assert group.state.value == "PreparingRebalance"
    group.handle(TimePassed(), Moment(1.0, 1000))
    assert group.state.value == "Empty"


def test_restored_empty_group_is_empty() -> None:
    stored = stored_group("consumer", 7, None, None, 5)
    group = restored(stored, GroupLimits(), Moment(0.0, 0))
    assert (group.state, group.generation, group.state_since_ms) == (GroupState.EMPTY, 7, 5)
    assert not group.is_subscribed("t")


def test_next_deadline_is_not_after_earliest_deadline(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1)
    assert play.group.next_deadline == play.now + 3.0
    play >> 3.0 << say.joined(1, "c-id1", "c-id1", ("c-id1",))
    assert play.group.next_deadline == play.now + 10.0


if TYPE_CHECKING:
    from tests.broker.groups.conftest import Playbook, Words

STICKY = (("sticky", b"s"), ("range", b"r"))


# --------------------------------------------------------------------------------------- join


def test_join_without_id_returns_id_to_join_with(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, require_known_member_id=True)
    play << say.refused(1, JoinResult, ErrorCode.MEMBER_ID_REQUIRED, member_id="c-id1")
    assert play.is_in(GroupState.EMPTY)
    play >> say.join(2, "c-id1", require_known_member_id=True) >> 3.0
    play << say.joined(2, "c-id1", "c-id1", ("c-id1",))


def test_join_with_unknown_id_is_rejected(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, "mine")
    play << say.refused(1, JoinResult, ErrorCode.UNKNOWN_MEMBER_ID, member_id="mine")


def test_join_with_expired_pending_id_is_rejected(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, require_known_member_id=True)
    play << say.refused(1, JoinResult, ErrorCode.MEMBER_ID_REQUIRED, member_id="c-id1")
    play >> 10.0 >> say.join(2, "c-id1")
    play << say.refused(2, JoinResult, ErrorCode.UNKNOWN_MEMBER_ID, member_id="c-id1")


def test_pending_ids_above_limit_are_rejected(play: Playbook, say: type[Words]) -> None:
    play.group.membership.pending = {str(number): 1e9 for number in range(PENDING_MEMBERS_MAX)}
    play >> say.join(1, require_known_member_id=True)
    play << say.refused(1, JoinResult, ErrorCode.GROUP_MAX_SIZE_REACHED)


@pytest.mark.parametrize("other", [{"protocol_type": ""}, {"protocols": ()}])
def test_first_join_without_protocol_is_rejected(
    play: Playbook, say: type[Words], other: dict[str, Any]
) -> None:
    play >> say.join(1, **other)
    play << say.refused(1, JoinResult, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


@pytest.mark.parametrize(
    "other", [{"protocol_type": "connect"}, {"protocols": (("sticky", b"s"),)}]
)
def test_join_without_common_protocol_is_rejected(
    play: Playbook, say: type[Words], other: dict[str, Any]
) -> None:
    play.stable("a")
    play >> say.join(1, "x", **other)
    error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    play << say.refused(1, JoinResult, error, member_id="x")


def test_protocol_with_most_votes_is_selected(play: Playbook, say: type[Words]) -> None:
    both = (("range", b"r"), ("sticky", b"s"))
    play >> say.join(1, client_id="a", protocols=both)
    play >> say.join(2, client_id="b", protocols=STICKY)
    play >> say.join(3, client_id="c", protocols=(("rare", b""), *STICKY)) >> 3.0 >> 3.0
    assert play.group.protocol_name == "sticky"
    play.waiting.clear()


def test_repeated_join_gets_same_generation(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, client_id="a") >> say.join(2, client_id="b") >> 3.0 >> 3.0
    play << say.joined(1, "a-id1", "a-id1", ("a-id1", "b-id2")) << say.joined(2, "b-id2", "a-id1")
    play >> say.join(3, "b-id2") << say.joined(3, "b-id2", "a-id1")
    play >> say.join(4, "a-id1") << say.joined(4, "a-id1", "a-id1", ("a-id1", "b-id2"))


def test_rejoin_with_changed_metadata_before_assignment_restarts_rebalance(
    play: Playbook, say: type[Words]
) -> None:
    play >> say.join(1, client_id="a") >> say.join(2, client_id="b") >> 3.0 >> 3.0
    play << say.joined(1, "a-id1", "a-id1", ("a-id1", "b-id2")) << say.joined(2, "b-id2", "a-id1")
    play >> say.sync(3, "b-id2") >> say.join(4, "b-id2", protocols=(("range", b"new"),))
    play << say.refused(3, SyncResult, ErrorCode.REBALANCE_IN_PROGRESS)
    assert play.is_in(GroupState.PREPARING_REBALANCE)


def test_follower_rejoin_in_stable_group_starts_no_rebalance(
    play: Playbook, say: type[Words]
) -> None:
    play.stable("a", "b")
    play >> say.join(1, "b-id2") << say.joined(1, "b-id2", "a-id1")
    assert play.is_in(GroupState.STABLE)


@pytest.mark.parametrize(
    ("member_id", "metadata"),
    [("a-id1", b"r"), ("b-id2", b"owned partitions 0-3")],
    ids=["the leader asks for it", "cooperative metadata changed"],
)
def test_rejoin_of_leader_or_changed_metadata_starts_rebalance(
    play: Playbook, say: type[Words], member_id: str, metadata: bytes
) -> None:
    play.stable("a", "b")
    play >> say.join(1, member_id, protocols=(("range", metadata),))
    assert play.is_in(GroupState.PREPARING_REBALANCE)


def test_retried_join_replaces_first(play: Playbook, say: type[Words]) -> None:
    play.stable("a", "b")
    play >> say.join(1, "a-id1") >> say.join(2, "a-id1")
    play << say.refused(1, JoinResult, ErrorCode.REBALANCE_IN_PROGRESS, member_id="a-id1")
    play >> say.join(3, "b-id2")
    play << say.joined(2, "a-id1", "a-id1", ("a-id1", "b-id2"), generation=2)
    play << say.joined(3, "b-id2", "a-id1", generation=2)


def test_join_to_full_group_is_rejected(make_play: Any, say: type[Words]) -> None:
    play = make_play(members_max=2)
    play.stable("a", "b")
    play >> say.join(1, client_id="c")
    play << say.refused(1, JoinResult, ErrorCode.GROUP_MAX_SIZE_REACHED)
    play >> say.join(2, "a-id1") >> say.join(3, client_id="d") >> say.join(4, "b-id2")
    # d rejoined before b, so the group is full for b
    play << say.refused(4, JoinResult, ErrorCode.GROUP_MAX_SIZE_REACHED)
    play << say.joined(2, "a-id1", "a-id1", ("a-id1", "d-id3"), generation=2)
    play << say.joined(3, "d-id3", "a-id1", generation=2)


def test_invalid_join_is_rejected_in_any_state(say: type[Words]) -> None:
    limits = GroupLimits(session_timeout_ms_min=6_000, session_timeout_ms_max=30_000)
    ok = ErrorCode.NONE
    assert limits.join_error("g", say.join(1, session_timeout_ms=6_000)) is ok
    assert limits.join_error("g", say.join(1, session_timeout_ms=30_000)) is ok
    bad = ErrorCode.INVALID_SESSION_TIMEOUT
    assert limits.join_error("g", say.join(1, session_timeout_ms=5_999)) is bad
    assert limits.join_error("g", say.join(1, session_timeout_ms=30_001)) is bad
    assert limits.join_error("", say.join(1)) is ErrorCode.INVALID_GROUP_ID
    huge = (("range", bytes(MEMBER_METADATA_BYTES_MAX)), ("sticky", b"1"))
    policy = ErrorCode.POLICY_VIOLATION
    assert limits.join_error("g", say.join(1, protocols=huge)) is policy


# ----------------------------------------------------------------------------- static members


def test_restarted_static_member_keeps_assignment_without_rebalance(
    play: Playbook, say: type[Words]
) -> None:
    _static_pair(play, say)
    play >> say.join(1, client_id="f", group_instance_id="s2", can_skip_assignment=True)
    play << play.STORED << say.joined(1, "s2-id3", "s1-id1")
    play >> say.sync(2, "s2-id3") << say.synced(2, b"two")
    play >> say.beat(3, "s2-id2", instance="s2")
    play << say.refused(3, HeartbeatResult, ErrorCode.FENCED_INSTANCE_ID)


@pytest.mark.parametrize("can_skip", [True, False])
def test_restarted_static_leader_does_not_assign(
    play: Playbook, say: type[Words], can_skip: bool
) -> None:
    _static_pair(play, say)
    play >> say.join(1, group_instance_id="s1", can_skip_assignment=can_skip) << play.STORED
    if can_skip:
        members = (("s2-id2", "s2"), ("s1-id3", "s1"))
        play << say.joined(1, "s1-id3", "s1-id3", members, skip_assignment=True)
    else:  # the leader in the response is its previous id, so it does not act as the leader
        play << say.joined(1, "s1-id3", "s1-id1")
    assert play.group.membership.leader == "s1-id3"
    assert {m.member_id for m in play.stored.members} == {"s2-id2", "s1-id3"}


def test_static_rejoin_with_failed_write_is_undone(play: Playbook, say: type[Words]) -> None:
    _static_pair(play, say)
    play >> say.join(1, group_instance_id="s2", session_timeout_ms=7_000) << Persist
    play >> Persisted(ErrorCode.NOT_COORDINATOR)
    play << say.refused(1, JoinResult, ErrorCode.NOT_COORDINATOR)
    play >> say.beat(2, "s2-id2", instance="s2") << say.refused(2, HeartbeatResult, ErrorCode.NONE)
    assert play.group.membership["s2-id2"].session_timeout_ms == 10_000


def test_static_rejoin_that_changes_protocol_starts_rebalance(
    play: Playbook, say: type[Words]
) -> None:
    both: dict[str, Any] = {"protocols": (("range", b"r"), ("sticky", b"s"))}
    play >> say.join(1, group_instance_id="s1", **both) >> 3.0
    play.waiting.clear()
    play >> say.sync(2, "s1-id1") << play.STORED << say.synced(2, b"")
    play >> say.join(3, group_instance_id="s1", protocols=STICKY)
    assert play.group.protocol_name == "sticky"
    assert play.group.generation == 2
    play.waiting.clear()


def test_static_rejoin_before_assignment_restarts_rebalance(
    play: Playbook, say: type[Words]
) -> None:
    play >> say.join(1, group_instance_id="s1") >> 3.0
    play << say.joined(1, "s1-id1", "s1-id1", (("s1-id1", "s1"),))
    play >> say.join(2, group_instance_id="s1")
    play << say.joined(2, "s1-id2", "s1-id2", (("s1-id2", "s1"),), generation=2)


def test_second_client_with_same_instance_id_fences_first(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, group_instance_id="s1") >> 1.0 >> say.join(2, group_instance_id="s1")
    play << say.refused(1, JoinResult, ErrorCode.FENCED_INSTANCE_ID, member_id="s1-id1")
    play >> 2.0 << say.joined(2, "s1-id2", "s1-id2", (("s1-id2", "s1"),))
    play >> say.sync(3, "s1-id1", group_instance_id="s1")
    play << say.refused(3, SyncResult, ErrorCode.FENCED_INSTANCE_ID)
    play >> say.join(4, "s1-id1", group_instance_id="s1")
    play << say.refused(4, JoinResult, ErrorCode.FENCED_INSTANCE_ID, member_id="s1-id1")
    play >> say.commit(5, "s1-id1", instance="s1")
    play << say.refused(5, CommitResult, ErrorCode.FENCED_INSTANCE_ID)
    play >> say.beat(6, "s1-id2", instance="s9")
    play << say.refused(6, HeartbeatResult, ErrorCode.UNKNOWN_MEMBER_ID)


def _static_pair(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, group_instance_id="s1") >> say.join(2, group_instance_id="s2")
    play >> 3.0 >> 3.0
    play << say.joined(1, "s1-id1", "s1-id1", (("s1-id1", "s1"), ("s2-id2", "s2")))
    play << say.joined(2, "s2-id2", "s1-id1")
    given = (("s1-id1", b"one"), ("s2-id2", b"two"))
    play >> say.sync(3, "s1-id1", assignments=given) << play.STORED << say.synced(3, b"one")
    play >> say.sync(4, "s2-id2") << say.synced(4, b"two")


# --------------------------------------------------------------------------------------- sync


def test_follower_sync_waits_for_leaders_assignment(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, client_id="a") >> say.join(2, client_id="b") >> 3.0 >> 3.0
    play << say.joined(1, "a-id1", "a-id1", ("a-id1", "b-id2")) << say.joined(2, "b-id2", "a-id1")
    play >> say.sync(3, "b-id2")
    play >> say.sync(4, "a-id1", assignments=(("a-id1", b"A"), ("gone", b"G"))) << Persist
    assert play.is_in(GroupState.COMPLETING_REBALANCE)  # no answer before the write completes
    play >> Persisted() << say.synced(4, b"A") << say.synced(3, b"")
    assert play.is_in(GroupState.STABLE)
    play >> say.sync(5, "b-id2") << say.synced(5, b"")


def test_assignment_with_failed_write_restarts_rebalance(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, client_id="a") >> say.join(2, client_id="b") >> 3.0 >> 3.0
    play << say.joined(1, "a-id1", "a-id1", ("a-id1", "b-id2")) << say.joined(2, "b-id2", "a-id1")
    play >> say.sync(3, "b-id2") >> say.sync(4, "a-id1") << Persist
    play >> Persisted(ErrorCode.NOT_COORDINATOR)
    play << say.refused(4, SyncResult, ErrorCode.NOT_COORDINATOR)
    play << say.refused(3, SyncResult, ErrorCode.NOT_COORDINATOR)
    assert play.is_in(GroupState.PREPARING_REBALANCE)


def test_retried_sync_replaces_first(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, client_id="a") >> say.join(2, client_id="b") >> 3.0 >> 3.0
    play << say.joined(1, "a-id1", "a-id1", ("a-id1", "b-id2")) << say.joined(2, "b-id2", "a-id1")
    play >> say.sync(3, "b-id2") >> say.sync(4, "b-id2")
    play << say.refused(3, SyncResult, ErrorCode.REBALANCE_IN_PROGRESS)


@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"group_instance_id": "s"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_sync_with_wrong_generation_or_protocol_is_rejected(
    play: Playbook, say: type[Words], other: dict[str, Any], error: ErrorCode
) -> None:
    play.stable("a")
    play >> say.sync(1, **({"member_id": "a-id1"} | other)) << say.refused(1, SyncResult, error)


def test_sync_during_rebalance_gets_rebalance_in_progress(play: Playbook, say: type[Words]) -> None:
    play.stable("a", "b")
    play >> say.join(1, "a-id1") >> say.sync(2, "b-id2")
    play << say.refused(2, SyncResult, ErrorCode.REBALANCE_IN_PROGRESS)


# ---------------------------------------------------------------- heartbeat, commit and leave


def test_heartbeat_extends_session_and_rejects_unknown_member(
    play: Playbook, say: type[Words]
) -> None:
    play.stable("a")
    for waiter in range(5):
        play >> 9.0 >> say.beat(waiter, "a-id1")
        play << say.refused(waiter, HeartbeatResult, ErrorCode.NONE)
    play >> say.beat(5, "x") << say.refused(5, HeartbeatResult, ErrorCode.UNKNOWN_MEMBER_ID)
    play >> say.beat(6, "a-id1", generation=9)
    play << say.refused(6, HeartbeatResult, ErrorCode.ILLEGAL_GENERATION)


def test_commit_to_empty_group_requires_no_generation(play: Playbook, say: type[Words]) -> None:
    play >> say.commit(1, "", -1) << say.refused(1, CommitResult, ErrorCode.NONE)
    play >> say.commit(2, "x", -1) << say.refused(2, CommitResult, ErrorCode.NONE)
    play >> say.commit(3, "x", 0) << say.refused(3, CommitResult, ErrorCode.UNKNOWN_MEMBER_ID)


def test_commit_to_group_with_members_requires_member(play: Playbook, say: type[Words]) -> None:
    play.stable("a", "b")
    play >> say.commit(1, "", -1) << say.refused(1, CommitResult, ErrorCode.UNKNOWN_MEMBER_ID)
    play >> say.commit(2, "x", 1) << say.refused(2, CommitResult, ErrorCode.UNKNOWN_MEMBER_ID)
    play >> say.commit(3, "a-id1", 2) << say.refused(3, CommitResult, ErrorCode.ILLEGAL_GENERATION)
    play >> say.commit(4, "a-id1", 1) << say.refused(4, CommitResult, ErrorCode.NONE)
    play >> say.join(5, "a-id1") >> say.commit(6, "b-id2", 1)
    play << say.refused(6, CommitResult, ErrorCode.NONE)  # b commits before it gives up partitions
    play >> say.join(7, "b-id2")
    play.waiting.clear()
    play >> say.commit(8, "b-id2", 2)
    play << say.refused(8, CommitResult, ErrorCode.REBALANCE_IN_PROGRESS)


def test_commit_extends_session(play: Playbook, say: type[Words]) -> None:
    play.stable("a")
    for waiter in range(3):
        play >> 9.0 >> say.commit(waiter, "a-id1")
        play << say.refused(waiter, CommitResult, ErrorCode.NONE)
    assert play.is_in(GroupState.STABLE)


def test_leave_request_removes_several_members(play: Playbook, say: type[Words]) -> None:
    play.stable("a", "b")
    play >> say.join(1, client_id="s", group_instance_id="s1")
    play >> say.join(2, client_id="p", require_known_member_id=True)
    play << say.refused(2, JoinResult, ErrorCode.MEMBER_ID_REQUIRED, member_id="p-id4")
    leavers = (
        LeavingMember("a-id1"),
        LeavingMember("", "s1"),
        LeavingMember("", "nobody"),
        LeavingMember("p-id4"),
        LeavingMember("b-id2", "s1"),
        LeavingMember("x"),
    )
    none, unknown = ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID
    errors = (none, none, unknown, none, unknown, unknown)
    play >> say.leave(3, *leavers)
    play << say.refused(1, JoinResult, unknown)
    play << say.refused(3, LeaveResult, none, members=tuple(zip(leavers, errors, strict=True)))
    assert [member.member_id for member in play.group.membership] == ["b-id2"]


def test_leave_of_last_member_empties_group(play: Playbook, say: type[Words]) -> None:
    play.stable("a")
    play >> say.leave(1, "a-id1")
    play << say.refused(1, LeaveResult, ErrorCode.NONE, members=((LeavingMember("a-id1"), 0),))
    play << play.STORED
    assert play.is_in(GroupState.EMPTY)
    play >> say.beat(2, "a-id1") << say.refused(2, HeartbeatResult, ErrorCode.UNKNOWN_MEMBER_ID)
    play >> say.sync(3, "a-id1", 2) << say.refused(3, SyncResult, ErrorCode.UNKNOWN_MEMBER_ID)


def test_empty_group_with_failed_write_continues(play: Playbook, say: type[Words]) -> None:
    play.stable("a")
    play >> 10.0 << Persist
    play >> Persisted(ErrorCode.NOT_COORDINATOR)
    assert play.is_in(GroupState.EMPTY)
    assert "could not write that it is empty" in play.notes[-1]


def test_leave_while_join_waits_rejects_join(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1, client_id="a") >> say.join(2, client_id="b") >> 3.0 >> 3.0
    play << say.joined(1, "a-id1", "a-id1", ("a-id1", "b-id2")) << say.joined(2, "b-id2", "a-id1")
    play >> say.sync(3, "b-id2") >> say.leave(4, "b-id2")
    play << say.refused(3, SyncResult, ErrorCode.UNKNOWN_MEMBER_ID)
    play << say.refused(4, LeaveResult, ErrorCode.NONE, members=((LeavingMember("b-id2"), 0),))


def test_dead_group_answers_with_coordinator_errors(play: Playbook, say: type[Words]) -> None:
    play >> Removed()
    gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
    play >> say.join(1) << say.refused(1, JoinResult, gone)
    play >> say.sync(2, "x") << say.refused(2, SyncResult, gone)
    play >> say.beat(3, "x") << say.refused(3, HeartbeatResult, gone)
    play >> say.commit(4, "", -1) << say.refused(4, CommitResult, gone)
    play >> say.leave(5, "x") << say.refused(5, LeaveResult, gone)


def test_event_before_persisted_raises(play: Playbook, say: type[Words]) -> None:
    play.stable("a")
    play >> 10.0 << Persist
    with pytest.raises(RuntimeError, match="while a write was outstanding"):
        play.group.handle(TimePassed(), play.time)
    play >> Persisted()
    with pytest.raises(RuntimeError, match="while no write was outstanding"):
        play.group.handle(Persisted(), play.time)
