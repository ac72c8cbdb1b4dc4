"""Entities of messages are found by the schemas."""

from __future__ import annotations

import pytest

from minibroker_protocol import registry
from minibroker_protocol.entities import MessageEntity, Step, entities, frozen, selectable
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from minibroker_protocol.messages.find_coordinator import FindCoordinatorRequest
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from minibroker_protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from minibroker_protocol.messages.metadata import MetadataRequest
from minibroker_protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from minibroker_protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from minibroker_protocol.registry import ApiKey
from tests.lab.faults.messages import keys_in, request_of, served_versions

TOPIC, PARTITION, GROUP, MEMBER = (
    Meaning.TOPIC,
    Meaning.PARTITION,
    Meaning.GROUP,
    Meaning.MEMBER,
)


def test_partitions_are_found_with_their_topic_and_transaction() -> None:
    request = ProduceRequest(
        transactional_id="tx",
        topic_data=[
            TopicProduceData(name="a", partition_data=[PartitionProduceData(index=3)]),
            TopicProduceData(name="b", partition_data=[PartitionProduceData(index=0)]),
        ],
    )
    transaction = {Meaning.TRANSACTIONAL_ID: "tx"}
    assert entities(request, 9) == [
        MessageEntity(
            {**transaction, TOPIC: "a", PARTITION: 3},
            (Step("topic_data", 0), Step("partition_data", 0)),
        ),
        MessageEntity(
            {**transaction, TOPIC: "b", PARTITION: 0},
            (Step("topic_data", 1), Step("partition_data", 0)),
        ),
    ]


def test_request_without_arrays_is_one_entity() -> None:
    request = HeartbeatRequest(group_id="g", member_id="m")
    assert entities(request, 4) == [MessageEntity({GROUP: "g", MEMBER: "m"}, ())]
    joining = JoinGroupRequest(group_id="g", protocols=[JoinGroupRequestProtocol(name="range")])
    assert entities(joining, 9) == [MessageEntity({GROUP: "g", MEMBER: ""}, ())]


def test_request_about_all_topics_names_none() -> None:
    assert entities(MetadataRequest(topics=None), 12) == [MessageEntity({}, ())]


def test_fields_of_other_versions_are_ignored() -> None:
    request = LeaveGroupRequest(
        group_id="g", member_id="old", members=[MemberIdentity(member_id="new")]
    )
    assert [each.keys[MEMBER] for each in entities(request, 1)] == ["old"]
    assert [each.keys[MEMBER] for each in entities(request, 5)] == ["new"]


def test_partition_numbers_in_an_array_are_entities() -> None:
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[4, 5])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=topics)])
    found = entities(request, 8)
    assert [(each.keys[GROUP], each.keys[TOPIC], each.keys[PARTITION]) for each in found] == [
        ("g", "t", 4),
        ("g", "t", 5),
    ]


def test_forgotten_partitions_of_a_fetch_are_no_entities() -> None:
    request = FetchRequest(
        topics=[FetchTopic(topic="a", partitions=[FetchPartition(partition=1)])],
        forgotten_topics_data=[ForgottenTopic(topic="b", partitions=[2])],
    )
    assert [each.keys[PARTITION] for each in entities(request, 12)] == [1]


@pytest.mark.parametrize(
    ("kind", "key"), [(0, Meaning.GROUP), (1, Meaning.TRANSACTIONAL_ID), (2, None)]
)
def test_coordinator_key_means_what_its_type_says(kind: int, key: Meaning | None) -> None:
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=["x", "y"])
    found = entities(request, 6)
    assert [each.keys.get(key) if key else None for each in found] == (
        ["x", "y"] if key else [None, None]
    )


def test_every_key_of_every_request_is_found() -> None:
    for key, version in served_versions():
        request = request_of(key, version)
        found = entities(request, version)
        named = {(name, frozen(value)) for each in found for name, value in each.keys.items()}
        expected = {
            each for each in keys_in(request, version) if each[0] in selectable(type(request))
        }
        if key in {ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.SYNC_GROUP, ApiKey.FETCH}:
            continue  # They name more than what they are about.
        assert expected <= named, (key.name, version)


def test_topics_of_requests_with_ids_can_be_selected_by_name() -> None:
    schema = registry.schema(ApiKey.PRODUCE)
    assert {TOPIC, Meaning.TOPIC_ID} <= selectable(schema.request)
    assert selectable(registry.schema(ApiKey.LIST_GROUPS).request) == set()
