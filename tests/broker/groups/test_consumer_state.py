"""The state of a consumer group follows from its records alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from minibroker.broker.groups.consumer_member import ConsumerMember, MemberState
from minibroker.broker.groups.consumer_records import RecordKind
from minibroker.broker.groups.consumer_state import (
    ConsumerGroupData,
    ConsumerGroupState,
    Owner,
    ResolvedRegex,
    is_homogeneous,
    topics_hash,
)
from minibroker.broker.groups.group import RequestRejected, check_instance
from minibroker.broker.metadata.image import Broker, Image, Topic, TopicCreated, apply
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.types import uuid_from_text
from tests.broker.groups.consumer_play import ConsumerPlay, partitions, topic_id

T = topic_id("t")
MEMBER = ConsumerMember(
    member_id="m",
    member_epoch=3,
    instance_id="s",
    topics=frozenset({"t"}),
    regex="u.*",
    assignor="range",
    assigned={T: {0: 3}},
    pending_revocation={T: {1: 2}},
)


def data_with(member: ConsumerMember) -> ConsumerGroupData:
    data = ConsumerGroupData("g")
    data.apply(data.epoch_record(3, 9))
    data.apply(member.metadata_record("g"))
    data.apply(data.target_record("m", {T: (0, 2)}))
    data.apply(member.assignment_record("g"))
    return data


def test_member_is_counted_and_owns_what_it_has_and_must_revoke() -> None:
    data = data_with(MEMBER)
    assert data.members == {"m": MEMBER}
    assert (data.names, data.regexes, data.assignors) == ({"t": 1}, {"u.*": 1}, {"range": 1})
    assert data.owners == {(T, 0): Owner("m", 3), (T, 1): Owner("m", 3)}
    assert data.static_member("s") == MEMBER
    assert data.target_of(replace(MEMBER, member_id="other")) == {T: (0, 2)}
    assert data.current_state() is ConsumerGroupState.ASSIGNING


def test_tombstones_leave_nothing() -> None:
    data = data_with(MEMBER)
    for record in data.tombstones():
        data.apply(record)
    assert (data.members, data.targets, data.owners) == ({}, {}, {})
    assert (data.names, data.regexes, data.assignors) == ({}, {}, {})
    assert data.static_member("s") is None
    assert data.current_state() is ConsumerGroupState.EMPTY


def test_removed_assignment_frees_partitions() -> None:
    data = data_with(MEMBER)
    data.apply(data.tombstone(RecordKind.CURRENT, "m"))
    assert data.is_free(T, 0)
    assert data.members["m"].member_epoch == -1


def test_missing_partitions_name_the_member_that_has_them() -> None:
    data = data_with(MEMBER)
    other = ConsumerMember(member_id="o", state=MemberState.UNRELEASED_PARTITIONS)
    data.apply(other.metadata_record("g"))
    data.apply(data.target_record("o", {T: (1, 5)}))
    assert data.missing_partitions(other) == [(T, 1, Owner("m", 3))]


def test_unknown_member_and_other_instance_are_rejected() -> None:
    data = data_with(MEMBER)
    with pytest.raises(RequestRejected, match="is not a member of group g") as rejected:
        data.member("x")
    assert rejected.value.error is ErrorCode.UNKNOWN_MEMBER_ID
    with pytest.raises(RequestRejected, match="was fenced by member m") as rejected:
        check_instance(MEMBER, "x", "s")
    assert rejected.value.error is ErrorCode.FENCED_INSTANCE_ID


def test_subscriptions_are_homogeneous_if_all_members_name_the_same_topics() -> None:
    assert is_homogeneous({"t": 2}, {}, {}, 2)
    assert not is_homogeneous({"t": 2, "u": 1}, {}, {}, 2)
    resolved = {"u.*": ResolvedRegex(frozenset({"u"}))}
    assert is_homogeneous({}, {"u.*": 2}, resolved, 2)
    assert not is_homogeneous({"t": 1}, {"u.*": 2}, resolved, 2)
    assert not is_homogeneous({}, {"u.*": 1}, resolved, 2)


def test_hash_of_topics_is_that_of_kafka() -> None:
    """The group epoch that Kafka 4.4 wrote for a topic with six partitions."""
    topic = Topic("orders", uuid_from_text("f684xxrJTumuKywdIPbwuA"), partitions(0, 6))
    image = apply(Image(), TopicCreated(topic))
    assert topics_hash(image, ["orders"]) == -2661676772421926224
    other = replace(image, brokers={9: Broker(9, "rack of no replica", {})})
    assert topics_hash(other, ["orders"]) == -2661676772421926224


def test_hash_of_topics_changes_with_their_partitions() -> None:
    play = ConsumerPlay(t=1)
    before = topics_hash(play.image, ["t", "gone"])
    assert before == topics_hash(play.image, ["t"]) != 0
    assert topics_hash(play.image, ["gone"]) == 0
    play.add_partitions("t", 2)
    assert topics_hash(play.image, ["t"]) != before
