"""What tests do to a consumer group: targets by hand, fences, and revocations that are held."""

from __future__ import annotations

from random import Random

import pytest

from minibroker.broker.groups.consumer_group import ConsumerGroup
from minibroker.broker.groups.consumer_member import MemberState
from minibroker.broker.groups.description import describe_consumer_group
from minibroker.broker.groups.events import (
    ActionTaken,
    AssignmentPlanned,
    CommitRequested,
    HeartbeatReceived,
    HeartbeatResult,
    JoinRequested,
    MemberFenced,
    RebalanceReleased,
    RebalanceRequested,
)
from minibroker.broker.groups.group import ConsumerLimits, GroupLimits, GroupTimes
from minibroker.broker.groups.membership import encode_assignment
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.consumer_play import (
    START_MS,
    ConsumerPlay,
    PlayedMember,
    settle,
    topic_id,
)

OK = ErrorCode.NONE
T, U = topic_id("t"), topic_id("u")


def assign(play: ConsumerPlay, **assignment: dict[str, list[int]]) -> ActionTaken:
    encoded = {member: encode_assignment(topics) for member, topics in assignment.items()}
    result = play.handle(AssignmentPlanned(encoded))
    assert isinstance(result, ActionTaken)
    return result


def settled(
    play: ConsumerPlay, *names: str, topics: tuple[str, ...] = ("t",)
) -> list[PlayedMember]:
    members = [PlayedMember(play, name, *topics) for name in names]
    settle(play, *members)
    return members


def owned(member: PlayedMember) -> dict[bytes, set[int]]:
    return {topic: set(partitions) for topic, partitions in member.owned.items() if partitions}


# Epochs and targets -------------------------------------------------------------------------------


def test_rebalance_raises_the_epoch_of_all_members() -> None:
    play = ConsumerPlay(t=4)
    members = settled(play, "a", "b")
    epochs = [each.epoch for each in members]
    assert play.handle(RebalanceRequested()) == (OK, "", 2)
    settle(play, *members)
    assert [each.epoch for each in members] == [epoch + 1 for epoch in epochs]
    assert play.group.state_name == "Stable"


def test_group_without_members_takes_no_rebalance() -> None:
    assert ConsumerPlay().handle(RebalanceRequested()).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_target_by_hand_is_followed_exactly_and_stays() -> None:
    play = ConsumerPlay(t=4)
    a, b = settled(play, "a", "b")
    assert assign(play, a={"t": [0, 1, 2]}, b={"t": [3]}) == (OK, "", 2)
    settle(play, a, b, rounds=30)
    assert (owned(a), owned(b)) == ({T: {0, 1, 2}}, {T: {3}})
    assert assign(play, a={"t": [3, 0]}, b={"t": [1, 2]}).error is OK
    settle(play, a, b)
    assert (owned(a), owned(b)) == ({T: {0, 3}}, {T: {1, 2}})
    assert a.epoch == b.epoch == play.group.data.assignment_epoch


def test_member_may_be_emptied_and_partitions_may_have_no_member() -> None:
    play = ConsumerPlay(t=4)
    a, b = settled(play, "a", "b")
    assert assign(play, a={}, b={"t": [1]}).affected == 2
    settle(play, a, b)
    assert (owned(a), owned(b)) == ({}, {T: {1}})
    assert play.group.state_name == "Stable"


def test_other_members_keep_their_targets_without_what_is_given() -> None:
    play = ConsumerPlay(t=4, u=2)
    a, b = settled(play, "a", "b", topics=("t", "u"))
    before = owned(b)
    moved = min(before[T])
    assert assign(play, a={"t": [moved]}).affected == 1  # It keeps nothing of u.
    settle(play, a, b)
    assert owned(a) == {T: {moved}}
    left = {**before, T: before[T] - {moved}}
    assert owned(b) == {topic: partitions for topic, partitions in left.items() if partitions}


def test_target_by_hand_is_replaced_when_a_member_joins() -> None:
    play = ConsumerPlay(t=4)
    members = settled(play, "a", "b")
    assign(play, a={}, b={})
    settle(play, *members)
    members.append(PlayedMember(play, "c", "t"))
    settle(play, *members)
    assert set().union(*(each.partitions for each in members)) == {(T, at) for at in range(4)}


@pytest.mark.parametrize(
    ("assignment", "error", "text"),
    [
        ({"x": {}, "y": {}}, ErrorCode.UNKNOWN_MEMBER_ID, "not in the group: x, y"),
        (
            {"a": {"t": [4]}},
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no partition t-4",
        ),
        (
            {"a": {"x": [0]}},
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            "there is no partition x-0",
        ),
        ({"a": {"u": [0]}}, ErrorCode.INVALID_REQUEST, "a does not subscribe to 'u'"),
        (
            {"a": {"t": [0]}, "b": {"t": [0]}},
            ErrorCode.INVALID_REQUEST,
            "t-0 is given to a and b: in a consumer group a partition has one member",
        ),
    ],
)
def test_impossible_target_is_rejected_with_its_reason(
    assignment: dict[str, dict[str, list[int]]], error: ErrorCode, text: str
) -> None:
    play = ConsumerPlay(t=4, u=1)
    settled(play, "a", "b")
    written = len(play.records)
    assert assign(play, **assignment) == (error, text, 0)
    assert len(play.records) == written


def test_partition_that_is_named_twice_counts_once() -> None:
    play = ConsumerPlay(t=4)
    (a,) = settled(play, "a")
    assign(play, a={"t": [2, 2]})
    settle(play, a)
    assert a.owned == {T: (2,)}


def test_failed_write_of_a_target_changes_nothing() -> None:
    play = ConsumerPlay(t=4)
    (a,) = settled(play, "a")
    play.write_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert assign(play, a={}) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, "", 0)
    play.write_error = OK
    settle(play, a)
    assert owned(a) == {T: {0, 1, 2, 3}}


# Fences -------------------------------------------------------------------------------------------


def test_fenced_member_gets_the_error_of_each_request_until_it_rejoins() -> None:
    play = ConsumerPlay(t=4)
    a, b = settled(play, "a", "b")
    before = owned(a)
    assert play.handle(MemberFenced("a")) == (OK, "", 1)
    at = ("t", next(iter(before[T])))
    commit = CommitRequested("a", a.epoch, partitions=(at,))
    assert play.handle(commit).error is ErrorCode.STALE_MEMBER_EPOCH
    assert play.group.validate_offset_fetch("a", a.epoch) is ErrorCode.STALE_MEMBER_EPOCH
    assert a.beat().error is ErrorCode.FENCED_MEMBER_EPOCH
    joined = a.beat()
    assert (joined.error, joined.member_epoch) == (OK, play.group.data.assignment_epoch)
    assert owned(a) == before
    assert play.handle(commit._replace(generation=a.epoch)).error is OK
    settle(play, a, b)
    assert play.group.state_name == "Stable"


def test_member_that_is_fenced_before_its_target_is_computed_gets_it_afterwards() -> None:
    play = ConsumerPlay(t=4)
    a, b = settled(play, "a", "b")
    play.handle(RebalanceRequested())
    assert play.group.state_name == "Assigning"
    play.handle(MemberFenced("a"))
    assert play.group.state_name == "Assigning"
    settle(play, a, b)
    assert a.epoch == b.epoch == play.group.data.group_epoch
    assert play.group.state_name == "Stable"


def test_member_that_is_fenced_on_its_way_gets_its_target() -> None:
    play = ConsumerPlay(t=4)
    a, b = settled(play, "a", "b")
    assign(play, a={"t": [0]}, b={"t": [1, 2, 3]})
    play.handle(MemberFenced("a"))
    play.handle(MemberFenced("b"))
    settle(play, a, b)
    assert (owned(a), owned(b)) == ({T: {0}}, {T: {1, 2, 3}})


def test_static_member_is_fenced_and_its_place_is_taken_for_a_session() -> None:
    play = ConsumerPlay(t=4)
    a = PlayedMember(play, "a", "t", instance_id="i")
    settle(play, a)
    assert play.handle(MemberFenced("a")) == (OK, "", 1)
    (taker,) = play.group.data.members.values()
    assert (taker.member_id, taker.member_epoch) == ("i-id1", a.epoch)
    assert taker.assigned == {T: {0: 2, 1: 2, 2: 2, 3: 2}}
    error, text = play.error("a", a.epoch, instance_id="i")
    assert error is ErrorCode.FENCED_INSTANCE_ID
    assert text == "Static member a with instance id i was fenced by member i-id1."
    assert play.join("c", "t", instance_id="i").error is ErrorCode.UNRELEASED_INSTANCE_ID
    play.sleep(45)
    assert play.join("c", "t", instance_id="i").error is OK


def test_unknown_member_is_not_fenced() -> None:
    play = ConsumerPlay(t=4)
    assert play.handle(MemberFenced("x")).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_classic_member_of_a_consumer_group_is_fenced_and_assigned() -> None:
    play = ConsumerPlay(t=2)
    settled(play, "a")
    subscription = bytes.fromhex("0000 00000001 0001 74 ffffffff")
    join = JoinRequested("c", 6000, 30_000, "consumer", (("range", subscription),), waiter=1)
    member_id = play.handle(join._replace(member_id="")).member_id
    generation = play.member(member_id).member_epoch
    assert assign(play, **{member_id: {}}).error is OK
    beat = HeartbeatReceived(member_id, generation, waiter=2)
    assert play.handle(beat) == HeartbeatResult(ErrorCode.REBALANCE_IN_PROGRESS)
    play.handle(MemberFenced(member_id))
    assert play.handle(beat) == HeartbeatResult(ErrorCode.ILLEGAL_GENERATION)


# Revocations that are held ------------------------------------------------------------------------


def holding() -> tuple[ConsumerPlay, PlayedMember, PlayedMember]:
    """A group in which `a` has revoked for `b` what it must, and that is held."""
    play = ConsumerPlay(t=4)
    (a,) = settled(play, "a")
    play.group.holds_rebalances = True
    b = PlayedMember(play, "b", "t")
    settle(play, b, a, rounds=4)
    assert (len(a.partitions), len(b.partitions)) == (2, 0)
    return play, a, b


def test_member_that_has_revoked_stays_in_its_epoch_while_that_is_held() -> None:
    play, a, b = holding()
    epoch = a.epoch
    play.group.holds_rebalances = False  # The rule has fired as often as it may.
    settle(play, b, a, rounds=4)
    assert a.epoch == epoch
    assert play.member("a").state is MemberState.UNREVOKED_PARTITIONS
    assert {each.is_held for each in describe_consumer_group(play.group).members} == {True, False}
    play.handle(RebalanceReleased("a"))
    # As the Java client does: it does not report again what has not changed.
    assert play.beat("a", epoch).member_epoch == epoch + 1
    assert play.member("a").state is MemberState.STABLE
    assert not play.group.held_revocations
    settle(play, b, a)
    assert (len(a.partitions), len(b.partitions)) == (2, 2)
    assert a.epoch == b.epoch == epoch + 1


def test_held_revocation_does_not_stop_the_rebalance_timeout() -> None:
    play, a, _b = holding()
    play.now += 31
    play.beat("b", 3)
    assert "a" not in play.group.data.members
    play.handle(RebalanceReleased("a"))
    assert a.beat().error is ErrorCode.UNKNOWN_MEMBER_ID


def test_member_that_rejoins_is_no_longer_held() -> None:
    play, a, b = holding()
    play.group.holds_rebalances = False
    a.epoch, a.owned = 0, {}
    settle(play, a, b)
    assert not play.group.held_revocations
    assert (len(a.partitions), len(b.partitions)) == (2, 2)


# Whatever a test does, no partition has two members -----------------------------------------------


@pytest.mark.parametrize("seed", range(25))
def test_group_converges_after_any_actions(seed: int) -> None:
    """`ConsumerPlay` checks after each event that no partition has two members."""
    random = Random(seed)
    limits = GroupLimits(consumer=ConsumerLimits(times=GroupTimes(assignment_interval_ms=1500)))
    play = ConsumerPlay(limits, t=random.randint(2, 9), u=random.randint(2, 5))
    members = [
        PlayedMember(play, f"m{at}", "t", "u", instance_id=random.choice((None, f"i{at}")))
        for at in range(random.randint(2, 5))
    ]
    made = 0
    for _ in range(100):
        play.sleep(random.choice((0.1, 0.5, 1, 5)))
        for member in random.sample(members, random.randint(0, len(members))):
            result = member.beat(is_lost=random.random() < 0.2)
            if result.error in (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID):
                made += 1
                members.remove(member)
                members.append(PlayedMember(play, f"n{made}", "t", "u"))
        ids = sorted(play.group.data.members)
        if not ids or random.random() < 0.7:
            continue
        play.group.holds_rebalances = random.random() < 0.5
        match random.randrange(4):
            case 0:
                play.handle(RebalanceRequested())
            case 1:
                play.handle(MemberFenced(random.choice(ids)))
            case 2:
                for held in list(play.group.held_revocations):
                    play.handle(RebalanceReleased(held))
            case 3:
                assert _random_assignment(play, random, ids).error is OK
    play.group.holds_rebalances = False
    for held in list(play.group.held_revocations):
        play.handle(RebalanceReleased(held))
    play.handle(RebalanceRequested())
    settle(play, *members, rounds=80)
    assert play.group.state_name == "Stable"
    everything = {
        (topic, at)
        for topic, name in ((T, "t"), (U, "u"))
        for at in range(len(play.image.topics[name].partitions))
    }
    assert sorted(each for member in members for each in member.partitions) == sorted(everything)
    assert play.time.wall_ms > START_MS


def _random_assignment(play: ConsumerPlay, random: Random, ids: list[str]) -> ActionTaken:
    named = random.sample(ids, random.randint(1, len(ids)))
    assignment: dict[str, dict[str, list[int]]] = {member: {"t": [], "u": []} for member in named}
    for topic in "tu":
        for at in range(len(play.image.topics[topic].partitions)):
            if random.random() < 0.8:
                assignment[random.choice(named)][topic].append(at)
    return assign(play, **assignment)


def test_group_that_is_loaded_after_an_action_is_the_same() -> None:
    play = ConsumerPlay(t=4)
    a, b = settled(play, "a", "b")
    assign(play, a={"t": [0]}, b={})
    play.restart()
    assert isinstance(play.group, ConsumerGroup)
    settle(play, a, b)
    assert (owned(a), owned(b)) == ({T: {0}}, {})
