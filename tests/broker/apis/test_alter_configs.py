"""AlterConfigs: configs that are not named are removed."""

from __future__ import annotations

from typing import Any

import pytest

from minibroker.broker.apis.alter_configs import API
from minibroker.broker.metadata.topics import NewTopic
from minibroker_protocol.messages.alter_configs import (
    AlterableConfig,
    AlterConfigsRequest,
    AlterConfigsResource,
)


async def alter(
    apis: Any, kind: int, name: str, version: int = 2, **values: str | None
) -> tuple[int, str | None]:
    configs = [
        AlterableConfig(name=key.replace("_", "."), value=value) for key, value in values.items()
    ]
    resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    response = await apis.ask(API, AlterConfigsRequest(resources=[resource]), version)
    [item] = response.responses
    assert (item.resource_type, item.resource_name) == (kind, name)
    return item.error_code, item.error_message


@pytest.mark.parametrize("version", range(3))
async def test_alter_configs_replaces_all_topic_overrides(apis: Any, version: int) -> None:
    wanted = NewTopic("t", config=[("retention.ms", "5"), ("segment.bytes", "1000")])
    await apis.controller.publish((await apis.cluster.create_topics([wanted])).updates)
    assert await alter(apis, 2, "t", version, retention_ms="6") == (0, None)
    assert apis.controller.at_processor.topic_overrides("t") == {"retention.ms": "6"}
    assert await alter(apis, 2, "t", version) == (0, None)
    assert apis.controller.at_processor.topic_overrides("t") == {}


async def test_rejected_alteration_leaves_configs_unchanged(apis: Any) -> None:
    assert await alter(apis, 4, "1", max_connections="6") == (0, None)
    assert (await alter(apis, 4, "1", num_io_threads="6"))[0] == 42
    assert (await alter(apis, 4, "1", max_connections=None))[0] == 42
    assert apis.controller.at_processor.configs["brokers", "1"] == {"max.connections": "6"}
