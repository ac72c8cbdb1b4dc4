"""A consumer group: fences, reconciliation, epochs, static members, expressions and timeouts."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from minibroker.broker.groups.consumer_member import MemberState
from minibroker.broker.groups.consumer_state import ConsumerGroupState
from minibroker.broker.groups.events import (
    CommitRequested,
    CommitResult,
    ConsumerHeartbeat,
    MemberExpired,
    Removed,
)
from minibroker.broker.groups.group import ConsumerLimits, GroupLimits, GroupTimes
from minibroker.broker.metadata.image import TopicDeleted, apply
from minibroker_protocol.errors import ErrorCode
from tests.broker.groups.consumer_play import ConsumerPlay, PlayedMember, settle, topic_id

OK = ErrorCode.NONE
T, U = topic_id("t"), topic_id("u")


def test_first_member_gets_all_partitions_at_once() -> None:
    play = ConsumerPlay(t=3)
    result = play.join("a", "t")
    assert result == (OK, None, "a", 2, 5000, ((T, (0, 1, 2)),))
    assert play.group.state_name == ConsumerGroupState.STABLE.value
    assert (play.group.data.group_epoch, play.group.data.assignment_epoch) == (2, 2)


def test_member_without_id_is_given_one() -> None:
    assert ConsumerPlay(t=1).join("", "t").member_id == "id1"


def test_assignment_is_sent_only_if_it_changes_or_is_asked_for() -> None:
    play = ConsumerPlay(t=1)
    play.join("a", "t")
    assert play.beat("a", 2).assignment is None
    assert play.beat("a", 2, owned=((T, (0,)),)).assignment is None
    full = play.beat("a", 2, topics=("t",), rebalance_timeout_ms=30_000, owned=((T, (0,)),))
    assert full.assignment == ((T, (0,)),)
    written = len(play.records)
    play.beat("a", 2)
    assert len(play.records) == written


def test_heartbeat_that_changes_nothing_only_extends_the_session() -> None:
    play = ConsumerPlay(t=3)
    one = PlayedMember(play, "m", "t")
    settle(play, one)
    before = play.extensions
    one.beat()
    assert play.extensions == before + 1
    play.sleep(40)
    play.beat("m", one.epoch)
    assert play.repeats.count >= 1
    play.sleep(40)
    assert list(play.group.data.members) == ["m"]
    unlike: list[dict[str, Any]] = [
        {"topics": ("t", "u")},
        {"regex": "t.*"},
        {"assignor": "range"},
        {"rack_id": "r"},
        {"instance_id": "s"},
        {"rebalance_timeout_ms": 7},
        {"client_id": "c"},
        {"topics": ("t",), "rebalance_timeout_ms": 30_000, "owned": ()},
    ]
    for fields in unlike:
        assert not play.group.only_extends_session(ConsumerHeartbeat("m", one.epoch, **fields))
    play.create_topic("u", 1)
    play.group.image = play.image
    assert not play.group.only_extends_session(ConsumerHeartbeat("m", one.epoch))


def test_heartbeat_only_extends_the_session_while_the_next_target_is_not_due() -> None:
    play = ConsumerPlay(t=3)
    play.join("a", "t")
    joined = play.join("b", "t")  # Within the assignment interval.
    epoch = play.member("a").member_epoch
    assert joined.member_epoch == epoch == play.group.data.assignment_epoch
    assert play.group.state_name == ConsumerGroupState.ASSIGNING.value
    play.beat("a", epoch)  # Computes the hash of the topics again.
    before = play.extensions
    assert play.beat("a", epoch).member_epoch == epoch
    assert play.beat("b", epoch).member_epoch == epoch
    assert play.extensions == before + 2
    play.sleep(0.999)
    play.beat("a", epoch)
    assert play.extensions == before + 3
    play.sleep(0.001)
    play.beat("a", epoch)
    assert play.extensions == before + 3
    assert play.group.data.assignment_epoch == play.group.data.group_epoch > epoch


def test_second_member_gets_partitions_only_when_the_first_has_revoked_them() -> None:
    play = ConsumerPlay(t=4)
    play.join("a", "t")
    play.sleep(1)
    joined = play.join("b", "t")
    assert (joined.member_epoch, joined.assignment) == (3, ())
    assert play.group.state_name == ConsumerGroupState.RECONCILING.value
    assert play.member("b").state is MemberState.UNRELEASED_PARTITIONS
    revoking = play.beat("a", 2)
    assert revoking.member_epoch == 2
    assert revoking.assignment is not None
    [(_, kept)] = revoking.assignment
    assert len(kept) == 2
    assert play.beat("a", 2).member_epoch == 2  # null: nothing is revoked yet
    assert play.beat("b", 3).assignment is None
    assert play.group.data.missing_partitions(play.member("b"))
    assert play.beat("a", 2, owned=((T, kept),)).member_epoch == 3
    given = play.beat("b", 3).assignment
    assert given is not None
    assert set(given[0].partitions) == {0, 1, 2, 3} - set(kept)
    assert play.group.state_name == ConsumerGroupState.STABLE.value


def test_target_is_computed_once_in_an_assignment_interval() -> None:
    play = ConsumerPlay(t=4)
    play.join("a", "t")
    assert play.join("b", "t").member_epoch == 2
    assert play.group.state_name == ConsumerGroupState.ASSIGNING.value
    play.sleep(0.999)
    assert play.beat("b", 2).member_epoch == 2
    play.sleep(0.001)
    assert play.beat("b", 2).member_epoch == 3
    assert play.group.state_name == ConsumerGroupState.RECONCILING.value


def test_epochs_of_others_are_fenced_with_kafka_s_texts() -> None:
    play = ConsumerPlay(t=2)
    play.join("a", "t")
    play.sleep(1)
    member = PlayedMember(play, "b", "t")
    member.beat()
    assert play.error("x", 2) == (
        ErrorCode.UNKNOWN_MEMBER_ID,
        "Member x is not a member of group g.",
    )
    error, text = play.error("a", 3)
    assert error is ErrorCode.FENCED_MEMBER_EPOCH
    assert text == (
        "The consumer group member has a greater member epoch (3) than the one known by the group "
        "coordinator (2). The member must abandon all its partitions and rejoin."
    )
    error, text = play.error("a", 1)
    assert error is ErrorCode.FENCED_MEMBER_EPOCH
    assert text is not None
    assert "smaller member epoch (1)" in text
    assert play.join("a", "t").error is OK  # epoch 0 is always a rejoin


def test_lost_answer_may_be_asked_for_again_with_the_previous_epoch() -> None:
    play = ConsumerPlay(t=4)
    first, second = PlayedMember(play, "a", "t"), PlayedMember(play, "b", "t")
    first.beat()
    play.sleep(1)
    second.beat()
    first.beat()
    lost = first.beat(is_lost=True)
    assert (first.epoch, lost.member_epoch) == (2, 3)
    assert play.error("a", 2)[0] is ErrorCode.FENCED_MEMBER_EPOCH  # it does not say what it owns
    assert play.error("a", 2, owned=((T, (0, 1, 2, 3)),))[0] is ErrorCode.FENCED_MEMBER_EPOCH
    again = first.beat()
    assert (again.error, again.member_epoch) == (OK, 3)


def test_static_member_that_left_returns_with_its_partitions() -> None:
    play = ConsumerPlay(t=4)
    play.join("a", "t", instance_id="s")
    play.sleep(1)
    other = PlayedMember(play, "b", "t")
    settle(play, other)
    error, text = play.join("c", "t", instance_id="s")[:2]
    assert error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert text == (
        "Static member c with instance id s cannot join the group because the instance id is owned "
        "by a member."
    )
    epoch = play.member("a").member_epoch
    assert play.beat("a", -2, instance_id="s")[:4] == (OK, None, "a", -2)
    before = play.group.data.group_epoch
    returned = play.join("c", "t", instance_id="s")
    assert returned.error is OK
    assert returned.member_epoch == play.group.data.assignment_epoch >= epoch
    assert play.group.data.group_epoch == before
    assert "a" not in play.group.data.members
    assert play.error("a", epoch, instance_id="s")[0] is ErrorCode.FENCED_INSTANCE_ID
    assert play.error("x", 1, instance_id="unknown") == (
        ErrorCode.UNKNOWN_MEMBER_ID,
        "Instance id unknown is unknown.",
    )


def test_static_member_that_does_not_return_is_removed_after_its_session() -> None:
    play = ConsumerPlay(t=1)
    play.join("a", "t", instance_id="s")
    play.beat("a", -2, instance_id="s")
    play.sleep(44.9)
    assert play.group.members_count == 1
    play.sleep(0.2)
    assert play.group.state_name == ConsumerGroupState.EMPTY.value


def test_silent_member_is_removed_and_its_partitions_go_to_others() -> None:
    play = ConsumerPlay(t=2)
    play.join("a", "t")
    play.sleep(1)
    other = PlayedMember(play, "b", "t")
    for _ in range(46):
        play.sleep(1)
        other.beat()
    assert list(play.group.data.members) == ["b"]
    assert other.partitions == {(T, 0), (T, 1)}


def test_member_that_does_not_revoke_is_removed_after_its_rebalance_timeout() -> None:
    play = ConsumerPlay(t=2)
    play.join("a", "t", rebalance_timeout_ms=10_000)
    play.sleep(1)
    play.join("b", "t")
    play.beat("a", 2)
    for _ in range(9):
        play.sleep(1)
        play.beat("a", 2)
    assert "a" in play.group.data.members
    play.sleep(1)
    assert list(play.group.data.members) == ["b"]


def test_leaving_member_releases_its_partitions() -> None:
    play = ConsumerPlay(t=2)
    members = [PlayedMember(play, each, "t") for each in "ab"]
    settle(play, *members)
    assert play.beat("a", -1)[:4] == (OK, None, "a", -1)
    settle(play, members[1])
    assert members[1].partitions == {(T, 0), (T, 1)}
    assert play.beat("b", -1).error is OK
    assert play.group.state_name == ConsumerGroupState.EMPTY.value
    assert play.group.data.group_epoch == play.group.data.assignment_epoch


def test_full_group_rejects_another_member() -> None:
    limits = GroupLimits(consumer=ConsumerLimits(members_max=1))
    play = ConsumerPlay(limits, t=2)
    play.join("a", "t")
    assert play.join("b", "t")[:2] == (
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        "The consumer group has reached its maximum capacity of 1 members.",
    )
    assert play.join("a", "t").error is OK


def test_new_partitions_are_assigned() -> None:
    play = ConsumerPlay(t=1)
    member = PlayedMember(play, "a", "t")
    member.beat()
    play.add_partitions("t", 3)
    settle(play, member)
    assert member.partitions == {(T, 0), (T, 1), (T, 2)}


def test_topic_that_is_created_later_and_one_that_is_deleted_change_assignments() -> None:
    play = ConsumerPlay(t=1)
    member = PlayedMember(play, "a", "t", "u")
    member.beat()
    play.create_topic("u", 2)
    settle(play, member)
    assert member.partitions == {(T, 0), (U, 0), (U, 1)}
    play.image = apply(play.image, TopicDeleted("t", T))
    settle(play, member)
    assert member.partitions == {(U, 0), (U, 1)}


def test_assignor_of_most_members_is_used() -> None:
    play = ConsumerPlay(t=2, u=2)
    members = [PlayedMember(play, each, "t", "u", assignor="range") for each in "ab"]
    settle(play, *members)
    assert play.group.assignor == "range"
    assert [each.partitions for each in members] == [{(T, 0), (U, 0)}, {(T, 1), (U, 1)}]


def test_expression_is_resolved_after_the_answer_and_again_for_new_topics() -> None:
    play = ConsumerPlay(t1=1, other=1)
    member = PlayedMember(play, "a", topics=None, regex="t.*")
    first = member.beat()
    assert (first.member_epoch, first.assignment) == (1, ())
    assert play.group.data.group_epoch == 2
    member.beat()
    assert member.partitions == {(topic_id("t1"), 0)}
    play.create_topic("t2", 1)
    play.sleep(5)
    member.beat()
    assert len(member.partitions) == 1  # expressions are matched once in ten seconds
    play.sleep(6)
    member.beat()
    settle(play, member)
    assert len(member.partitions) == 2
    assert play.group.is_subscribed("t2")


def test_expression_matches_only_topics_that_the_client_may_describe() -> None:
    play = ConsumerPlay(t1=1, t2=1)
    member = PlayedMember(play, "a", topics=None, regex="t.*", described_topics=frozenset({"t2"}))
    settle(play, member)
    assert member.partitions == {(topic_id("t2"), 0)}


def test_invalid_expression_is_rejected() -> None:
    play = ConsumerPlay(t=1)
    error, text = play.join("a", topics=None, regex="t(")[:2]
    assert error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert text is not None
    assert text.startswith("SubscribedTopicRegex `t(` is not a valid regular expression: ")
    assert play.group.members_count == 0


def test_changed_subscription_revokes_topics_that_were_left() -> None:
    play = ConsumerPlay(t=1, u=1)
    play.join("a", "t")
    changed = play.beat("a", 2, topics=("u",))
    assert changed.assignment == ()
    play.sleep(1)
    assert play.beat("a", changed.member_epoch, owned=()).assignment == ((U, (0,)),)


def test_group_configs_override_settings() -> None:
    play = ConsumerPlay(t=1)
    play.configure(consumer_session_timeout_ms="50000", consumer_heartbeat_interval_ms="7000")
    assert play.join("a", "t").heartbeat_interval_ms == 7000
    play.sleep(49)
    assert play.group.members_count == 1
    play.sleep(2)
    assert play.group.members_count == 0


def test_failed_write_changes_nothing() -> None:
    play = ConsumerPlay(t=1)
    play.write_error = ErrorCode.NOT_COORDINATOR
    assert play.join("a", "t").error is ErrorCode.NOT_COORDINATOR
    assert play.group.members_count == 0
    play.write_error = OK
    assert play.join("a", "t").assignment == ((T, (0,)),)


def test_restored_group_goes_on_with_the_same_epochs() -> None:
    play = ConsumerPlay(t=4)
    members = [PlayedMember(play, each, "t") for each in "ab"]
    members[0].beat()
    play.sleep(1)
    members[1].beat()
    play.restart()
    settle(play, *members)
    assert sorted(len(each.partitions) for each in members) == [2, 2]
    assert {each.epoch for each in members} == {3}
    play.restart()
    play.sleep(46)
    assert play.group.members_count == 0


def test_removed_member_of_a_test_joins_again() -> None:
    play = ConsumerPlay(t=1)
    member = PlayedMember(play, "a", "t")
    member.beat()
    assert play.handle(MemberExpired("x")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert play.handle(MemberExpired("a")) == (OK, "", 1)
    assert member.beat().error is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.beat().error is OK


def test_deleted_group_is_dead() -> None:
    play = ConsumerPlay(t=1)
    play.join("a", "t")
    play.group.handle(Removed(), play.time)
    assert play.group.state_name == ConsumerGroupState.DEAD.value


# Offsets ------------------------------------------------------------------------------------------


def commit(play: ConsumerPlay, epoch: int, *partitions: int, **fields: Any) -> ErrorCode:
    event = CommitRequested("a", epoch, partitions=tuple(("t", each) for each in partitions))
    result = play.handle(event._replace(**fields))
    assert isinstance(result, CommitResult)
    return result.error


def test_commit_with_an_older_epoch_is_judged_by_the_epochs_of_the_partitions() -> None:
    play = ConsumerPlay(t=4)
    first, second = PlayedMember(play, "a", "t"), PlayedMember(play, "b", "t")
    settle(play, first, second)
    kept = sorted(each for _, each in first.partitions)
    assert commit(play, 3, *kept) is OK
    assert commit(play, 2, *kept) is OK
    assert commit(play, 1, *kept) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(play, 4, *kept) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(play, 2, *range(4)) is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(play, 3, 0, member_id="x") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(play, 3, 0, knows_epochs=False) is ErrorCode.UNSUPPORTED_VERSION
    assert commit(play, -1, 0, member_id="") is ErrorCode.UNKNOWN_MEMBER_ID
    anonymous: dict[str, Any] = {"member_id": "", "transactional": True}
    assert commit(play, -1, 0, **anonymous) is OK


def test_empty_group_accepts_commits_without_a_member() -> None:
    play = ConsumerPlay(t=1)
    assert commit(play, -1, 0, member_id="") is OK


def test_fetch_of_offsets_requires_the_exact_epoch() -> None:
    play = ConsumerPlay(t=1)
    play.join("a", "t")
    fetch = play.group.validate_offset_fetch
    assert fetch(None, -1) is OK
    assert fetch("a", 2) is OK
    assert fetch("a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("a", 3) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch("x", 2) is ErrorCode.UNKNOWN_MEMBER_ID


# Lost and repeated heartbeats ---------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(15))
def test_group_converges_with_lost_repeated_and_late_heartbeats(seed: int) -> None:
    random = Random(seed)
    limits = GroupLimits(consumer=ConsumerLimits(times=GroupTimes(assignment_interval_ms=1500)))
    play = ConsumerPlay(limits, t=random.randint(1, 9), u=random.randint(1, 9))
    members: list[PlayedMember] = []
    for step in range(120):
        play.sleep(random.choice((0.1, 0.5, 1, 5)))
        action = random.random()
        if action < 0.06 and len(members) < 7:
            topics = random.choice((("t",), ("u",), ("t", "u")))
            assignor = random.choice((None, "range", "uniform"))
            members.append(PlayedMember(play, f"m{step}", *topics, assignor=assignor))
        elif action < 0.09 and members:
            member = members.pop(random.randrange(len(members)))
            if random.random() < 0.5 and member.member_id in play.group.data.members:
                play.beat(member.member_id, -1)
        elif action < 0.11:
            play.restart()
        elif action < 0.13:
            name = random.choice("tu")
            play.add_partitions(name, len(play.image.topics[name].partitions) + 1)
        for member in random.sample(members, random.randint(0, len(members))):
            member.beat(is_lost=random.random() < 0.25)
            if random.random() < 0.1:
                member.beat()
    for _ in range(60):
        play.sleep(1)
        for member in members:
            member.beat()
    assert play.group.data.members.keys() == {each.member_id for each in members}
    if members:
        assert play.group.state_name == ConsumerGroupState.STABLE.value
        subscribed = {name for each in members for name in each.topics}
        everything = {
            (topic_id(name), at)
            for name in subscribed
            for at in range(len(play.image.topics[name].partitions))
        }
        owned = [partition for each in members for partition in each.partitions]
        assert len(owned) == len(set(owned))
        assert set(owned) == everything
        assert {each.epoch for each in members} == {play.group.data.group_epoch}
