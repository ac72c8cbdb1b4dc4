"""ElectLeaders: each partition has its leader, so no election is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.apis.elect_leaders import API, PREFERRED, UNCLEAN
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

NOT_NEEDED = ErrorCode.ELECTION_NOT_NEEDED


@pytest.fixture
async def led(apis: Any) -> Any:
    outcome = await apis.cluster.create_topics([NewTopic("t", 2)])
    await apis.controller.publish(outcome.updates)
    return apis


def led_by(apis: Any, leader: int, *replicas: int) -> None:
    """Show partition 0 of ``t`` with another leader."""
    image = apis.cluster.image
    topic = image.topics["t"]
    first = replace(topic.partitions[0], leader=leader, replicas=replicas)
    changed = topic._replace(partitions=(first, topic.partitions[1]))
    apis.image = replace(image, topics={**image.topics, "t": changed})


async def elect(
    apis: Any, topics: list[TopicPartitions] | None, kind: int = PREFERRED, version: int = 2
) -> tuple[int, dict[tuple[str, int], int]]:
    request = ElectLeadersRequest(topic_partitions=topics, election_type=kind)
    response = await apis.ask(API, request, version)
    errors = {
        (topic.topic, partition.partition_id): partition.error_code
        for topic in response.replica_election_results
        for partition in topic.partition_result
    }
    return response.error_code, errors


@pytest.mark.parametrize("version", range(3))
async def test_partitions_of_the_request_need_no_election(led: Any, version: int) -> None:
    wanted = [
        TopicPartitions(topic="t", partitions=[1, 0, 2]),
        TopicPartitions(topic="none", partitions=[0]),
    ]
    assert await elect(led, wanted, version=version) == (
        ErrorCode.NONE,
        {
            ("t", 1): NOT_NEEDED,
            ("t", 0): NOT_NEEDED,
            ("t", 2): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        },
    )


async def test_without_partitions_only_those_that_need_an_election_are_listed(led: Any) -> None:
    assert await elect(led, None) == (ErrorCode.NONE, {})
    led_by(led, 2, 1, 2)
    error = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    assert await elect(led, None) == (ErrorCode.NONE, {("t", 0): error})


@pytest.mark.parametrize(
    ("leader", "kind", "error"),
    [
        (2, PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (2, UNCLEAN, NOT_NEEDED),
        (-1, PREFERRED, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        (-1, UNCLEAN, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
async def test_replica_of_another_broker_cannot_be_elected(
    led: Any, leader: int, kind: int, error: ErrorCode
) -> None:
    led_by(led, leader, 3, 2)
    wanted = [TopicPartitions(topic="t", partitions=[0])]
    assert await elect(led, wanted, kind) == (ErrorCode.NONE, {("t", 0): error})


@pytest.mark.parametrize("kind", [2, -1])
async def test_unknown_election_type_is_rejected(led: Any, kind: int) -> None:
    wanted = [TopicPartitions(topic="t", partitions=[0])]
    invalid = ErrorCode.INVALID_REQUEST
    assert await elect(led, wanted, kind) == (invalid, {("t", 0): invalid})
