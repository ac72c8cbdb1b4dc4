"""CreateTopics: created topics, the response of each version, and validation."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.create_topics import API
from minibroker.broker.settings import TOPIC_SETTINGS
from minibroker_protocol.errors import ErrorCode
from minibroker_protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from minibroker_protocol.types import ZERO_UUID


def wish(name: str, count: int = 3, factor: int = 1, **fields: Any) -> CreatableTopic:
    return CreatableTopic(name=name, num_partitions=count, replication_factor=factor, **fields)


@pytest.mark.parametrize("version", range(2, 8))
async def test_topic_is_created_and_described(apis: Any, version: int) -> None:
    configs = [CreatableTopicConfig(name="retention.ms", value="5")]
    request = CreateTopicsRequest(topics=[wish("a", configs=configs)])
    [result] = (await apis.ask(API, request, version)).topics
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
    [result] = (await apis.ask(API, request, 7)).topics
    assert (result.error_code, result.num_partitions) == (0, 2)


@pytest.mark.parametrize("version", [2, 5, 7])
async def test_invalid_topics_are_rejected_and_valid_ones_created(apis: Any, version: int) -> None:
    request = CreateTopicsRequest(topics=[wish("bad name"), wish("a"), wish("b"), wish("b")])
    results = (await apis.ask(API, request, version)).topics
    assert [(result.name, result.error_code) for result in results] == [
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a", ErrorCode.NONE),
        ("b", ErrorCode.INVALID_REQUEST),
    ]
    assert "characters other than" in results[0].error_message
    assert "b" not in apis.cluster.image.topics


async def test_validate_only_creates_no_topic(apis: Any) -> None:
    request = CreateTopicsRequest(topics=[wish("a"), wish("b", 0)], validate_only=True)
    results = (await apis.ask(API, request, 7)).topics
    assert [result.error_code for result in results] == [0, ErrorCode.INVALID_PARTITIONS]
    assert results[0].num_partitions == 3
    assert apis.controller.published == []
    assert "a" not in apis.cluster.image.topics


async def test_create_topics_without_topics_returns_empty_list(apis: Any) -> None:
    assert (await apis.ask(API, CreateTopicsRequest(), 7)).topics == []
