"""CreatePartitions: growth, rejections, and validation that changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.create_partitions import API
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)


@pytest.fixture
async def with_topic(apis: Any) -> Any:
    outcome = await apis.cluster.create_topics([NewTopic("a", 1)])
    await apis.controller.publish(outcome.updates)
    return apis


def grow(*topics: tuple[str, int], validate_only: bool = False) -> CreatePartitionsRequest:
    return CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=n, count=c, assignments=None) for n, c in topics],
        validate_only=validate_only,
    )


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_created_and_unknown_topic_rejected(
    with_topic: Any, version: int
) -> None:
    response = await with_topic.ask(API, grow(("a", 3), ("missing", 3)), version)
    assert [(r.name, r.error_code) for r in response.results] == [
        ("a", ErrorCode.NONE),
        ("missing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert response.results[0].error_message is None
    assert response.results[1].error_message == "There is no topic 'missing'."
    assert len(with_topic.controller.at_processor.topics["a"].partitions) == 3


async def test_manual_replica_assignment_is_validated(with_topic: Any) -> None:
    for broker_id, code in ((1, ErrorCode.NONE), (9, ErrorCode.INVALID_REPLICA_ASSIGNMENT)):
        count = len(with_topic.cluster.image.topics["a"].partitions) + 1
        assignments = [CreatePartitionsAssignment(broker_ids=[broker_id])]
        topic = CreatePartitionsTopic(name="a", count=count, assignments=assignments)
        response = await with_topic.ask(API, CreatePartitionsRequest(topics=[topic]), 3)
        assert response.results[0].error_code == code


async def test_validate_only_creates_no_partitions(with_topic: Any) -> None:
    response = await with_topic.ask(API, grow(("a", 3), validate_only=True), 3)
    assert response.results[0].error_code == ErrorCode.NONE
    assert len(with_topic.cluster.image.topics["a"].partitions) == 1


async def test_duplicate_topic_is_rejected_once(with_topic: Any) -> None:
    response = await with_topic.ask(API, grow(("a", 3), ("a", 4)), 3)
    assert [(r.name, r.error_code) for r in response.results] == [("a", ErrorCode.INVALID_REQUEST)]
