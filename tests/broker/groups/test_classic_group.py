"""Timeouts, rebalances and expiry of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from minibroker.broker.groups.classic_group import ClassicGroup, restore_group
from minibroker.broker.groups.events import (
    GroupImage,
    HeartbeatResult,
    JoinResult,
    LeaveResult,
    LeavingMember,
    MemberImage,
    Moment,
    Removed,
    Restored,
    SyncResult,
    TimePassed,
)
from minibroker.broker.groups.group_state_machine import handle
from minibroker.broker.groups.limits import GroupLimits
from minibroker.broker.groups.offsets import CommittedOffset
from minibroker.broker.groups.states import GroupState
from minibroker_protocol.errors import ErrorCode

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
    everybody = ("a-id1", "b-id2", "c-id3")
    play >> 0.1
    play << say.joined(1, "a-id1", "a-id1", everybody)
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
    assert play.image.members == ()
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


def test_restored_group_equals_written_group(play: Playbook) -> None:
    play.stable("a", "b")
    image = play.image
    again = restore_group("g", image, play.group.limits, str, play.time)
    assert again.state is GroupState.STABLE
    assert again.image(again.assignments()) == image
    assert again.assignments() == {"a-id1": b"a-id1", "b-id2": b"b-id2"}
    assert handle(again, Restored(), play.time) == []
    assert again.next_deadline == play.now + 10.0


def test_restored_group_above_max_size_rebalances(make_play: Any) -> None:
    small = GroupLimits(members_max=1)
    members = tuple(MemberImage(name, None, "c", "h", 1000, 6000, b"r", b"A") for name in "ab")
    image = GroupImage("consumer", 4, "range", "a", 0, members)
    group = restore_group("g", image, small, str, Moment(0.0, 0))
    handle(group, Restored(), Moment(0.0, 0))
    assert group.state.value == "PreparingRebalance"
    handle(group, TimePassed(), Moment(1.0, 1000))
    assert group.state.value == "Empty"


def test_restored_empty_group_is_empty() -> None:
    image = GroupImage("consumer", 7, None, None, 5, ())
    group = restore_group("g", image, GroupLimits(), str, Moment(0.0, 0))
    assert (group.state, group.generation, group.state_since_ms) == (GroupState.EMPTY, 7, 5)
    assert not group.is_subscribed("t")


def test_next_deadline_is_not_after_earliest_deadline(play: Playbook, say: type[Words]) -> None:
    play >> say.join(1)
    assert play.group.next_deadline == play.now + 3.0
    play >> 3.0 << say.joined(1, "c-id1", "c-id1", ("c-id1",))
    assert play.group.next_deadline == play.now + 10.0
