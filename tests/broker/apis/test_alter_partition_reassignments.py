"""AlterPartitionReassignments: only the present assignment is valid."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.alter_partition_reassignments import API
from minibroker.broker.metadata.image import Broker, BrokerChanged, apply
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)

INVALID = ErrorCode.INVALID_REPLICA_ASSIGNMENT
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture
async def settled(apis: Any) -> Any:
    outcome = await apis.cluster.create_topics([NewTopic("t", 2)])
    await apis.controller.publish(outcome.updates)
    return apis


async def alter(
    apis: Any, name: str, index: int, replicas: list[int] | None, version: int = 1
) -> tuple[int, str | None]:
    part = ReassignablePartition(partition_index=index, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=name, partitions=[part])],
        allow_replication_factor_change=version == 0,
    )
    response = await apis.ask(API, request, version)
    assert response.error_code == ErrorCode.NONE
    assert response.allow_replication_factor_change == (version == 0)
    [topic] = response.responses
    [result] = topic.partitions
    assert (topic.name, result.partition_index) == (name, index)
    return result.error_code, result.error_message


@pytest.mark.parametrize("version", [0, 1])
async def test_present_assignment_changes_nothing(settled: Any, version: int) -> None:
    assert await alter(settled, "t", 1, [1], version) == (ErrorCode.NONE, None)


@pytest.mark.parametrize(
    ("replicas", "text"),
    [
        ([], "an empty replica list"),
        ([2], "broker 2, but no such broker is registered"),
        ([1, -1], "broker -1, but no such broker is registered"),
        ([1, 1], "the broker 1 more than once"),
    ],
)
async def test_other_assignment_is_invalid(settled: Any, replicas: list[int], text: str) -> None:
    error, message = await alter(settled, "t", 0, replicas)
    assert error == INVALID
    assert text in str(message)


async def test_assignment_to_another_broker_of_the_image_is_refused(settled: Any) -> None:
    settled.image = apply(settled.cluster.image, BrokerChanged(Broker(2, None, {})))
    error, message = await alter(settled, "t", 0, [2])
    assert error == INVALID
    assert "no other broker" in str(message)


async def test_cancellation_finds_no_reassignment(settled: Any) -> None:
    error, _ = await alter(settled, "t", 0, None)
    assert error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


@pytest.mark.parametrize(("name", "index"), [("t", 2), ("t", -1), ("none", 0)])
@pytest.mark.parametrize("replicas", [[1], None])
async def test_unknown_partition_is_reported(
    settled: Any, name: str, index: int, replicas: list[int] | None
) -> None:
    error, _ = await alter(settled, name, index, replicas)
    assert error == UNKNOWN
