"""Requests are checked by the meanings of their fields, and denied parts get errors."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.authorization.checks import allowed, authorized
from minibroker.broker.apis.registry import APIS
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.security.acl import TOPIC_OPERATIONS, Operation, Resource
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from minibroker_protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from minibroker_protocol.messages.describe_cluster import DescribeClusterRequest
from minibroker_protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
)
from minibroker_protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from minibroker_protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from minibroker_protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from minibroker_protocol.registry import ApiKey
from tests.broker.apis.authorization.callers import ALICE, ROOT, SETTINGS, ask_as, grant
from tests.broker.apis.conftest import ApisMaker


async def test_allowed_splits_names_by_authorization_and_keeps_null_names(
    make_apis: ApisMaker,
) -> None:
    apis = await make_apis(*SETTINGS)
    await grant(apis, Resource.TOPIC, "cats", Operation.READ)
    apis.principal = ALICE
    ctx = apis.context(0, 0)
    names = ["cats", "dogs", None, "cats"]
    assert allowed(ctx, Operation.READ, Resource.TOPIC, names, lambda name: name) == (
        ["cats", None, "cats"],
        ["dogs"],
    )
    assert authorized(ctx, Resource.TOPIC, "cats") == 1 << Operation.READ | 1 << Operation.DESCRIBE
    apis.principal = ROOT
    assert authorized(apis.context(0, 0), Resource.TOPIC, "dogs") == TOPIC_OPERATIONS


async def test_cluster_authorized_operations_follow_acls(make_apis: ApisMaker) -> None:
    apis = await make_apis(*SETTINGS)
    await grant(apis, Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE)
    request = DescribeClusterRequest(include_cluster_authorized_operations=True)
    response = await ask_as(apis, ALICE, request, 0)
    assert response.cluster_authorized_operations == 1 << Operation.DESCRIBE


KINDS = {(2, "mine"): 0, (2, "theirs"): 29, (4, "1"): 31, (32, "a-group"): 30, (8, "x"): 31}
"""Resources by type and name, and the error of a client with rights to the first one only."""


@pytest.fixture
async def apis(make_apis: ApisMaker) -> Any:
    made = await make_apis(*SETTINGS)
    await made.create_topics([NewTopic("mine"), NewTopic("theirs")])
    await grant(made, Resource.TOPIC, "mine", Operation.ALTER_CONFIGS)
    return made


async def test_each_config_resource_requires_its_own_permission(apis: Any) -> None:
    described = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
            for kind, name in KINDS
        ]
    )
    response = await ask_as(apis, ALICE, described, 4)
    found = {(one.resource_type, one.resource_name): one.error_code for one in response.results}
    assert found == KINDS
    altered = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name="retention.ms", config_operation=0, value="1")],
            )
            for kind, name in KINDS
        ]
    )
    response = await ask_as(apis, ALICE, altered, 1)
    found = {(one.resource_type, one.resource_name): one.error_code for one in response.responses}
    assert found == KINDS
    assert apis.cluster.image.topic_overrides("mine") == {"retention.ms": "1"}
    assert apis.cluster.image.topic_overrides("theirs") == {}


async def test_describe_configs_on_cluster_allows_brokers_but_not_topics(apis: Any) -> None:
    await grant(apis, Resource.CLUSTER, "kafka-cluster", Operation.DESCRIBE_CONFIGS)
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((4, "1"), (2, "theirs"))
    ]
    response = await ask_as(apis, ALICE, DescribeConfigsRequest(resources=resources), 4)
    assert [one.error_code for one in response.results] == [
        0,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ]


REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_denied_move_of_logs_has_an_error_per_partition(make_apis: ApisMaker) -> None:
    apis: Any = await make_apis(*SETTINGS)
    topics = [AlterReplicaLogDirTopic(name="t", partitions=[0, 1])]
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="/", topics=topics)])
    [result] = (await ask_as(apis, ALICE, request, 2)).results
    assert [partition.error_code for partition in result.partitions] == [REFUSED, REFUSED]


async def test_denied_description_of_logs_is_empty(make_apis: ApisMaker) -> None:
    apis: Any = await make_apis(*SETTINGS)
    for version in range(1, 6):
        response = await ask_as(apis, ALICE, DescribeLogDirsRequest(topics=None), version)
        assert response.results == []
        assert response.error_code == (REFUSED if version >= 3 else ErrorCode.NONE)


async def test_denied_election_has_an_error_per_partition(make_apis: ApisMaker) -> None:
    apis: Any = await make_apis(*SETTINGS)
    wanted = [TopicPartitions(topic="t", partitions=[0])]
    response = await ask_as(apis, ALICE, ElectLeadersRequest(topic_partitions=wanted), 2)
    assert response.error_code == REFUSED
    [result] = response.replica_election_results
    assert [partition.error_code for partition in result.partition_result] == [REFUSED]


async def test_denied_reassignment_has_an_error_per_partition(make_apis: ApisMaker) -> None:
    apis: Any = await make_apis(*SETTINGS)
    part = ReassignablePartition(partition_index=3, replicas=[1])
    topics = [ReassignableTopic(name="t", partitions=[part])]
    response = await ask_as(apis, ALICE, AlterPartitionReassignmentsRequest(topics=topics), 1)
    assert response.error_code == REFUSED
    [result] = response.responses
    assert [partition.error_code for partition in result.partitions] == [REFUSED]


async def test_denied_list_of_reassignments_names_the_requested_partitions(
    make_apis: ApisMaker,
) -> None:
    apis: Any = await make_apis(*SETTINGS)
    topics = [ListPartitionReassignmentsTopics(name="t", partition_indexes=[3])]
    response = await ask_as(apis, ALICE, ListPartitionReassignmentsRequest(topics=topics), 0)
    assert response.error_code == REFUSED
    [topic] = response.topics
    assert [(one.partition_index, one.replicas) for one in topic.partitions] == [(3, [])]


async def test_repeated_config_resource_is_denied_each_time_and_logged_once(apis: Any) -> None:
    resource = DescribeConfigsResource(resource_type=4, resource_name="1")
    request = DescribeConfigsRequest(resources=[resource, resource])
    apis.principal = ALICE
    ctx = apis.context(ApiKey.DESCRIBE_CONFIGS, 4)
    denied = []
    ctx.denied = lambda *what: denied.append(what)
    api = APIS[ApiKey.DESCRIBE_CONFIGS]
    assert api.split(ctx, request) == {}
    response: Any = api.merge(ctx, request, {})
    assert [each.error_code for each in response.results] == [31, 31]
    assert denied == [(Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, "kafka-cluster")]
