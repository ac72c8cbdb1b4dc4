"""IncrementalAlterConfigs: the four operations on topics and brokers, in both versions."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.incremental_alter_configs import API
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

SET, DELETE, APPEND, SUBTRACT = range(4)
Step = tuple[str, int, str | None]


@pytest.fixture
async def with_topic(apis: Any) -> Any:
    wanted = NewTopic("t", config=[("retention.ms", "5"), ("cleanup.policy", "compact")])
    await apis.controller.publish((await apis.cluster.create_topics([wanted])).updates)
    return apis


async def alter(
    apis: Any,
    *resources: tuple[int, str, list[Step]],
    version: int = 1,
    validate_only: bool = False,
) -> list[tuple[int, str | None]]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    AlterableConfig(name=key, config_operation=op, value=value)
                    for key, op, value in steps
                ],
            )
            for kind, name, steps in resources
        ],
        validate_only=validate_only,
    )
    response = await apis.ask(API, request, version)
    result = [(item.resource_type, item.resource_name) for item in response.responses]
    assert result == [resource[:2] for resource in resources]
    return [(item.error_code, item.error_message) for item in response.responses]


@pytest.mark.parametrize("version", [0, 1])
async def test_topic_and_broker_configs_are_altered(with_topic: Any, version: int) -> None:
    answers = await alter(
        with_topic,
        (2, "t", [("retention.ms", DELETE, None), ("cleanup.policy", APPEND, "delete")]),
        (4, "1", [("max.connections", SET, "6")]),
        (4, "", [("log.cleanup.policy", SUBTRACT, "delete"), ("log.retention.ms", SET, "1")]),
        version=version,
    )
    assert answers[:2] == [(0, None), (0, None)]
    # Nothing at all is no policy.
    code, text = answers[2]
    assert code == 42
    assert "log.cleanup.policy" in (text or "")
    image = with_topic.controller.at_processor
    assert image.configs["topics", "t"] == {"cleanup.policy": "compact,delete"}
    assert image.configs["brokers", "1"] == {"max.connections": "6"}
    assert ("brokers", "<default>") not in image.configs


async def test_invalid_value_leaves_whole_resource_unchanged(with_topic: Any) -> None:
    before = with_topic.controller.at_processor
    [(code, text)] = await alter(
        with_topic, (2, "t", [("segment.bytes", SET, "1000"), ("retention.ms", SET, "long")])
    )
    assert code == 40
    assert (
        text
        == "Invalid value long for configuration retention.ms: must be a whole number (64 bits)"
    )
    assert with_topic.controller.at_processor == before


async def test_validate_only_changes_are_not_applied(with_topic: Any) -> None:
    before = with_topic.controller.at_processor
    steps: list[Step] = [("retention.ms", SET, "6")]
    assert await alter(with_topic, (2, "t", steps), validate_only=True) == [(0, None)]
    assert with_topic.controller.at_processor == before
