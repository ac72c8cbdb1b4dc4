"""Requests of members and their answers in each state of the group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from minibroker.broker.groups.events import (
    CommitResult,
    HeartbeatResult,
    JoinResult,
    LeaveResult,
    LeavingMember,
    Persist,
    Persisted,
    Removed,
    SyncResult,
    TimePassed,
)
from minibroker.broker.groups.group_state_machine import handle, validate_join
from minibroker.broker.groups.limits import (
    MEMBER_METADATA_BYTES_MAX,
    PENDING_MEMBERS_MAX,
    GroupLimits,
)
from minibroker.broker.groups.states import GroupState
from minibroker_protocol.errors import ErrorCode

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
    assert validate_join(limits, "g", say.join(1, session_timeout_ms=6_000)) is ok
    assert validate_join(limits, "g", say.join(1, session_timeout_ms=30_000)) is ok
    bad = ErrorCode.INVALID_SESSION_TIMEOUT
    assert validate_join(limits, "g", say.join(1, session_timeout_ms=5_999)) is bad
    assert validate_join(limits, "g", say.join(1, session_timeout_ms=30_001)) is bad
    assert validate_join(limits, "", say.join(1)) is ErrorCode.INVALID_GROUP_ID
    huge = (("range", bytes(MEMBER_METADATA_BYTES_MAX)), ("sticky", b"1"))
    policy = ErrorCode.POLICY_VIOLATION
    assert validate_join(limits, "g", say.join(1, protocols=huge)) is policy


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
    assert {m.member_id for m in play.image.members} == {"s2-id2", "s1-id3"}


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
        handle(play.group, TimePassed(), play.time)
    play >> Persisted()
    with pytest.raises(RuntimeError, match="while no write was outstanding"):
        handle(play.group, Persisted(), play.time)
