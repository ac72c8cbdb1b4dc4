"""Topics are created, get partitions, are deleted, and are described page by page."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.topics import (
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    DESCRIBE_TOPIC_PARTITIONS,
)
from minibroker.broker.metadata.image import OFFSETS_TOPIC
from minibroker.broker.metadata.topics import NewTopic
from minibroker.broker.security.acl import TOPIC_OPERATIONS
from minibroker.broker.settings import TOPIC_SETTINGS
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from minibroker_protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from minibroker_protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from minibroker_protocol.types import ZERO_UUID


def wish(name: str, count: int = 3, factor: int = 1, **fields: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=count, replication_factor=factor, **fields)


@pytest.mark.parametrize("version", range(2, 8))
async def test_topic_is_created_and_described(apis: Any, version: int) -> None:
    configs = [CreatableTopicConfig(name="retention.ms", value="5")]
    request = CreateTopicsRequest(topics=[wish("a", configs=configs)])
    [result] = (await apis.ask(CREATE_TOPICS, request, version)).topics
    topic = apis.controller.at_processor.topics["a"]
    assert (result.name, result.error_code, result.error_message) == ("a", 0, None)
    assert len(topic.partitions) == 3
    if version >= 5:
        assert (result.num_partitions, result.replication_factor) == (3, 1)
        found = {config.name: config for config in result.configs}
        assert set(found) == set(TOPIC_SETTINGS)
        assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("5", 1)
        assert found["segment.bytes"].config_source == 5
    if version >= 7:
        assert result.topic_id == topic.topic_id != ZERO_UUID


async def test_manual_replica_assignment_is_accepted(apis: Any) -> None:
    assignments = [CreatableReplicaAssignment(partition_index=i, broker_ids=[1]) for i in (0, 1)]
    request = CreateTopicsRequest(topics=[wish("a", -1, -1, assignments=assignments)])
    [result] = (await apis.ask(CREATE_TOPICS, request, 7)).topics
    assert (result.error_code, result.num_partitions) == (0, 2)


@pytest.mark.parametrize("version", [2, 5, 7])
async def test_invalid_topics_are_rejected_and_valid_ones_created(apis: Any, version: int) -> None:
    request = CreateTopicsRequest(topics=[wish("bad name"), wish("a"), wish("b"), wish("b")])
    results = (await apis.ask(CREATE_TOPICS, request, version)).topics
    assert [(result.name, result.error_code) for result in results] == [
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.INVALID_REQUEST),
    ]
    assert "characters other than" in results[0].error_message
    assert "b" not in apis.cluster.image.topics


async def test_validate_only_creates_no_topic(apis: Any) -> None:
    request = CreateTopicsRequest(topics=[wish("a"), wish("b", 0)], validate_only=True)
    results = (await apis.ask(CREATE_TOPICS, request, 7)).topics
    assert [result.error_code for result in results] == [0, ErrorCode.INVALID_PARTITIONS]
    assert results[0].num_partitions == 3
    assert apis.controller.published == []
    assert "a" not in apis.cluster.image.topics


async def test_create_topics_without_topics_returns_empty_list(apis: Any) -> None:
    assert (await apis.ask(CREATE_TOPICS, CreateTopicsRequest(), 7)).topics == []


# Create partitions --------------------------------------------------------------------------------


@pytest.fixture
async def with_topic(apis: Any) -> Any:
    await apis.create_topics([NewTopic("a", 1)])
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
    response = await with_topic.ask(CREATE_PARTITIONS, grow(("a", 3), ("missing", 3)), version)
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
        response = await with_topic.ask(
            CREATE_PARTITIONS, CreatePartitionsRequest(topics=[topic]), 3
        )
        assert response.results[0].error_code == code


async def test_validate_only_creates_no_partitions(with_topic: Any) -> None:
    response = await with_topic.ask(CREATE_PARTITIONS, grow(("a", 3), validate_only=True), 3)
    assert response.results[0].error_code == ErrorCode.NONE
    assert len(with_topic.cluster.image.topics["a"].partitions) == 1


async def test_duplicate_topic_is_rejected_once(with_topic: Any) -> None:
    response = await with_topic.ask(CREATE_PARTITIONS, grow(("a", 3), ("a", 4)), 3)
    assert [(r.name, r.error_code) for r in response.results] == [("a", ErrorCode.INVALID_REQUEST)]


# Delete topics ------------------------------------------------------------------------------------


OFFSETS = "__consumer_offsets"


async def with_topics(apis: Any, *names: str) -> dict[str, bytes]:
    outcome = await apis.cluster.create_topics([NewTopic(name) for name in names])
    await apis.controller.publish(outcome.updates)
    return {made.name: made.topic.topic_id for made in outcome.topics}


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_by_name(apis: Any, version: int) -> None:
    await with_topics(apis, "a", "b")
    request = DeleteTopicsRequest(topic_names=["a", "missing", "c", "c"])
    results = (await apis.ask(DELETE_TOPICS, request, version)).responses
    assert {result.name: result.error_code for result in results} == {
        "a": ErrorCode.NONE,
        "missing": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "c": ErrorCode.INVALID_REQUEST,
    }
    assert set(apis.controller.at_processor.topics) == {"b", OFFSETS}
    if version >= 5:
        texts = {result.name: result.error_message for result in results}
        assert texts["a"] is None
        assert texts["c"] == "Duplicate topic name."


async def test_topics_are_deleted_by_name_or_id_since_version_6(apis: Any) -> None:
    ids = await with_topics(apis, "a", "b", "c")
    request = DeleteTopicsRequest(
        topics=[
            DeleteTopicState(name=None, topic_id=ids["a"]),
            DeleteTopicState(name="b"),
            DeleteTopicState(name=None, topic_id=b"\x01" * 16),
        ]
    )
    results = (await apis.ask(DELETE_TOPICS, request, 6)).responses
    assert {(result.name, result.topic_id, result.error_code) for result in results} == {
        ("a", ids["a"], ErrorCode.NONE),
        ("b", ids["b"], ErrorCode.NONE),
        (None, b"\x01" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
    }
    assert set(apis.cluster.image.topics) == {"c", OFFSETS}


async def test_missing_ambiguous_or_duplicate_topic_is_rejected(apis: Any) -> None:
    ids = await with_topics(apis, "a", "b", "c")
    states = [
        DeleteTopicState(name=None),
        DeleteTopicState(name="a", topic_id=ids["a"]),
        DeleteTopicState(name=None, topic_id=ids["b"]),
        DeleteTopicState(name=None, topic_id=ids["b"]),
    ]
    results = (await apis.ask(DELETE_TOPICS, DeleteTopicsRequest(topics=states), 6)).responses
    assert {result.error_message for result in results} == {
        "Neither topic name nor id were specified.",
        "You may not specify both topic name and topic id.",
        "Duplicate topic id.",
    }
    assert {result.error_code for result in results} == {ErrorCode.INVALID_REQUEST}
    assert {"a", "b", "c"} < set(apis.cluster.image.topics)


async def test_same_topic_by_id_and_by_name_is_rejected(apis: Any) -> None:
    ids = await with_topics(apis, "a")
    states = [DeleteTopicState(name=None, topic_id=ids["a"]), DeleteTopicState(name="a")]
    results = (await apis.ask(DELETE_TOPICS, DeleteTopicsRequest(topics=states), 6)).responses
    assert ErrorCode.INVALID_REQUEST in {result.error_code for result in results}
    assert any("already supplied" in (result.error_message or "") for result in results)


async def test_deleting_offsets_topic_is_rejected(apis: Any) -> None:
    [result] = (
        await apis.ask(DELETE_TOPICS, DeleteTopicsRequest(topic_names=[OFFSETS]), 5)
    ).responses
    assert result.error_code == ErrorCode.INVALID_REQUEST
    assert OFFSETS in apis.cluster.image.topics


@pytest.mark.parametrize(
    ("version", "code"),
    [(1, ErrorCode.INVALID_REQUEST), (3, ErrorCode.TOPIC_DELETION_DISABLED)],
)
async def test_topic_deletion_is_rejected_if_disabled(
    make_apis: Any, version: int, code: ErrorCode
) -> None:
    apis = await make_apis("delete.topic.enable=false")
    await with_topics(apis, "a")
    [result] = (
        await apis.ask(DELETE_TOPICS, DeleteTopicsRequest(topic_names=["a"]), version)
    ).responses
    assert (result.name, result.error_code) == ("a", code)
    assert "a" in apis.cluster.image.topics


# Describe topic partitions ------------------------------------------------------------------------


Place = tuple[str, int]


@pytest.fixture
async def paged(make_apis: Any) -> Any:
    """Topics ``a`` (3 partitions), ``b`` (2) and ``c`` (1), at most 4 partitions a page."""
    apis = await make_apis("max.request.partition.size.limit=4")
    await apis.create_topics([NewTopic("c", 1), NewTopic("a", 3), NewTopic("b", 2)])
    return apis


async def page(apis: Any, *names: str, limit: int = 2000, at: Place | None = None) -> Any:
    cursor = None if at is None else Cursor(topic_name=at[0], partition_index=at[1])
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in names],
        response_partition_limit=limit,
        cursor=cursor,
    )
    return await apis.ask(DESCRIBE_TOPIC_PARTITIONS, request, 0)


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
    response = await paged.ask(DESCRIBE_TOPIC_PARTITIONS, request, 0, listener="INSIDE")
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
