"""Requests that operate the cluster: the error is where clients look for it."""

from __future__ import annotations

from typing import Any

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
from minibroker_protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from minibroker_protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from minibroker_protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)
from tests.broker.apis.authorization.callers import ALICE, SETTINGS, ask_as
from tests.broker.apis.conftest import ApisMaker

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
