"""The state of a share group is what its records say."""

from __future__ import annotations

from dataclasses import replace

from minibroker.broker.groups.share_state import SharedPartitions, ShareGroupData, ShareMember
from minibroker.broker.metadata.image import (
    Image,
    PartitionsAdded,
    Topic,
    TopicCreated,
    apply,
)
from tests.broker.groups.consumer_play import partitions, topic_id

T = topic_id("t")


def test_records_make_a_member_and_tombstones_remove_it() -> None:
    data = ShareGroupData("g")
    member = ShareMember(
        member_id="m",
        member_epoch=3,
        previous_member_epoch=2,
        client_id="c",
        topics=frozenset({"t"}),
        assigned={T: (0, 2)},
    )
    data.apply(member.metadata_record("g"))
    data.apply(member.assignment_record("g"))
    data.apply(data.target_record("m", {T: (0, 2)}))
    data.apply(data.target_epoch_record(3, 77))
    data.apply(data.epoch_record(3, 5))
    assert data.members == {"m": member}
    assert data.targets == {"m": {T: (0, 2)}}
    assert (data.group_epoch, data.assignment_epoch, data.assignment_timestamp) == (3, 3, 77)
    assert data.topics_with(ShareMember(member_id="n", topics=frozenset({"t", "u"}))) == {
        "t": 2,
        "u": 1,
    }
    assert data.topics_without("m") == {}
    for record in data.removal("m"):
        data.apply(record)
    assert (data.members, data.targets) == ({}, {})


def test_partitions_with_a_state_are_stored_by_topic() -> None:
    data = ShareGroupData("g")
    shared = SharedPartitions({T: frozenset({1, 0})}, {}, frozenset({topic_id("u")}))
    data.apply(data.shared_record(shared, Image()))
    assert data.shared == shared
    for record in data.tombstones():
        data.apply(record)
    assert data.shared == SharedPartitions()


def test_shares_of_an_image_are_found_again_only_after_a_record_that_concerns_them() -> None:
    image = apply(Image(), TopicCreated(Topic("t", T, partitions(0, 2))))
    data = ShareGroupData("g")
    member = ShareMember(member_id="m", topics=frozenset({"t"}))
    data.apply(member.metadata_record("g"))
    found = data.shares(image)
    assert (found.unshared, found.is_unassigned) == ({T: frozenset({0, 1})}, False)
    data.apply(replace(member, member_id="n").metadata_record("g"))
    data.apply(replace(member, member_epoch=4).assignment_record("g"))
    assert data.shares(image) is found
    data.apply(data.shared_record(SharedPartitions({T: frozenset({0, 1})}), image))
    data.apply(data.target_epoch_record(2, 7))
    assert data.shares(image)[1:] == ({}, True)
    data.apply(data.target_record("m", {T: (0,)}))
    data.apply(data.target_record("n", {T: (1,)}))
    assert data.shares(image)[1:] == ({}, False)
    grown = apply(image, PartitionsAdded("t", partitions(2, 3)))
    assert data.shares(grown)[1:] == ({T: frozenset({2})}, False)
    for member_id in ("m", "n"):
        for record in data.removal(member_id):
            data.apply(record)
    assert (data.topics, data.shares(grown)[1:]) == ({}, ({}, False))
