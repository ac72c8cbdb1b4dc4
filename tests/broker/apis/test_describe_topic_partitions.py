"""DescribeTopicPartitions: pages, their cursors, and topics that do not exist."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.describe_topic_partitions import API
from minibroker.broker.apis.operations import TOPIC_OPERATIONS
from minibroker.broker.metadata.placement import OFFSETS_TOPIC
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)

Place = tuple[str, int]


@pytest.fixture
async def paged(make_apis: Any) -> Any:
    """Topics ``a`` (3 partitions), ``b`` (2) and ``c`` (1), at most 4 partitions a page."""
    apis = await make_apis("max.request.partition.size.limit=4")
    outcome = await apis.cluster.create_topics(
        [NewTopic("c", 1), NewTopic("a", 3), NewTopic("b", 2)]
    )
    await apis.controller.publish(outcome.updates)
    return apis


async def page(apis: Any, *names: str, limit: int = 2000, at: Place | None = None) -> Any:
    cursor = None if at is None else Cursor(topic_name=at[0], partition_index=at[1])
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )
    return await apis.ask(API, request, 0)


def places(response: Any) -> list[Place]:
    return [
        (topic.name, partition.partition_index)
        for topic in response.topics
        for partition in topic.partitions
    ]


def after(response: Any) -> Place | None:
    cursor = response.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


@pytest.mark.parametrize(
    ("limit", "found", "cursor"),
    [
        (-1, [("a", 0)], ("a", 1)),
        (0, [("a", 0)], ("a", 1)),
        (2, [("a", 0), ("a", 1)], ("a", 2)),
        (3, [("a", 0), ("a", 1), ("a", 2)], ("b", 0)),
        (4, [("a", 0), ("a", 1), ("a", 2), ("b", 0)], ("b", 1)),
        (99, [("a", 0), ("a", 1), ("a", 2), ("b", 0)], ("b", 1)),
    ],
)
async def test_page_ends_at_the_limit(
    paged: Any, limit: int, found: list[Place], cursor: Place
) -> None:
    response = await page(paged, "c", "b", "a", limit=limit)
    assert (places(response), after(response)) == (found, cursor)


async def test_pages_cover_every_partition_once(paged: Any) -> None:
    found: list[Place] = []
    at: Place | None = None
    while True:
        response = await page(paged, "b", "a", "c", limit=1, at=at)
        found += places(response)
        at = after(response)
        if at is None:
            break
    assert found == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1), ("c", 0)]


async def test_topic_is_described_with_its_partitions(paged: Any) -> None:
    [topic] = (await page(paged, "c", "c")).topics
    known = paged.cluster.image.topics["c"]
    assert (topic.error_code, topic.topic_id, topic.is_internal) == (0, known.topic_id, False)
    assert topic.topic_authorized_operations == TOPIC_OPERATIONS
    [partition] = topic.partitions
    assert (partition.leader_id, partition.leader_epoch) == (1, 0)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == (
        [1],
        [1],
        [],
    )
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])


async def test_leader_without_the_listener_is_not_shown(paged: Any) -> None:
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="c")])
    response = await paged.ask(API, request, 0, listener="INSIDE")
    [partition] = response.topics[0].partitions
    assert (partition.leader_id, partition.offline_replicas) == (-1, [1])


async def test_without_names_all_topics_are_described(paged: Any) -> None:
    response = await page(paged, limit=1)
    [topic] = response.topics
    assert (topic.name, topic.is_internal, after(response)) == (
        OFFSETS_TOPIC,
        True,
        (OFFSETS_TOPIC, 1),
    )
    assert places(await page(paged, limit=1, at=("bb", 7))) == [("c", 0)]


async def test_unknown_topics_have_an_error_and_no_partitions(paged: Any) -> None:
    response = await page(paged, "none", "a/b", "c")
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("c", ErrorCode.NONE),
        ("none", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


@pytest.mark.parametrize("at", [("a", -1), ("bb", 0), ("z", 0)])
async def test_cursor_that_no_response_had_is_rejected(paged: Any, at: Place) -> None:
    response = await page(paged, "c", "a", at=at)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        ("c", ErrorCode.INVALID_REQUEST),
        ("a", ErrorCode.INVALID_REQUEST),
    ]


async def test_cursor_behind_the_last_partition_skips_its_topic(paged: Any) -> None:
    response = await page(paged, "a", "b", at=("a", 99))
    assert places(response) == [("b", 0), ("b", 1)]
    assert [topic.name for topic in response.topics] == ["a", "b"]
