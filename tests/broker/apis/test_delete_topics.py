"""DeleteTopics: by name, by id, neither, both or twice; and not at all if so configured."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.delete_topics import API
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState

OFFSETS = "__consumer_offsets"


async def with_topics(apis: Any, *names: str) -> dict[str, bytes]:
    outcome = await apis.cluster.create_topics([NewTopic(name) for name in names])
    await apis.controller.publish(outcome.updates)
    return {made.name: made.topic.topic_id for made in outcome.topics}


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_by_name(apis: Any, version: int) -> None:
    await with_topics(apis, "a", "b")
    request = DeleteTopicsRequest(topic_names=["a", "missing", "c", "c"])
    results = (await apis.ask(API, request, version)).responses
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
    results = (await apis.ask(API, request, 6)).responses
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
    results = (await apis.ask(API, DeleteTopicsRequest(topics=states), 6)).responses
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
    results = (await apis.ask(API, DeleteTopicsRequest(topics=states), 6)).responses
    assert ErrorCode.INVALID_REQUEST in {result.error_code for result in results}
    assert any("already supplied" in (result.error_message or "") for result in results)


async def test_deleting_offsets_topic_is_rejected(apis: Any) -> None:
    [result] = (await apis.ask(API, DeleteTopicsRequest(topic_names=[OFFSETS]), 5)).responses
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
    [result] = (await apis.ask(API, DeleteTopicsRequest(topic_names=["a"]), version)).responses
    assert (result.name, result.error_code) == ("a", code)
    assert "a" in apis.cluster.image.topics
