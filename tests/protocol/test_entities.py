"""Entities of messages are found by the schemas."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker_protocol import registry
from minibroker_protocol.compiler import encode
from minibroker_protocol.entities import (
    MessageEntity,
    Step,
    array_about,
    entities,
    error_element,
    error_response,
    frozen,
    selectable,
)
from minibroker_protocol.meanings import Meaning
from minibroker_protocol.messages import alter_replica_log_dirs as log_dirs
from minibroker_protocol.messages import create_acls, delete_records, describe_configs
from minibroker_protocol.messages import describe_client_quotas as quotas
from minibroker_protocol.messages import offset_fetch as of
from minibroker_protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest
from minibroker_protocol.messages.describe_log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from minibroker_protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from minibroker_protocol.messages.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from minibroker_protocol.messages.heartbeat import HeartbeatRequest
from minibroker_protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
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
from minibroker_protocol.registry import ApiKey, schema
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


# ---------------------------- Responses with an error name what the request named, in every version


def test_error_at_the_top_is_the_whole_response() -> None:
    response = error_response(
        FindCoordinatorResponse, 1, FindCoordinatorRequest(key="g"), 30, "denied"
    )
    assert response == FindCoordinatorResponse(
        error_code=30, error_message="denied", node_id=-1, port=-1
    )


@pytest.mark.parametrize(("version", "name"), [(6, ""), (7, None)])
def test_fields_that_may_be_null_are_null_in_an_error_response(
    version: int, name: str | None
) -> None:
    response = error_response(JoinGroupResponse, version, JoinGroupRequest(group_id="g"), 30)
    assert response == JoinGroupResponse(error_code=30, generation_id=-1, protocol_name=name)
    request = quotas.DescribeClientQuotasRequest(
        components=[quotas.ComponentData(entity_type="user", match_type=2)]
    )
    denied = error_response(quotas.DescribeClientQuotasResponse, 0, request, 31, "no")
    assert denied.entries is None


def test_each_partition_has_the_error_where_the_response_has_none() -> None:
    topic = of.OffsetFetchRequestTopic(name="t", partition_indexes=[3, 4])
    request = of.OffsetFetchRequest(group_id="g", topics=[topic])
    older = error_response(of.OffsetFetchResponse, 1, request, 30)
    [answered] = older.topics
    assert answered.name == "t"
    assert [(each.partition_index, each.error_code) for each in answered.partitions] == [
        (3, 30),
        (4, 30),
    ]
    assert {each.committed_offset for each in answered.partitions} == {-1}
    newer = error_response(of.OffsetFetchResponse, 2, request, 30)
    assert newer == of.OffsetFetchResponse(error_code=30)


def test_element_names_what_the_request_names_and_copies_nothing_else() -> None:
    partition = delete_records.DeleteRecordsPartition(partition_index=2, offset=77)
    topic = delete_records.DeleteRecordsTopic(name="t", partitions=[partition])
    assert error_element(delete_records.DeleteRecordsTopicResult, 2, topic, 29) == (
        delete_records.DeleteRecordsTopicResult(
            name="t",
            partitions=[
                delete_records.DeleteRecordsPartitionResult(
                    partition_index=2, low_watermark=-1, error_code=29
                )
            ],
        )
    )


def test_element_about_a_name_or_a_resource_of_a_type() -> None:
    assert error_element(DeletableGroupResult, 2, "g", 30) == (
        DeletableGroupResult(group_id="g", error_code=30)
    )
    resource = describe_configs.DescribeConfigsResource(resource_type=32, resource_name="g")
    made = error_element(describe_configs.DescribeConfigsResult, 4, resource, 30)
    assert (made.resource_type, made.resource_name, made.error_message) == (32, "g", None)


def test_results_without_names_correspond_to_the_request_by_position() -> None:
    request = create_acls.CreateAclsRequest(creations=[create_acls.AclCreation()] * 3)
    response = error_response(create_acls.CreateAclsResponse, 3, request, 31, "no")
    assert [(each.error_code, each.error_message) for each in response.results] == [(31, "no")] * 3


def test_topics_of_all_directories_have_a_result() -> None:
    topics = [
        log_dirs.AlterReplicaLogDirTopic(name=name, partitions=[0]) for name in ("t", "u", "v")
    ]
    request = log_dirs.AlterReplicaLogDirsRequest(
        dirs=[
            log_dirs.AlterReplicaLogDir(path="/a", topics=topics[:2]),
            log_dirs.AlterReplicaLogDir(path="/b", topics=topics[2:]),
        ]
    )
    response = error_response(log_dirs.AlterReplicaLogDirsResponse, 2, request, 31)
    assert [each.topic_name for each in response.results] == ["t", "u", "v"]


def test_results_about_something_else_are_left_out() -> None:
    response = error_response(DescribeLogDirsResponse, 2, DescribeLogDirsRequest(topics=[]), 31)
    assert response == DescribeLogDirsResponse()


def test_array_about_finds_the_results_by_meaning() -> None:
    [groups] = DeleteGroupsRequest.__fields__
    api = schema(ApiKey.DELETE_GROUPS)
    assert array_about(api.response, 2, groups) == ("results", DeletableGroupResult)


@pytest.mark.parametrize("key", ApiKey)
def test_error_response_of_every_api_and_version_can_be_encoded(key: ApiKey) -> None:
    api = schema(key)
    versions = api.valid_versions
    for version in range(versions.low, versions.high + 1):
        response: Any = error_response(api.response, version, api.request(), 31)
        assert encode(response, version)
