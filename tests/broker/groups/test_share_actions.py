"""A test sets epochs and targets of a share group and its members."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from minibroker.broker.groups.events import (
    ActionTaken,
    AssignmentPlanned,
    GroupAction,
    MemberFenced,
    RebalanceRequested,
)
from minibroker.broker.groups.group import GroupLimits, GroupTimes
from minibroker.broker.groups.membership import encode_assignment
from minibroker.broker.metadata.image import PartitionsAdded, apply
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.consumer_play import partitions
from tests.broker.groups.test_share_group import SharePlay, T, U, given


@pytest.fixture
def play() -> SharePlay:
    """Members m and n, which share the three partitions of t, in one epoch."""
    play = SharePlay()
    play.join("m", "t")
    play.join("n", "t")
    play.beat("m", play.group.data.members["m"].member_epoch)
    return play


def act(play: SharePlay, event: GroupAction) -> ActionTaken:
    play.handle(event)
    taken = play.answers.pop()
    assert isinstance(taken, ActionTaken)
    return taken


def assign(play: SharePlay, **assignment: Mapping[str, list[int]]) -> ActionTaken:
    encoded = {member: encode_assignment(topics) for member, topics in assignment.items()}
    return act(play, AssignmentPlanned(encoded))


def beat(play: SharePlay, member: str) -> dict[bytes, set[int]] | None:
    """What a heartbeat in the member's epoch is given."""
    result = play.beat(member, play.group.data.members[member].member_epoch)
    assert result.error is ErrorCode.NONE
    return given(result)


def test_members_get_exactly_the_given_partitions(play: SharePlay) -> None:
    epoch = play.group.epoch
    assert assign(play, m={"t": [2]}, n={"t": [2]}) == ActionTaken(affected=2)
    assert play.group.epoch == epoch + 1
    assert (beat(play, "m"), beat(play, "n")) == ({T: {2}}, {T: {2}})
    assert (beat(play, "m"), beat(play, "n")) == (None, None)
    assert play.group.epoch == play.group.data.assignment_epoch == epoch + 1


def test_target_is_emptied_and_others_keep_theirs(play: SharePlay) -> None:
    assign(play, m={"t": [0, 1]}, n={"t": [0]})
    beat(play, "m")
    beat(play, "n")
    assign(play, m={})
    assert (beat(play, "m"), beat(play, "n")) == ({}, None)
    assert play.group.data.members["n"].assigned == {T: (0,)}


def test_target_lasts_until_members_or_topics_change(play: SharePlay) -> None:
    assign(play, m={"t": [1]}, n={})
    play.now += 30
    assert (beat(play, "m"), beat(play, "n")) == ({T: {1}}, {})
    play.join("o", "t")
    targets = play.group.data.targets.values()
    assert {at for target in targets for at in target.get(T, ())} == {0, 1, 2}


def test_new_partitions_are_assigned_after_a_target_by_hand(play: SharePlay) -> None:
    assign(play, m={"t": [1]}, n={})
    play.image = apply(play.image, PartitionsAdded("t", partitions(0, 5)[3:]))
    beat(play, "m")
    play.share()
    beat(play, "m")
    targets = play.group.data.targets.values()
    assert {at for target in targets for at in target.get(T, ())} == {0, 1, 2, 3, 4}


def test_target_is_checked(play: SharePlay) -> None:
    cases = [
        (assign(play, x={"t": [0]}), ErrorCode.UNKNOWN_MEMBER_ID, "not in the group: x"),
        (
            assign(play, m={"t": [3]}),
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no partition t-3",
        ),
        (assign(play, m={"u": [0]}), ErrorCode.INVALID_REQUEST, "m does not subscribe to 'u'"),
    ]
    for taken, error, text in cases:
        assert (taken.error, taken.text, taken.affected) == (error, text, 0)


def test_partition_without_a_state_is_not_assigned(play: SharePlay) -> None:
    assert given(play.beat("m", 0, ["t", "u"])) is not None
    assert U in play.group.unshared_partitions
    taken = assign(play, m={"u": [0]})
    assert taken.error is ErrorCode.INVALID_REQUEST
    assert taken.text == "u-0 has no state in the group yet"


def test_rebalance_computes_a_target(play: SharePlay) -> None:
    assign(play, m={"t": [0]}, n={})
    epoch = play.group.epoch
    assert act(play, RebalanceRequested()) == ActionTaken(affected=2)
    beat(play, "m")
    assert play.group.data.assignment_epoch == epoch + 1
    targets = play.group.data.targets.values()
    assert {at for target in targets for at in target.get(T, ())} == {0, 1, 2}


def test_group_without_members_is_not_rebalanced() -> None:
    assert act(SharePlay(), RebalanceRequested()).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_fenced_member_joins_again_with_its_target(play: SharePlay) -> None:
    assign(play, m={"t": [1]}, n={"t": [0]})
    beat(play, "m")
    known = play.group.data.members["m"].member_epoch
    assert act(play, MemberFenced("m")) == ActionTaken(affected=1)
    assert play.beat("m", known).error is ErrorCode.FENCED_MEMBER_EPOCH
    again = play.beat("m", 0, ["t"])
    assert (again.member_epoch, given(again)) == (known + 1, {T: {1}})
    beat(play, "n")
    assert play.group.data.members["n"].assigned == {T: (0,)}
    assert play.group.data.members["n"].member_epoch == known + 1


def test_fenced_member_waits_for_a_target_that_is_not_computed_yet() -> None:
    play = SharePlay(GroupLimits(share_times=GroupTimes(assignment_interval_ms=1000)))
    joined = play.join("m", "t")
    act(play, RebalanceRequested())
    act(play, MemberFenced("m"))
    data = play.group.data
    assert (data.group_epoch, data.assignment_epoch) == (
        joined.member_epoch + 3,
        joined.member_epoch + 2,
    )
    play.beat("m", 0, ["t"])
    play.now += 1
    beat(play, "m")
    assert data.members["m"].member_epoch == data.group_epoch == data.assignment_epoch


def test_unknown_member_is_not_fenced(play: SharePlay) -> None:
    taken = act(play, MemberFenced("x"))
    assert (taken.error, taken.text) == (ErrorCode.UNKNOWN_MEMBER_ID, "there is no member 'x'")


def test_action_that_is_not_written_changes_nothing(play: SharePlay) -> None:
    epoch = play.group.epoch
    play.write_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    taken = assign(play, m={})
    assert (taken.error, taken.affected) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, 0)
    assert play.group.epoch == epoch
